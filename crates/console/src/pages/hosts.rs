//! The list of hosts: search, keyset pages, sparklines.

use std::collections::HashMap;

use askama::Template;
use axum::{
    extract::{Query, State},
    http::HeaderMap,
    response::Redirect,
};
use futures_util::future::try_join_all;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use svc_store::{HostCursor, HostRecord, HostSort, HostsPage, Total, WrittenSearch};
use uuid::Uuid;

use crate::{
    error::AppError,
    render::render,
    session::User,
    shell::{Page, Shell, html},
    state::App,
    view::{Spark, count, sort},
};

const PAGE: u32 = 50;
/// A search of more words than this gets no hints: each costs a search.
const HINT_WORDS: usize = 4;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    q: String,
    sort: String,
    after: String,
    before: String,
}

#[derive(Template)]
#[template(path = "hosts.html")]
struct HostsTemplate {
    shell: Shell,
    list: List,
}

/// The part below the search box.
#[derive(Template)]
#[template(path = "hosts_list.html")]
struct ListTemplate {
    shell: Shell,
    list: List,
}

#[derive(Template)]
#[template(path = "hosts_rows.html")]
struct RowsTemplate {
    rows: Vec<Row>,
}

struct List {
    search: WrittenSearch,
    sort: &'static str,
    rows: String,
    shown: usize,
    found: String,
    next: Option<String>,
    previous: Option<String>,
    fleet_is_empty: bool,
    /// If nothing was found: what would be, without one of the words.
    hints: Vec<Hint>,
    live: String,
}

/// A word without which a search finds hosts.
struct Hint {
    word: String,
    found: String,
    link: String,
}

struct Row {
    host: HostRecord,
    spark: Spark,
}

pub async fn page(
    State(app): State<App>,
    user: User,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Page {
    let list = list(&app, &asked).await?;
    let shell = Shell::new(&app, user, "hosts").live(list.live.clone());
    let partial = headers
        .get("hx-target")
        .is_some_and(|target| target == "hosts-list" || target == "div#hosts-list");
    match partial {
        true => html(&ListTemplate { shell, list }),
        false => html(&HostsTemplate { shell, list }),
    }
}

pub async fn list_page() -> Redirect {
    Redirect::to("/hosts")
}

/// The rows of these hosts, for the live page.
pub async fn rows(app: &App, ids: &[Uuid]) -> Result<String, AppError> {
    let hosts = app.store.console_hosts_by_id(ids).await?;
    let mut by_id: HashMap<Uuid, HostRecord> =
        hosts.into_iter().map(|host| (host.id.0, host)).collect();
    let ordered = ids.iter().filter_map(|id| by_id.remove(id)).collect();
    render_rows(app, ordered).await
}

async fn list(app: &App, asked: &Asked) -> Result<List, AppError> {
    let search = WrittenSearch::parse(&asked.q);
    let order = sort(&asked.sort, &search.search);
    let before = cursor(&asked.before, order);
    let page = HostsPage {
        search: search.search.clone(),
        sort: order,
        backwards: before.is_some(),
        after: before.or_else(|| cursor(&asked.after, order)),
    };
    let found = app.store.console_hosts(&page, PAGE).await?;
    let hints = match found.rows.is_empty() && page.after.is_none() {
        true => hints(app, &search).await?,
        false => Vec::new(),
    };
    let ids: Vec<String> = found.rows.iter().map(|row| row.id.to_string()).collect();
    Ok(List {
        sort: order.as_str(),
        shown: found.rows.len(),
        found: written(found.total),
        hints,
        fleet_is_empty: found.total == Total::Exactly(0) && search.is_empty(),
        live: match ids.is_empty() {
            true => String::new(),
            false => format!("view=hosts&ids={}", ids.join(",")),
        },
        rows: render_rows(app, found.rows).await?,
        next: found.next.map(|next| link("after", &next, &search, order)),
        previous: found
            .previous
            .map(|first| link("before", &first, &search, order)),
        search,
    })
}

/// Which words exclude everything: each is left out in turn, all at once.
async fn hints(app: &App, search: &WrittenSearch) -> Result<Vec<Hint>, AppError> {
    let words: Vec<&str> = search.words().collect();
    if !(2..=HINT_WORDS).contains(&words.len()) {
        return Ok(Vec::new());
    }
    let tried = words.iter().enumerate().map(|(left_out, word)| {
        let others = words.iter().enumerate();
        let others: Vec<&str> = others
            .filter_map(|(place, word)| (place != left_out).then_some(*word))
            .collect();
        hint(app, word, WrittenSearch::parse(&others.join(" ")))
    });
    let found = try_join_all(tried).await?;
    Ok(found.into_iter().flatten().collect())
}

async fn hint(app: &App, word: &str, without: WrittenSearch) -> Result<Option<Hint>, AppError> {
    let page = HostsPage {
        search: without.search.clone(),
        ..HostsPage::default()
    };
    let found = app.store.console_hosts(&page, 1).await?;
    Ok((!found.rows.is_empty()).then(|| Hint {
        word: word.to_owned(),
        found: written(found.total),
        link: format!("/hosts?q={}", encoded(&without.text)),
    }))
}

fn written(total: Total) -> String {
    match total {
        Total::Exactly(number) => count(&number),
        Total::AtLeast(number) => format!("{} or more", count(&number)),
    }
}

async fn render_rows(app: &App, hosts: Vec<HostRecord>) -> Result<String, AppError> {
    let ids: Vec<Uuid> = hosts.iter().map(|host| host.id.0).collect();
    let mut sparks: HashMap<Uuid, Spark> = HashMap::new();
    for point in app.store.console_sparklines(&ids, Spark::begins()).await? {
        let spark = sparks.entry(point.host_id.0).or_insert_with(Spark::empty);
        spark.set(point.position, point.cpu_percent);
    }
    let rows = hosts.into_iter().map(|host| Row {
        spark: sparks.remove(&host.id.0).unwrap_or_else(Spark::empty),
        host,
    });
    let rows = rows.collect();
    Ok(render(&RowsTemplate { rows })?)
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The link to the page `after` this place, or `before` it.
fn link(side: &str, (key, id): &HostCursor, search: &WrittenSearch, sort: HostSort) -> String {
    let (query, place) = (encoded(&search.text), encoded(&format!("{id}~{key}")));
    format!("/hosts?q={query}&sort={}&{side}={place}", sort.as_str())
}

/// `None`, and so the first page, for a cursor that this order cannot have made.
fn cursor(text: &str, sort: HostSort) -> Option<HostCursor> {
    let (id, key) = text.split_once('~')?;
    let fits = match sort {
        HostSort::Name => key.len() <= 1024,
        HostSort::Disk => key.parse::<i16>().is_ok(),
        HostSort::Offline => key.parse::<f64>().is_ok_and(f64::is_finite),
    };
    Some((key.to_owned(), Uuid::parse_str(id).ok().filter(|_| fits)?))
}
