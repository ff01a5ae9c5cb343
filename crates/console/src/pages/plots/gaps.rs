//! Where samples are missing, and why.
//!
//! Numbers tell two cases apart. If an agent's numbers jump, samples were taken and are not stored: the
//! reason is recorded. If they go on without a jump, none were taken: the agent or the machine was off.

use serde::Serialize;
use svc_store::{GapReason, SamplePoint};

/// A pause longer than this many usual distances is a gap.
const USUAL: i64 = 3;
/// Agents report every hour at most rarely; without two samples nothing is usual.
const DEFAULT_DISTANCE: i64 = 30;

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Gap {
    /// The last sample before, and the first after.
    pub from: i64,
    pub to: i64,
    pub reason: String,
}

impl Gap {
    pub fn unexplained(from: i64, to: i64) -> Self {
        let reason = "no samples".to_owned();
        Self { from, to, reason }
    }
}

/// The gaps between `samples`, which are in the order of their times, and after the last one.
pub fn gaps(samples: &[SamplePoint], reasons: &[GapReason], now: i64) -> Vec<Gap> {
    let longest = usual_distance(samples) * USUAL;
    let pairs = samples.iter().zip(samples.iter().skip(1));
    let mut found: Vec<Gap> = pairs
        .filter_map(|(last, next)| between(last, next, reasons, longest))
        .collect();
    if let Some(last) = samples.last() {
        let from = last.sampled_at.as_second();
        if now - from > longest {
            let reason = "nothing has arrived since".to_owned();
            found.push(Gap {
                from,
                to: now,
                reason,
            });
        }
    }
    found
}

fn between(
    last: &SamplePoint,
    next: &SamplePoint,
    reasons: &[GapReason],
    longest: i64,
) -> Option<Gap> {
    let (from, to) = (last.sampled_at.as_second(), next.sampled_at.as_second());
    let jumped = last.agent_id == next.agent_id && next.seq > last.seq + 1;
    if !jumped && to - from <= longest {
        return None;
    }
    let recorded = reasons.iter().find(|gap| {
        gap.agent_id == last.agent_id && gap.first_seq <= next.seq && gap.last_seq >= last.seq
    });
    let reason = match recorded {
        Some(gap) if jumped => format!("{}: {}", gap.kind, gap.reason),
        _ if last.agent_id != next.agent_id => "another agent took over".to_owned(),
        _ if jumped => "samples are missing".to_owned(),
        _ => "no samples were taken: the agent or the machine was off".to_owned(),
    };
    Some(Gap { from, to, reason })
}

/// The median distance of two samples, in seconds.
fn usual_distance(samples: &[SamplePoint]) -> i64 {
    let times = samples.iter().map(|sample| sample.sampled_at.as_second());
    let later = times.clone().skip(1);
    let mut distances: Vec<i64> = times.zip(later).map(|(a, b)| b - a).collect();
    distances.sort_unstable();
    let median = distances.get(distances.len() / 2).copied();
    median.unwrap_or(DEFAULT_DISTANCE).max(1)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use svc_store::AgentId;
    use uuid::Uuid;

    use super::*;

    fn sample(seconds: i64, seq: i64) -> SamplePoint {
        SamplePoint {
            sampled_at: Timestamp::from_second(seconds).unwrap(),
            agent_id: AgentId(Uuid::nil()),
            seq,
            cpu_percent: 1.0,
            load_1m: 1.0,
            memory_used_bytes: 1,
            memory_total_bytes: 2,
            network_rx_bytes: 1,
            network_tx_bytes: 1,
            disks: Vec::new(),
        }
    }

    fn found(samples: &[SamplePoint], now: i64) -> Vec<(i64, i64, String)> {
        let reason = GapReason {
            agent_id: AgentId(Uuid::nil()),
            first_seq: 4,
            last_seq: 9,
            kind: "declared".into(),
            reason: "the spool was full".into(),
        };
        let gaps = gaps(samples, &[reason], now);
        gaps.into_iter()
            .map(|gap| (gap.from, gap.to, gap.reason))
            .collect()
    }

    #[test]
    fn a_jump_of_numbers_has_the_recorded_reason() {
        let samples = [sample(0, 1), sample(30, 2), sample(60, 3), sample(90, 10)];
        let expected = (60, 90, "declared: the spool was full".to_owned());
        assert_eq!(found(&samples, 100), [expected]);
    }

    #[test]
    fn a_pause_without_a_jump_means_that_nothing_was_measured() {
        let samples = [sample(0, 1), sample(30, 2), sample(60, 3), sample(600, 4)];
        let gaps = found(&samples, 610);
        assert_eq!(gaps.len(), 1);
        assert!(gaps[0].2.starts_with("no samples were taken"), "{gaps:?}");
    }

    #[test]
    fn silence_until_now_is_a_gap() {
        let samples = [sample(0, 1), sample(30, 2), sample(60, 3)];
        assert!(found(&samples, 100).is_empty());
        let expected = (60, 1000, "nothing has arrived since".to_owned());
        assert_eq!(found(&samples, 1000), [expected]);
    }
}
