//! Live pages: one stream of server-sent events a tab. What is sent are parts of the page, which htmx
//! morphs in place. A stream ends with the process, with the session, and with the client.

mod reader;

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::{Query, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Interval, interval, timeout},
};

use crate::{
    error::AppError,
    feed::News,
    live::{Filter, Rendered, View},
    session::{IDLE, User},
    slots::Slot,
    state::App,
    telemetry::Open,
};

/// How often a stream checks that its session is still good, and for how long it waits for the answer.
const SESSION_CHECK: Duration = Duration::from_secs(30);
const SESSION_WAIT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The answer to a person with too many streams, and when too many different views are open.
const TOO_MANY: AppError = AppError::Limited(Duration::from_secs(60));
const STALE: &str =
    "<p class=\"notice warn\">The database does not answer. What you see may be out of date.</p>";

#[derive(Deserialize)]
pub struct Asked {
    view: String,
    #[serde(default)]
    ids: String,
}

/// `GET /live?view=…`
pub async fn live(
    State(app): State<App>,
    user: User,
    Query(asked): Query<Asked>,
    Query(filter): Query<Filter>,
) -> Result<Response, AppError> {
    let slot = app.live.enter(&user.name).ok_or(TOO_MANY)?;
    let view = View::parse(&asked.view, &asked.ids, &filter, user.role)
        .ok_or(AppError::NotFound("There is no such view."))?;
    let (mut rendered, first) = app.live.join(&view).ok_or(TOO_MANY)?;
    if first {
        tokio::spawn(reader::read(app.clone(), view));
    }
    // A viewer who joins later gets at once what the others have.
    if rendered.borrow_and_update().is_empty() {
        rendered.mark_unchanged();
    } else {
        rendered.mark_changed();
    }
    let viewer = Viewer {
        rendered,
        news: app.news.clone(),
        shown: None,
        check: interval(SESSION_CHECK),
        session: user.session,
        _held: (slot, Open::new(&app.metrics.live_streams)),
        app,
    };
    let events = stream::unfold(viewer, Viewer::next);
    let events = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok(([("x-accel-buffering", "no")], events).into_response())
}

struct Viewer {
    app: App,
    session: [u8; 32],
    rendered: watch::Receiver<Rendered>,
    news: watch::Receiver<News>,
    /// What the page's head says now.
    shown: Option<(i64, bool)>,
    check: Interval,
    _held: (Slot<String>, Open),
}

impl Viewer {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.head() {
                return Some((Ok(event), self));
            }
            tokio::select! {
                () = self.app.stop.cancelled() => return None,
                changed = self.rendered.changed() => {
                    changed.ok()?;
                    let html = self.rendered.borrow_and_update().clone();
                    return Some((Ok(Event::default().data(part("#live", "innerMorph", &html))), self));
                }
                changed = self.news.changed() => changed.ok()?,
                _ = self.check.tick() => if self.signed_out().await { return None },
            }
        }
    }

    /// The head's parts, if they differ from what the page shows.
    fn head(&mut self) -> Option<Event> {
        let (pending, stale) = {
            let news = self.news.borrow_and_update();
            (news.pending, news.stale)
        };
        if self.shown.replace((pending, stale)) == Some((pending, stale)) {
            return None;
        }
        let badge = match pending {
            0 => String::new(),
            count => format!("<span class=\"badge\">{count}</span>"),
        };
        let notice = if stale { STALE } else { "" };
        let parts =
            part("#nav-pending", "innerHTML", &badge) + &part("#notice", "innerHTML", notice);
        Some(Event::default().data(parts))
    }

    /// The session is looked at, not used: an open tab alone does not keep a person signed in. While
    /// the database is away the answer is no, after a short wait: the stream has to say that the page is stale.
    async fn signed_out(&self) -> bool {
        let session = self.app.store.console_session(&self.session, IDLE);
        matches!(timeout(SESSION_WAIT, session).await, Ok(Ok(None)))
    }
}

/// A part of the page, as htmx takes it out of a message.
fn part(target: &str, swap: &str, html: &str) -> String {
    format!(
        "<hx-partial hx-target=\"{target}\" hx-swap=\"{swap} swapEmpty:true\">{html}</hx-partial>"
    )
}
