//! The reader of a view: it reads and renders the view while it is watched.
//!
//! A view is due after the hub's period, and sooner when the feed has news for it.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    error::AppError,
    live::View,
    pages::{approvals, fleet, host, hosts, service},
    state::App,
};

/// News make a view due early, but never more often than this.
const PAUSE: Duration = Duration::from_secs(1);

/// A failed read changes nothing: the feed says what is stale.
pub async fn read(app: App, view: View) {
    let mut news = app.news.clone();
    let mut shown = news.borrow().version;
    loop {
        let due = Instant::now() + app.live.period();
        sleep(PAUSE).await;
        // What changed during the pause counts too: the version is compared, not the arrival.
        let early = news.wait_for(|news| view.follows_news() && news.version != shown);
        let early = async {
            if early.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = app.stop.cancelled() => return,
            () = sleep_until(due) => {}
            () = early => {}
        }
        if app.live.leave_if_unwatched(&view) {
            return;
        }
        app.metrics.live_renders.inc();
        shown = news.borrow().version;
        match render(&app, &view).await {
            Ok(html) => app.live.publish(&view, html),
            Err(error) => tracing::debug!(%error, "a live view cannot be read"),
        }
    }
}

async fn render(app: &App, view: &View) -> Result<String, AppError> {
    match view {
        View::Fleet => fleet::part(app).await,
        View::Approvals(role, filter) => approvals::part(app, *role, filter).await,
        View::Hosts(ids) => hosts::rows(app, ids).await,
        View::Host(id) => host::part(app, *id).await,
        View::Service => service::part(app).await,
    }
}
