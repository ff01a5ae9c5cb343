//! An agent that was away for a year, on clocks that differ by a year. An identity does not expire: neither the certificate
//! around the key nor the JWT, and no time that is stored about the agent, keeps it out.

use std::fs;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd};
use svc_agent::{
    caller::Facts,
    data_dir::{IDENTITY, NEXT_IDENTITY},
    identity::Identity,
};
use svc_testkit::{AUTO, Instance, Site, machine, token};

use super::{ASK, CHANGES, EVIDENCE, has_another_key_than};
use crate::installation::{Installed, agent_id, books_balance, installed};

const DAY: SignedDuration = SignedDuration::from_hours(24);
const YEAR: i64 = 365;

fn days_from_now(days: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(24 * days)
}

/// A key file: the certificate is valid from one day to another one, counted from today, and not today.
fn key_file(made: Timestamp, valid: [i64; 2]) -> Result<String> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    let day = |days| {
        let day = days_from_now(days).to_zoned(TimeZone::UTC).date();
        Ok::<_, anyhow::Error>(date_time_ymd(
            day.year().into(),
            day.month().try_into()?,
            day.day().try_into()?,
        ))
    };
    (params.not_before, params.not_after) = (day(valid[0])?, day(valid[1])?);
    let certificate = params.self_signed(&key)?;
    let parsed = x509_parser::parse_x509_certificate(certificate.der()).ok();
    let (_, parsed) = parsed.context("a certificate")?;
    ensure!(!parsed.validity().is_valid(), "it is valid today");
    Ok(format!(
        "made: {made}\n{}{}",
        key.serialize_pem(),
        certificate.pem()
    ))
}

/// Puts a key into the folder of an agent that has not begun. Returns its fingerprint.
fn given_key(installed: &Installed, text: &str) -> Result<String> {
    fs::create_dir(installed.path())?;
    fs::write(installed.path().join(IDENTITY), text)?;
    Ok(Identity::from_pem(text, IDENTITY)?.fingerprint())
}

fn has_no_next_key(installed: &Installed) -> Result<()> {
    let next = installed.path().join(NEXT_IDENTITY);
    ensure!(!next.exists(), "a key was made");
    Ok(())
}

/// An agent that registered a year ago, with a certificate of that time, and was stopped. The service's clock went on.
async fn away_for_a_year() -> Result<(Site, Instance, Installed)> {
    let site = Site::new().await?;
    site.settable_clock().await?;
    site.set_clock(&format!("-{YEAR} days")).await?;
    let service = site.instance().start().await?;
    let secret = token(&site, AUTO).await?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
    installed.surroundings.clock.move_wall(-YEAR * 86_400_000);
    given_key(
        &installed,
        &key_file(days_from_now(-YEAR), [-YEAR, 30 - YEAR])?,
    )?;
    let running = installed.start()?;
    site.becomes("SELECT acked_seq > 0 FROM agent_state", "t")
        .await?;
    has_no_next_key(&installed)?;
    running.stop().await?;
    service.stop().await?;
    let jwt = installed.status()?.jwt_expires_at.context("no JWT")?;
    ensure!(jwt < days_from_now(2 - YEAR), "its JWT: {jwt}");

    site.set_clock("0").await?;
    let aged = "UPDATE agents SET created_at = now() - interval '1 year', key_since = now() - interval '1 year';
                UPDATE hosts SET created_at = now() - interval '1 year', facts_at = now() - interval '1 year';
                UPDATE enrolment_tokens SET expires_at = now() - interval '11 months'";
    site.psql(aged).await?;
    let long = "SELECT presence, presence_since < now() - interval '360 days' FROM agent_state";
    site.expect(long, "offline|t").await?;
    let service = site.instance().start().await?;
    installed.addresses = vec![service.grpc];
    Ok((site, service, installed))
}

/// The agent returns with a clock that is wrong by so many days, after a reboot.
async fn returns(wrong_by: i64, key_age: &str, changes_key: bool) -> Result<()> {
    let (site, _service, mut installed) = away_for_a_year().await?;
    let (agent, key) = (agent_id(&site).await?, installed.status()?.fingerprint);
    let acked = site.psql("SELECT acked_seq FROM agent_state").await?;
    let mut facts = machine(1);
    facts.boot_id = "a-year-later".into();
    installed.surroundings.facts = Facts::Given(Box::new(facts));
    let days = YEAR + wrong_by;
    installed.surroundings.clock.move_wall(days * 86_400_000);
    installed.token = String::new();
    installed.settings = vec![("key_age", key_age.into())];

    let running = installed.start()?;
    let stored = format!("SELECT presence, acked_seq > {acked} FROM agent_state");
    site.becomes(&stored, "online|t").await?;
    let jwt = installed.status()?.jwt_expires_at.context("no JWT")?;
    ensure!(jwt > Timestamp::now(), "registered again: {jwt}");
    match changes_key {
        true => has_another_key_than(&installed, &key).await?,
        false => ensure!(installed.status()?.fingerprint == key, "it has another key"),
    }
    has_no_next_key(&installed)?;
    site.becomes(CHANGES, if changes_key { "1" } else { "0" })
        .await?;
    let same = "SELECT a.id, (SELECT count(*) FROM hosts), h.retired_at IS NULL, a.status
                  FROM agents a JOIN hosts h ON h.id = a.host_id";
    site.expect(same, &format!("{agent}|1|t|active")).await?;
    site.expect(EVIDENCE, "0").await?;
    running.stop().await?;
    // What it has now is no more than a day old, whatever its clock says.
    if changes_key {
        let text = fs::read_to_string(installed.path().join(IDENTITY))?;
        let made = Identity::from_pem(&text, IDENTITY)?
            .made()
            .context("made")?;
        ensure!(made.duration_since(Timestamp::now()).abs() < DAY, "{made}");
    }
    books_balance(&site).await
}

