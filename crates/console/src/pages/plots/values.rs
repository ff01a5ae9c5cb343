//! The values of a host's plots as a table, which needs no script: for people who read them one by one, or aloud.

use askama::Template;
use axum::extract::{Query, State};
use jiff::Timestamp;
use svc_store::HostId;

use super::{Asked, Column, RANGES, Range, Series};
use crate::{
    id::Id,
    session::User,
    shell::{Page, Shell, html},
    state::App,
    view::bytes,
};

/// How many points are shown, the newest.
const ROWS: usize = 1000;

#[derive(Template)]
#[template(path = "host_values.html")]
struct ValuesPage {
    shell: Shell,
    host: HostId,
    hostname: String,
    range: &'static Range,
    source: &'static str,
    columns: Vec<String>,
    /// Newest first.
    rows: Vec<Row>,
    truncated: bool,
    /// From, to, and why.
    gaps: Vec<(Timestamp, Timestamp, String)>,
}

struct Row {
    at: Timestamp,
    cells: Vec<String>,
}

/// `GET /hosts/{id}/values?range=24h`
pub async fn page(
    State(app): State<App>,
    user: User,
    Id(host): Id<HostId>,
    Query(asked): Query<Asked>,
) -> Page {
    let range = asked.range().unwrap_or(&RANGES[1]);
    let (state, series) = Series::read(&app, host, range).await?;
    let columns = columns(&series);
    let mut rows = rows(&series, &columns);
    let truncated = rows.len() > ROWS;
    rows.truncate(ROWS);
    let gaps = series.gaps.iter();
    let gaps = gaps.map(|gap| (time(gap.from), time(gap.to), gap.reason.clone()));
    html(&ValuesPage {
        shell: Shell::new(&app, user, "hosts"),
        host,
        hostname: state.hostname,
        range,
        source: series.source,
        columns: columns.into_iter().map(|(name, ..)| name).collect(),
        rows,
        truncated,
        gaps: gaps.collect(),
    })
}

type Written = fn(f64) -> String;

/// The names of the columns, their values, and how one is written.
fn columns(series: &Series) -> Vec<(String, &Column, Written)> {
    let percent: Written = |value| format!("{value:.1} %");
    let rate: Written = |value| format!("{}/s", bytes(&(value as i64)));
    let mut columns = vec![
        ("CPU".to_owned(), &series.cpu, percent),
        ("load, 1 min".to_owned(), &series.load, |value| {
            format!("{value:.2}")
        }),
        ("memory".to_owned(), &series.memory, percent),
        ("received".to_owned(), &series.rx, rate),
        ("sent".to_owned(), &series.tx, rate),
    ];
    for (name, values) in &series.disks {
        columns.push((format!("disk {name}"), values, percent));
    }
    columns
}

/// Points without values only interrupt the lines of plots.
fn rows(series: &Series, columns: &[(String, &Column, Written)]) -> Vec<Row> {
    let known = |place: &usize| {
        columns
            .iter()
            .any(|(_, values, _)| values[*place].is_some())
    };
    let places = (0..series.t.len()).rev().filter(known);
    let row = |place: usize| {
        let cells = columns.iter().map(|(_, values, written)| {
            let value = values[place];
            value.map_or_else(|| "–".into(), written)
        });
        Row {
            at: time(series.t[place]),
            cells: cells.collect(),
        }
    };
    places.map(row).collect()
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}
