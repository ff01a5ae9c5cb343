//! A limit for log lines that anyone can cause: a few at once, then one in ten seconds, with the number of those that were
//! left out. Otherwise a client that has proven nothing could fill the disk, and hide what matters.
//!
//! Each such line has a limit of its own, a `static` beside it, so that a flood of one kind does not hide another. The
//! log belongs to the process, and so do its limits.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::{rate::Rate, sync::lock};

const LINES: Rate = Rate::new(Duration::from_secs(10), 5);

#[derive(Debug)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When all lines of the burst are free again; `None` before the first line.
    full_at: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    pub const fn new() -> Self {
        Self(Mutex::new(State {
            full_at: None,
            suppressed: 0,
        }))
    }

    /// Calls `log` with the number of lines that were left out since the last one, unless this one is left out too.
    pub fn line(&self, log: impl FnOnce(u64)) {
        if let Some(suppressed) = self.take(Instant::now()) {
            log(suppressed);
        }
    }

    fn take(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let full_at = state.full_at.get_or_insert(now);
        if LINES.take(full_at, now).is_err() {
            state.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_a_few_lines_and_the_next_one_counts_the_rest() {
        let (limit, now) = (LogLimit::new(), Instant::now());
        let lines: Vec<_> = (0..100).filter_map(|_| limit.take(now)).collect();
        assert_eq!(lines, [0; 5]);
        let later = now + Duration::from_secs(10);
        assert_eq!(limit.take(later), Some(95));
        assert_eq!(limit.take(later), None);
        assert_eq!(limit.take(later + Duration::from_mins(1)), Some(1));
    }
}
