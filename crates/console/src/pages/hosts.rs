//! The list of hosts: search, keyset pages, sparklines.

use std::collections::HashMap;

use askama::Template;
use axum::{
    extract::{Query, State},
    http::HeaderMap,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use svc_store::{HostCursor, HostListRow, HostSort, HostsPage, Total};
use uuid::Uuid;

use super::{Page, html};
use crate::{
    app::App,
    auth::User,
    error::AppError,
    view::{Search, Shell, Spark, count, sort},
};

const PAGE: u32 = 50;

#[derive(Deserialize)]
pub struct Asked {
    #[serde(default)]
    q: String,
    #[serde(default)]
    sort: String,
    #[serde(default)]
    after: String,
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
    search: Search,
    sort: &'static str,
    rows: String,
    shown: usize,
    found: String,
    next: Option<String>,
    first: bool,
    fleet_is_empty: bool,
    live: String,
    base_url: String,
}

struct Row {
    host: HostListRow,
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

/// The rows of these hosts, for the live page.
pub async fn rows(app: &App, ids: &[Uuid]) -> Result<String, AppError> {
    let hosts = app.store.console_hosts_by_id(ids).await?;
    let mut by_id: HashMap<Uuid, HostListRow> =
        hosts.into_iter().map(|host| (host.id.0, host)).collect();
    let ordered = ids.iter().filter_map(|id| by_id.remove(id)).collect();
    render_rows(app, ordered).await
}

async fn list(app: &App, asked: &Asked) -> Result<List, AppError> {
    let search = Search::parse(&asked.q);
    let order = sort(&asked.sort, &search.search);
    let page = HostsPage {
        search: search.search.clone(),
        sort: order,
        after: cursor(&asked.after, order),
    };
    let found = app.store.console_hosts(&page, PAGE).await?;
    let ids: Vec<String> = found.rows.iter().map(|row| row.id.to_string()).collect();
    Ok(List {
        sort: name(order),
        shown: found.rows.len(),
        found: match found.total {
            Total::Exactly(number) => count(&number),
            Total::AtLeast(number) => format!("{} or more", count(&number)),
        },
        fleet_is_empty: found.total == Total::Exactly(0) && search.is_empty(),
        first: page.after.is_none(),
        live: match ids.is_empty() {
            true => String::new(),
            false => format!("view=hosts&ids={}", ids.join(",")),
        },
        rows: render_rows(app, found.rows).await?,
        next: found.next.map(|next| link(&next, &search, order)),
        search,
        base_url: app.web.origin(),
    })
}

async fn render_rows(app: &App, hosts: Vec<HostListRow>) -> Result<String, AppError> {
    let ids: Vec<Uuid> = hosts.iter().map(|host| host.id.0).collect();
    let mut sparks: HashMap<Uuid, Spark> = HashMap::new();
    for point in app.store.console_sparklines(&ids).await? {
        let spark = sparks.entry(point.host_id.0).or_insert_with(Spark::empty);
        spark.set(point.position, point.cpu_percent);
    }
    let rows = hosts.into_iter().map(|host| Row {
        spark: sparks.remove(&host.id.0).unwrap_or_else(Spark::empty),
        host,
    });
    let rows = rows.collect();
    Ok(RowsTemplate { rows }.render()?)
}

fn name(sort: HostSort) -> &'static str {
    match sort {
        HostSort::Name => "name",
        HostSort::Disk => "disk",
        HostSort::Offline => "offline",
    }
}

/// The link to the next page.
fn link((key, id): &HostCursor, search: &Search, sort: HostSort) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let (query, after) = (encode(&search.text), encode(&format!("{id}~{key}")));
    format!("/hosts?q={query}&sort={}&after={after}", name(sort))
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
