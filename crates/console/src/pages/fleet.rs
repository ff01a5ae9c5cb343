//! The fleet at a glance: counts, what needs attention, how full the service is, and pictures of all hosts.

pub mod capacity;
mod pictures;

use askama::Template;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use svc_store::{ActivityFilter, ActivityRecord, DatabaseState, EventKind, InstanceRecord};

use self::{capacity::Capacity, pictures::Pictures};
use crate::{
    error::AppError,
    feed::News,
    render::render,
    session::User,
    shell::{Page, Shell, html},
    state::App,
    view::{certificate_expiry, count, plural, span},
};

/// When an expiring certificate needs attention: most are renewed 30 days before their end.
const CERTIFICATES_SOON: SignedDuration = SignedDuration::from_hours(21 * 24);

/// How many instances are shown, those that are live first.
pub const INSTANCES: i64 = 50;

/// How many of the newest entries of the activity are shown, and among how many they are looked for: who signs in is no news of
/// the fleet.
const RECENT: (usize, u32) = (8, 40);

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage {
    shell: Shell,
    part: String,
}

#[derive(Template)]
#[template(path = "fleet_part.html")]
struct FleetPart {
    news: News,
    attention: Vec<Attention>,
    recent: Vec<ActivityRecord>,
    instances: Vec<InstanceRecord>,
    capacity: Capacity,
    pictures: Option<Pictures>,
    size: i64,
    per_host_day: Option<i64>,
}

/// A line of what needs attention, with the page that shows it.
struct Attention {
    count: String,
    what: &'static str,
    why: &'static str,
    link: &'static str,
    level: &'static str,
}

pub async fn page(State(app): State<App>, user: User) -> Page {
    let part = part(&app).await?;
    let shell = Shell::new(&app, user, "fleet").live("view=fleet");
    html(&FleetPage { shell, part })
}

pub async fn part(app: &App) -> Result<String, AppError> {
    let news = app.news.borrow().clone();
    let mut instances = app.store.instances_list(INSTANCES).await?;
    instances.retain(|instance| instance.live);
    let database = app.store.console_database().await?;
    let all = ActivityFilter::default();
    let (most, among) = RECENT;
    let mut recent = app.store.console_activity(&all, None, among).await?.rows;
    recent.retain(|row| !matches!(row.kind, EventKind::SignIn | EventKind::SignOut));
    recent.truncate(most);
    let part = FleetPart {
        recent,
        attention: attention(&news, &instances, app.verifier.state().problem.is_some()),
        capacity: Capacity::of(&instances, &database),
        pictures: Pictures::read(app).await?,
        size: database.size_bytes,
        per_host_day: per_host_day(&database, news.counts.online),
        news,
        instances,
    };
    Ok(render(&part)?)
}

/// What the samples of a host take a day. Three of the days are made ahead and nearly empty.
fn per_host_day(database: &DatabaseState, hosts: i64) -> Option<i64> {
    let days = (database.sample_days - 3).max(1);
    let known = database.samples_bytes > 0 && hosts > 0;
    known.then(|| database.samples_bytes / days / hosts)
}

/// How many instances show a certificate that expires soon.
fn certificates(instances: &[InstanceRecord]) -> i64 {
    let soon = Timestamp::now() + CERTIFICATES_SOON;
    let expires =
        |instance: &&InstanceRecord| certificate_expiry(instance).is_some_and(|at| at < soon);
    i64::try_from(instances.iter().filter(expires).count()).unwrap_or(i64::MAX)
}

/// The lines for the numbers that are not 0.
macro_rules! lines {
    ($($number:expr, $level:literal, $link:literal, $one:literal, $many:literal, $why:literal;)+) => {
        [$({
            let number: i64 = $number;
            (number > 0).then(|| Attention {
                count: count(&number),
                what: plural(&number, $one, $many),
                why: $why,
                link: $link,
                level: $level,
            })
        }),+]
    };
}

/// Only what is not as it should be, the most urgent first.
fn attention(news: &News, instances: &[InstanceRecord], keys_away: bool) -> Vec<Attention> {
    let found = &news.attention;
    let lines = lines! {
        news.pending, "info", "/approvals",
            "waits for approval", "wait for approval", "Registrations wait for a decision.";
        found.dead_letters_day, "bad", "/service",
            "agent with dead letters since yesterday", "agents with dead letters since yesterday",
            "The database refused samples five times.";
        certificates(instances), "bad", "/service",
            "certificate expires within 21 days", "certificates expire within 21 days",
            "Agents refuse an instance with an expired certificate.";
        found.disks_90, "bad", "/hosts?q=disk:90&sort=disk",
            "disk at 90 % or more", "disks at 90 % or more", "The fullest file system of a host.";
        found.offline_day, "warn", "/hosts?q=offline:1d&sort=offline",
            "offline for more than a day", "offline for more than a day", "Their agents have no stream.";
        found.clones_day, "warn", "/activity?kind=clone",
            "identity used twice since yesterday", "identities used twice since yesterday",
            "A copy of an agent's key was refused.";
        found.gaps_day, "warn", "/hosts?q=has:gaps",
            "host with gaps since yesterday", "hosts with gaps since yesterday", "Some of their samples are missing.";
        found.clock_skew, "warn", "/hosts?q=is:skewed",
            "clock off by more than 30 s", "clocks off by more than 30 s", "Compared when they connected.";
        found.tokens_expiring, "info", "/tokens",
            "token expires within 3 days", "tokens expire within 3 days", "New machines will need another one.";
    };
    let mut lines: Vec<Attention> = lines.into_iter().flatten().collect();
    let service = |count: &str, what, why| Attention {
        count: count.to_owned(),
        what,
        why,
        link: "/service",
        level: "warn",
    };
    if found.rollup_lag_seconds > 900.0 {
        let late = span(found.rollup_lag_seconds as u64);
        let why = "Hourly values appear late in plots.";
        lines.push(service(&late, "behind with rollups", why));
    }
    if keys_away {
        let why = "Notes of agents are verified with the keys that are known.";
        lines.push(service("JWKS", "cannot be fetched", why));
    }
    lines
}
