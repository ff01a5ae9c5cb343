//! What happened: decisions and changes with actor and reason, and their export.

use std::convert::Infallible;

use askama::Template;
use axum::{
    body::{Body, Bytes},
    extract::{Query, State},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use jiff::Timestamp;
use serde::Deserialize;
use svc_common::text::{visible, visible_json};
use svc_store::{ActivityCursor, ActivityFilter, ActivityRecord, EventKind};

use crate::{
    error::AppError,
    session::User,
    shell::{Page, Shell, html},
    slots::hold,
    state::App,
    view::address_query,
};

const PAGE: u32 = 100;
const EXPORT_PAGE: u32 = 1000;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    actor: String,
    kind: String,
    subject: String,
    presence: String,
    before: String,
    format: String,
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    shell: Shell,
    asked: Asked,
    rows: Vec<ActivityRecord>,
    /// To choose from: of agents, of hosts, and of the console's own people and tokens.
    kinds: Vec<EventKind>,
    query: String,
    /// Set if a bounded search stopped there.
    searched_to: Option<Timestamp>,
    next: Option<String>,
}

pub async fn page(State(app): State<App>, user: User, Query(asked): Query<Asked>) -> Page {
    let filter = asked.filter();
    let before = cursor(&asked.before);
    let found = app
        .store
        .console_activity(&filter, before.as_ref(), PAGE)
        .await?;
    let kinds = EventKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| *kind != EventKind::Other);
    html(&ActivityPage {
        shell: Shell::new(&app, user, "activity"),
        kinds: kinds.collect(),
        query: asked.query(),
        next: found
            .next
            .map(|next| format!("{}&before={}", asked.query(), written(&next))),
        searched_to: found.searched_to,
        rows: found.rows,
        asked,
    })
}

impl Asked {
    fn filter(&self) -> ActivityFilter {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        ActivityFilter {
            actor: given(&self.actor),
            kind: given(&self.kind),
            subject: given(&self.subject),
            presence: self.presence == "yes" || self.kind == EventKind::Presence.as_str(),
        }
    }

    fn query(&self) -> String {
        address_query(&[
            ("actor", &self.actor),
            ("kind", &self.kind),
            ("subject", &self.subject),
            ("presence", &self.presence),
        ])
    }
}

/// `GET /activity/export?format=csv`: all that the filter finds, read page by page as fast as the client takes it.
/// An export that is interrupted ends with a line that says so.
pub async fn export(
    State(app): State<App>,
    user: User,
    Query(asked): Query<Asked>,
) -> Result<Response, AppError> {
    let (csv, kind) = match asked.format.as_str() {
        "csv" => (true, "text/csv; charset=utf-8"),
        "ndjson" => (false, "application/x-ndjson"),
        _ => return Err(AppError::bad_request("The format is csv or ndjson.")),
    };
    let slot = app.clients.export(&user.name)?;
    let file = format!("attachment; filename=\"activity.{}\"", asked.format);
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, file),
    ];
    let export = Export {
        app,
        filter: asked.filter(),
        csv,
        before: None,
        done: false,
    };
    let body = Body::from_stream(stream::unfold(export, Export::next));
    Ok(hold((headers, body).into_response(), slot))
}

struct Export {
    app: App,
    filter: ActivityFilter,
    csv: bool,
    before: Option<ActivityCursor>,
    done: bool,
}

impl Export {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.done {
            return None;
        }
        let text = match self.rows().await {
            Ok(text) => text,
            Err(why) => {
                self.done = true;
                match self.csv {
                    true => format!("interrupted,{},,,,,,\r\n", cell(&why)),
                    false => serde_json::json!({ "interrupted": why }).to_string() + "\n",
                }
            }
        };
        Some((Ok(text.into()), self))
    }

    /// The next page, or why there is none.
    async fn rows(&mut self) -> Result<String, String> {
        if self.app.stop.is_cancelled() {
            return Err("The console stops.".into());
        }
        let store = &self.app.store;
        let found = store.console_activity(&self.filter, self.before.as_ref(), EXPORT_PAGE);
        let found = found.await.map_err(|error| {
            tracing::warn!(%error, "an export was interrupted");
            AppError::from(error).message()
        })?;
        let mut text = String::new();
        if self.csv && self.before.is_none() {
            text.push_str("time,kind,actor,subject,change,reason,host,agent,address\r\n");
        }
        for row in &found.rows {
            text.push_str(&match self.csv {
                true => csv(row),
                false => json(row) + "\n",
            });
        }
        self.before = found.next;
        self.done = self.before.is_none();
        Ok(text)
    }
}

fn json(row: &ActivityRecord) -> String {
    let json = serde_json::to_string(row).unwrap_or_default();
    visible_json(&json).into_owned()
}

fn csv(row: &ActivityRecord) -> String {
    let id = |id: Option<uuid::Uuid>| id.map(|id| id.to_string()).unwrap_or_default();
    let fields = [
        row.at.to_string(),
        row.kind.to_string(),
        row.actor.clone().unwrap_or_default(),
        row.subject.clone(),
        row.change.clone(),
        row.reason.clone(),
        id(row.host_id),
        id(row.agent_id),
        row.address.map(|ip| ip.to_string()).unwrap_or_default(),
    ];
    fields.map(|field| cell(&field)).join(",") + "\r\n"
}

/// A quoted cell. A spreadsheet would run a text that begins like a formula: an apostrophe prevents it.
fn cell(text: &str) -> String {
    let text = visible(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    let guard = if formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

fn written(cursor: &ActivityCursor) -> String {
    format!(
        "{}_{}_{}",
        cursor.at.as_microsecond(),
        cursor.source,
        cursor.id
    )
}

fn cursor(text: &str) -> Option<ActivityCursor> {
    let mut parts = text.split('_');
    Some(ActivityCursor {
        at: Timestamp::from_microsecond(parts.next()?.parse().ok()?).ok()?,
        source: parts.next()?.parse().ok()?,
        id: parts.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        assert_eq!(cell("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(cell("\t=1\u{202e}"), "\"[U+0009]=1[U+202E]\"");
        assert_eq!(cell("=HYPERLINK(1)"), "\"'=HYPERLINK(1)\"");
    }

    #[test]
    fn a_cursor_survives_a_round_trip() {
        let given = ActivityCursor {
            at: Timestamp::from_microsecond(1_800_000_000_123_456).unwrap(),
            source: 2,
            id: 7,
        };
        assert_eq!(cursor(&written(&given)), Some(given));
        assert_eq!(cursor("x_y"), None);
    }
}
