//! How many reports one transaction takes.
//!
//! On a slow server a whole batch may not be stored within the time limit of a statement, and would not be the next
//! time either. So the number is halved whenever a transaction exceeds the limit. It grows again only after
//! transactions that were so quick that one of twice the size stays within the limit.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// A fifth of the time limit of a statement.
const QUICK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PartSize(AtomicUsize);

impl Default for PartSize {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl PartSize {
    /// The beginning of `part` that one transaction takes, and the rest.
    pub(super) fn cut(&self, part: Range<usize>) -> (Range<usize>, Range<usize>) {
        let middle = part.start.saturating_add(self.most()).min(part.end);
        (part.start..middle, middle..part.end)
    }

    /// A transaction of this many reports exceeded the time limit.
    pub(super) fn late(&self, reports: usize) {
        self.0.store((reports / 2).max(1), Ordering::Relaxed);
    }

    /// A transaction stored this many reports in this time.
    pub(super) fn stored(&self, reports: usize, took: Duration) {
        if took < QUICK && reports >= self.most() {
            self.0.store(reports.saturating_mul(2), Ordering::Relaxed);
        }
    }

    fn most(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_part_is_halved_and_quick_ones_double_it_again() {
        let size = PartSize::default();
        assert_eq!(size.cut(0..2000), (0..2000, 2000..2000));
        size.late(2000);
        size.late(1000);
        assert_eq!(size.cut(700..2000), (700..1200, 1200..2000));
        assert_eq!(size.cut(1900..2000), (1900..2000, 2000..2000));
        size.stored(500, QUICK);
        assert_eq!(size.most(), 500, "a part of 1,000 would be slow");
        size.stored(499, Duration::ZERO);
        assert_eq!(size.most(), 500, "says nothing about 500");
        size.stored(500, Duration::ZERO);
        assert_eq!(size.most(), 1000);
        (0..20).for_each(|_| size.late(size.most()));
        assert_eq!(size.cut(0..2), (0..1, 1..2), "never less than one");
    }
}