#[tokio::test]
async fn an_agent_that_was_away_for_a_year_returns_as_itself_on_a_right_clock() -> Result<()> {
    returns(0, "90d", true).await
}

#[tokio::test]
async fn an_agent_that_was_away_for_a_year_returns_as_itself_on_a_clock_a_year_behind() -> Result<()>
{
    // By its clock, its JWT is still valid.
    tokio::try_join!(returns(-YEAR, "90d", true), returns(-YEAR, "off", false),).map(drop)
}

#[tokio::test]
async fn an_agent_that_was_away_for_a_year_returns_as_itself_on_a_clock_a_year_ahead() -> Result<()>
{
    tokio::try_join!(returns(YEAR, "90d", true), returns(YEAR, "off", false),).map(drop)
}

/// Made on a machine whose clock was a year ahead or decades behind.
#[tokio::test]
async fn a_certificate_that_has_expired_or_is_not_valid_yet_identifies_its_agent() -> Result<()> {
    for (valid, made, changes_key) in [
        ([-9000, -8000], -9000, true),
        ([-9000, -8000], -1, false),
        ([YEAR, 2 * YEAR], YEAR, false),
    ] {
        let (site, _service, installed) = installed(AUTO).await?;
        let clock = &installed.surroundings.clock;
        clock.move_wall(made * 86_400_000);
        let key = given_key(&installed, &key_file(days_from_now(made), valid)?)?;
        let running = installed.start()?;
        site.becomes("SELECT acked_seq > 0 FROM agent_state", "t")
            .await?;
        if changes_key {
            has_another_key_than(&installed, &key).await?;
        } else {
            ensure!(installed.status()?.fingerprint == key, "{valid:?}");
            has_no_next_key(&installed)?;
            // Asked, it changes it too.
            site.psql(ASK).await?;
            has_another_key_than(&installed, &key).await?;
        }
        site.becomes(CHANGES, "1").await?;
        site.expect("SELECT count(*) FROM agents", "1").await?;
        running.stop().await?;
        books_balance(&site).await?;
    }
    Ok(())
}

/// The service's time decides how old a key is. While that is a year ahead, keys are changed once; afterwards they are made in
/// the future, and are kept.
#[tokio::test]
async fn a_service_whose_clock_was_a_year_ahead_locks_no_agent_out_afterwards() -> Result<()> {
    let site = Site::new().await?;
    site.settable_clock().await?;
    let secret = token(&site, AUTO).await?;
    site.psql("UPDATE enrolment_tokens SET expires_at = NULL")
        .await?;
    let service = site.instance().start().await?;
    let mut installed = Installed::new(&site, 1, &[service.grpc], &secret)?;
    let running = installed.start()?;
    installed.connected().await?;
    let first = installed.status()?.fingerprint;
    running.stop().await?;
    service.stop().await?;

    site.set_clock("1 year").await?;
    let service = site.instance().start().await?;
    installed.addresses = vec![service.grpc];
    installed.token = String::new();
    let running = installed.start()?;
    has_another_key_than(&installed, &first).await?;
    site.becomes(CHANGES, "1").await?;
    let second = installed.status()?.fingerprint;
    running.stop().await?;
    service.stop().await?;

    site.set_clock("0").await?;
    let service = site.instance().start().await?;
    installed.addresses = vec![service.grpc];
    let running = installed.start()?;
    let epoch: u64 = site.psql("SELECT epoch FROM agent_state").await?.parse()?;
    site.becomes(
        &format!("SELECT presence, epoch >= {epoch} FROM agent_state"),
        "online|t",
    )
    .await?;
    installed.connected().await?;
    ensure!(
        installed.status()?.fingerprint == second,
        "it has kept its key"
    );
    has_no_next_key(&installed)?;
    site.expect(CHANGES, "1").await?;
    site.expect(EVIDENCE, "0").await?;
    // And it can still change it.
    site.psql(ASK).await?;
    has_another_key_than(&installed, &second).await?;
    site.becomes(CHANGES, "2").await?;
    running.stop().await
}
