//! Live pages: one stream of server-sent events a tab, and one reader for each different view.
//!
//! Viewers of the same view share its reader, so that 200 people who look at the fleet cost what one
//! costs. A view is read at most every [`PERIOD`], more rarely when many different views are open, and
//! sooner when the feed has news for it. What is sent are parts of the page, which htmx morphs in place.

mod stream;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use svc_common::sync::lock;
use tokio::{sync::watch, time::Instant};

pub use stream::live;
pub use view::View;

use crate::{
    app::App,
    places::{Place, Places},
    telemetry::Metrics,
};

const PERIOD: Duration = Duration::from_secs(5);
/// The period grows by this for each open view: 200 views are read every 10 s, 20 a second.
const PERIOD_PER_VIEW: Duration = Duration::from_millis(50);
/// News make a view due early, but never more often than this.
const PAUSE: Duration = Duration::from_secs(1);
/// Different views at once. A viewer beyond gets no live updates, and a page all the same.
const MAX_VIEWS: usize = 2000;
const MAX_STREAMS: usize = 3000;
/// Of one person: every tab has one. Nobody keeps others from live pages.
const MAX_STREAMS_EACH: usize = 40;

type Rendered = Arc<str>;
type Table = HashMap<View, watch::Sender<Rendered>>;

/// The views that are open.
#[derive(Clone, Debug)]
pub struct Hub {
    views: Arc<Mutex<Table>>,
    streams: Arc<Places<String>>,
    metrics: Metrics,
}

impl Hub {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            views: Arc::default(),
            streams: Arc::new(Places::new(MAX_STREAMS)),
            metrics,
        }
    }

    /// A stream of this person, unless there are too many.
    fn enter(&self, person: &str) -> Option<Place<String>> {
        self.streams.take(person.to_owned(), MAX_STREAMS_EACH)
    }

    /// Joins the viewers of `view`, or is the first of them.
    fn watch(&self, app: &App, view: View) -> Option<watch::Receiver<Rendered>> {
        let mut views = self.lock();
        if let Some(shared) = views.get(&view) {
            return Some(shared.subscribe());
        }
        if views.len() >= MAX_VIEWS {
            return None;
        }
        let (sender, receiver) = watch::channel(Rendered::from(""));
        views.insert(view.clone(), sender);
        self.metrics.live_views.set(count(views.len()));
        tokio::spawn(read(self.clone(), app.clone(), view));
        Some(receiver)
    }

    /// Removes the view if nobody watches it. Joining happens under the same lock: whoever joins
    /// before keeps the view, and whoever joins after makes it again.
    fn leave_if_unwatched(&self, view: &View) -> bool {
        let mut views = self.lock();
        let unwatched = views.get(view).is_none_or(|shared| shared.is_closed());
        if unwatched {
            views.remove(view);
            self.metrics.live_views.set(count(views.len()));
        }
        unwatched
    }

    fn publish(&self, view: &View, html: String) {
        if let Some(shared) = self.lock().get(view) {
            shared.send_if_modified(|shown| {
                let changed = without_ages(shown) != without_ages(&html);
                if changed {
                    *shown = html.into();
                }
                changed
            });
        }
    }

    fn period(&self) -> Duration {
        let views = u32::try_from(self.lock().len()).unwrap_or(u32::MAX);
        PERIOD.max(PERIOD_PER_VIEW * views)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.views)
    }
}

/// Reads a view while somebody watches it. A failed read changes nothing: the feed says what is stale.
async fn read(hub: Hub, app: App, view: View) {
    let (mut news, stop) = (app.news.clone(), app.stopping());
    let mut shown = news.borrow().version;
    loop {
        let due = Instant::now() + hub.period();
        tokio::time::sleep(PAUSE).await;
        // What changed during the pause counts too: the version is compared, not the arrival.
        let early = news.wait_for(|news| view.follows_news() && news.version != shown);
        let early = async {
            if early.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(due) => {}
            () = early => {}
        }
        if hub.leave_if_unwatched(&view) {
            return;
        }
        hub.metrics.live_renders.inc();
        shown = news.borrow().version;
        match view.render(&app).await {
            Ok(html) => hub.publish(&view, html),
            Err(error) => tracing::debug!(%error, "a live view cannot be read"),
        }
    }
}

/// A page without its relative times, which change by themselves: the browser counts them on, and
/// nothing has to be sent.
fn without_ages(html: &str) -> String {
    let mut parts = html.split(" data-ago>");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut kept, part| {
        kept.push_str(part.split_once('<').map_or(part, |(_, rest)| rest));
        kept
    })
}

fn count(views: usize) -> i64 {
    i64::try_from(views).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::without_ages;

    #[test]
    fn a_time_that_grows_older_is_no_change() {
        let row = |age: &str, cpu: &str| {
            format!("<td><time datetime=\"x\" data-ago>{age}</time></td><td>{cpu}</td>")
        };
        assert_eq!(
            without_ages(&row("1 s ago", "5 %")),
            without_ages(&row("9 s ago", "5 %"))
        );
        assert_ne!(
            without_ages(&row("1 s ago", "5 %")),
            without_ages(&row("1 s ago", "6 %"))
        );
    }
}
