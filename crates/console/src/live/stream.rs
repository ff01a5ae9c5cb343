//! One viewer's stream. It ends with the process, with the session, and with the client.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::{Query, State},
    http::{HeaderName, HeaderValue},
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
use tokio_util::sync::CancellationToken;

use super::{Rendered, View};
use crate::{
    app::App, auth::User, error::AppError, feed::News, pages::approvals::Filter, places::Place,
    telemetry::Open,
};

/// How often a stream checks that its session is still good, and for how long it waits for the answer.
const SESSION_CHECK: Duration = Duration::from_secs(30);
const SESSION_WAIT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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
    let Some(place) = app.live.enter(&user.name) else {
        return Err(AppError::Limited(Duration::from_secs(60)));
    };
    let view = View::parse(&asked.view, &asked.ids, filter, &user)
        .ok_or(AppError::NotFound("There is no such view."))?;
    let Some(mut rendered) = app.live.watch(&app, view) else {
        return Err(AppError::Limited(Duration::from_secs(60)));
    };
    // Whoever joins late gets what the others have.
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
        stop: app.stopping(),
        session: user.session,
        held: (place, Open::new(&app.metrics.live_streams)),
        app,
    };
    let events = stream::unfold(viewer, Viewer::next);
    let events = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    let unbuffered = HeaderValue::from_static("no");
    let header = HeaderName::from_static("x-accel-buffering");
    Ok(([(header, unbuffered)], events).into_response())
}

struct Viewer {
    app: App,
    session: [u8; 32],
    rendered: watch::Receiver<Rendered>,
    news: watch::Receiver<News>,
    /// What the page's head says now.
    shown: Option<(i64, bool)>,
    check: Interval,
    stop: CancellationToken,
    held: (Place<String>, Open),
}

impl Viewer {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.head() {
                return Some((Ok(event), self));
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
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
        let now = {
            let news = self.news.borrow_and_update();
            (news.pending, news.stale)
        };
        if self.shown == Some(now) {
            return None;
        }
        self.shown = Some(now);
        let (pending, stale) = now;
        let pending = match pending {
            0 => String::new(),
            count => format!("<span class=\"badge\">{count}</span>"),
        };
        let notice = match stale {
            true => {
                "<p class=\"notice warn\">The database does not answer. What you see may be out of date.</p>"
            }
            false => "",
        };
        let parts =
            part("#nav-pending", "innerHTML", &pending) + &part("#notice", "innerHTML", notice);
        Some(Event::default().data(parts))
    }

    /// The session is looked at, not used: an open tab alone does not keep a person signed in. While
    /// the database is away nobody is signed out, and nobody waits long for it: the page is to say so.
    async fn signed_out(&self) -> bool {
        let idle = crate::auth::IDLE;
        let session = self.app.store.console_session(&self.session, idle);
        matches!(timeout(SESSION_WAIT, session).await, Ok(Ok(None)))
    }
}

/// A part of the page, as htmx takes it out of a message.
fn part(target: &str, swap: &str, html: &str) -> String {
    format!(
        "<hx-partial hx-target=\"{target}\" hx-swap=\"{swap} swapEmpty:true\">{html}</hx-partial>"
    )
}

impl std::fmt::Debug for Viewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Viewer")
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
