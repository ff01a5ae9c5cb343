//! The views that people watch: one reader for each different view, however many watch it.
//!
//! Viewers of the same view share its reader, so that 200 people who look at the fleet cost what one
//! costs. A view is read at most every [`PERIOD`], more rarely when many different views are open. The
//! reader and the streams are pages (`pages::live`); here is what they share.

mod filter;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_common::sync::lock;
use tokio::sync::watch;

pub use filter::Filter;
pub use view::View;

use crate::{
    slots::{Slot, Slots},
    telemetry::Metrics,
};

const PERIOD: Duration = Duration::from_secs(5);
/// The period grows by this for each open view: 200 views are read every 10 s, 20 a second.
const PERIOD_PER_VIEW: Duration = Duration::from_millis(50);
/// Different views at once. A viewer beyond gets no live updates, and a page all the same.
const MAX_VIEWS: usize = 2000;
const MAX_STREAMS: usize = 3000;
/// Of one person, whose every tab has one: the others keep theirs.
const MAX_STREAMS_EACH: usize = 40;

pub type Rendered = Arc<str>;

/// The views that are open.
#[derive(Clone, Debug)]
pub struct Hub {
    views: Arc<Mutex<HashMap<View, watch::Sender<Rendered>>>>,
    streams: Arc<Slots<String>>,
    metrics: Metrics,
}

impl Hub {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            views: Arc::default(),
            streams: Arc::new(Slots::new(MAX_STREAMS)),
            metrics,
        }
    }

    /// A stream of this person, unless there are too many.
    pub fn enter(&self, person: &str) -> Option<Slot<String>> {
        self.streams.take(person.to_owned(), MAX_STREAMS_EACH)
    }

    /// Joins the viewers of `view`, unless too many views are open. The first viewer gets true, and has to
    /// start the reader.
    pub fn join(&self, view: &View) -> Option<(watch::Receiver<Rendered>, bool)> {
        let mut views = lock(&self.views);
        if let Some(shared) = views.get(view) {
            return Some((shared.subscribe(), false));
        }
        if views.len() >= MAX_VIEWS {
            return None;
        }
        let (sender, receiver) = watch::channel(Rendered::from(""));
        views.insert(view.clone(), sender);
        self.metrics.live_views.inc();
        Some((receiver, true))
    }

    /// Removes the view if nobody watches it; its reader ends then. Joining happens under the same lock:
    /// a viewer who joins before keeps the view, and one who joins after makes it again.
    pub fn leave_if_unwatched(&self, view: &View) -> bool {
        let mut views = lock(&self.views);
        let unwatched = views.get(view).is_none_or(|shared| shared.is_closed());
        if unwatched && views.remove(view).is_some() {
            self.metrics.live_views.dec();
        }
        unwatched
    }

    pub fn publish(&self, view: &View, html: String) {
        if let Some(shared) = lock(&self.views).get(view) {
            shared.send_if_modified(|shown| {
                let changed = without_ages(shown) != without_ages(&html);
                if changed {
                    *shown = html.into();
                }
                changed
            });
        }
    }

    /// How long the reader of a view waits.
    pub fn period(&self) -> Duration {
        let views = u32::try_from(lock(&self.views).len()).unwrap_or(u32::MAX);
        PERIOD.max(PERIOD_PER_VIEW * views)
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

#[cfg(test)]
mod tests {
    use super::without_ages;

    #[test]
    fn a_time_that_grows_older_is_no_change() {
        let row = |age: &str, cpu: &str| {
            let row = format!("<td><time datetime=\"x\" data-ago>{age}</time></td><td>{cpu}</td>");
            without_ages(&row)
        };
        assert_eq!(row("1 s ago", "5 %"), row("9 s ago", "5 %"));
        assert_ne!(row("1 s ago", "5 %"), row("1 s ago", "6 %"));
    }
}
