//! What one agent may write: messages and rows, whichever stream brings them.
//!
//! A stream charges what it has read, and reads nothing while its agent is in debt. The debt belongs to the agent, so a
//! new stream gives no new burst. Each instance has a table of its own.

use std::time::Duration;

use svc_proto::contract::limits::{REPORT_BURST, REPORT_INTERVAL, ROW_BURST, ROW_INTERVAL};
use svc_store::AgentId;
use tokio::time::Instant;

use crate::rate::{Keyed, Rate};

#[derive(Debug)]
pub struct WriteLimits {
    messages: Keyed<AgentId>,
    /// Samples and gaps.
    rows: Keyed<AgentId>,
}

impl Default for WriteLimits {
    fn default() -> Self {
        Self {
            messages: Keyed::new(Rate::new(REPORT_INTERVAL, REPORT_BURST)),
            rows: Keyed::new(Rate::new(ROW_INTERVAL, ROW_BURST)),
        }
    }
}

impl WriteLimits {
    /// Charges one message with so many rows. Returns how long to read nothing from the agent.
    pub fn charge(&self, agent: AgentId, rows: usize, now: Instant) -> Duration {
        let message = self.messages.charge(agent, now, 1);
        let rows = match u32::try_from(rows).unwrap_or(u32::MAX) {
            0 => self.rows.debt(&agent, now),
            rows => self.rows.charge(agent, now, rows),
        };
        message.max(rows)
    }

    /// How long to read nothing from an agent whose stream begins.
    pub fn debt(&self, agent: AgentId, now: Instant) -> Duration {
        let messages = self.messages.debt(&agent, now);
        messages.max(self.rows.debt(&agent, now))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const REPORT: usize = 500;

    /// 7 days at an interval of 30 s.
    const WEEK: usize = 20_160;

    #[test]
    fn a_week_of_samples_takes_less_than_two_minutes() {
        let (limits, agent) = (WriteLimits::default(), AgentId(Uuid::nil()));
        let start = Instant::now();
        let mut now = start;
        for _ in 0..WEEK.div_ceil(REPORT) {
            now += limits.charge(agent, REPORT, now);
        }
        let took = now - start;
        assert!(
            took > Duration::from_mins(1) && took < Duration::from_mins(2),
            "{took:?}"
        );
    }

    #[test]
    fn messages_without_rows_are_charged_too() {
        let (limits, agent) = (WriteLimits::default(), AgentId(Uuid::nil()));
        let now = Instant::now();
        assert!((0..REPORT_BURST).all(|_| limits.charge(agent, 0, now).is_zero()));
        assert_eq!(limits.charge(agent, 0, now), REPORT_INTERVAL);
        assert_eq!(limits.debt(agent, now), REPORT_INTERVAL);
    }
}
