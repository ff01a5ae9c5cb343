//! Where samples are missing, and why.
//!
//! Numbers tell two cases apart. If an agent's numbers jump, samples were taken and are not stored: the
//! reason is recorded. If they go on without a jump, none were taken: the agent or the machine was off.
//! Rollups have no numbers: what is known of the time of the gap explains it.

use jiff::Timestamp;
use serde::Serialize;
use svc_store::{GapRecord, HostState, Presence, SampleColumns};

use super::Stretch;

/// A pause longer than this many median distances is a gap.
const LONGEST: i64 = 3;
/// Agents report every 30 seconds by default. Fewer than two samples have no distance.
const DEFAULT_DISTANCE: i64 = 30;
const OFF: &str = "no samples were taken: the agent or the machine was off";

#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Gap {
    /// The last sample before, and the first after.
    pub from: i64,
    pub to: i64,
    pub reason: String,
}

impl Gap {
    pub fn new(from: i64, to: i64, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { from, to, reason }
    }
}

/// The gaps between `samples` and after the last one.
pub fn gaps(samples: &SampleColumns, reasons: &[GapRecord], now: i64, silence: &str) -> Vec<Gap> {
    let longest = LONGEST * median_distance(samples);
    let pairs = 1..samples.seq.len();
    let found = pairs.filter_map(|next| between(samples, next, reasons, longest));
    let last = samples.sampled_at.last().map(|at| at.as_second());
    let last = last.filter(|last| now - last > longest);
    found
        .chain(last.map(|last| Gap::new(last, now, silence)))
        .collect()
}

/// Why nothing arrives from a host, for the gap that lasts until now.
pub fn silence(host: &HostState) -> String {
    let since = |at: Timestamp| at.strftime("since %Y-%m-%d %H:%M UTC");
    match (host.retired_at, host.presence, host.presence_since) {
        (Some(at), ..) => format!("retired {}", since(at)),
        (None, Some(Presence::Offline), Some(at)) => match &host.cause {
            Some(cause) => format!("offline {} ({cause})", since(at)),
            None => format!("offline {}", since(at)),
        },
        (None, Some(Presence::Moved), Some(at)) => format!("in another cell {}", since(at)),
        (None, Some(_), _) => "nothing has arrived since".into(),
        (None, None, _) => "no active agent".into(),
    }
}

/// The reason of a gap between rollups: what presence says, and what was recorded until `step` seconds after its end, when the
/// agent was back.
pub fn explained(
    (from, to): (i64, i64),
    step: i64,
    presence: &[Stretch],
    reasons: &[GapRecord],
) -> Gap {
    let overlap = |part: &&Stretch| part.to.min(to) - part.from.max(from);
    let offline = presence.iter().filter(|part| !part.online);
    let offline = offline.max_by_key(overlap);
    let offline = offline.filter(|part| overlap(part) > 0);
    let recorded = reasons.iter().find(|gap| {
        let at = gap.recorded_at.as_second();
        at >= from && at < to + step
    });
    let known = [
        offline.map(|part| format!("offline ({})", part.reason)),
        recorded.map(written),
    ];
    let known: Vec<String> = known.into_iter().flatten().collect();
    match known.is_empty() {
        true => Gap::new(from, to, OFF),
        false => Gap::new(from, to, known.join("; ")),
    }
}

fn written(gap: &GapRecord) -> String {
    format!("{}: {}", gap.kind, gap.reason)
}

/// The gap between a sample and the one before.
fn between(
    samples: &SampleColumns,
    next: usize,
    reasons: &[GapRecord],
    longest: i64,
) -> Option<Gap> {
    let second = |place: usize| samples.sampled_at[place].as_second();
    let (from, to) = (second(next - 1), second(next));
    let (last_seq, next_seq) = (samples.seq[next - 1], samples.seq[next]);
    let (agent, next_agent) = (samples.agent_id[next - 1], samples.agent_id[next]);
    let jumped = agent == next_agent && next_seq > last_seq + 1;
    if !jumped && to - from <= longest {
        return None;
    }
    let recorded = reasons
        .iter()
        .find(|gap| gap.agent_id == agent && gap.first_seq <= next_seq && gap.last_seq >= last_seq);
    let reason = match recorded {
        Some(gap) if jumped => {
            return Some(Gap::new(from, to, written(gap)));
        }
        _ if agent != next_agent => "another agent took over",
        _ if jumped => "samples are missing",
        _ => OFF,
    };
    Some(Gap::new(from, to, reason))
}

/// In seconds.
fn median_distance(samples: &SampleColumns) -> i64 {
    let pairs = samples.sampled_at.windows(2);
    let distance = |pair: &[Timestamp]| pair[1].as_second() - pair[0].as_second();
    let mut distances: Vec<i64> = pairs.map(distance).collect();
    distances.sort_unstable();
    let median = distances.get(distances.len() / 2).copied();
    median.unwrap_or(DEFAULT_DISTANCE).max(1)
}

#[cfg(test)]
mod tests {
    use svc_store::{AgentId, GapKind};
    use uuid::Uuid;

    use super::*;

    /// Samples by their seconds and numbers.
    fn samples(of: &[(i64, i64)]) -> SampleColumns {
        let at = |(second, _): &(i64, i64)| Timestamp::from_second(*second).unwrap();
        SampleColumns {
            sampled_at: of.iter().map(at).collect(),
            agent_id: vec![AgentId(Uuid::nil()); of.len()],
            seq: of.iter().map(|(_, seq)| *seq).collect(),
            ..SampleColumns::default()
        }
    }

    fn reason(recorded_at: i64) -> GapRecord {
        GapRecord {
            agent_id: AgentId(Uuid::nil()),
            first_seq: 4,
            last_seq: 9,
            kind: GapKind::Declared,
            reason: "the spool was full".into(),
            recorded_at: Timestamp::from_second(recorded_at).unwrap(),
        }
    }

    fn found(of: &[(i64, i64)], now: i64) -> Vec<(i64, i64, String)> {
        let gaps = gaps(&samples(of), &[reason(0)], now, "offline");
        gaps.into_iter()
            .map(|gap| (gap.from, gap.to, gap.reason))
            .collect()
    }

    #[test]
    fn a_jump_of_numbers_has_the_recorded_reason() {
        let samples = [(0, 1), (30, 2), (60, 3), (90, 10)];
        let expected = (60, 90, "declared: the spool was full".to_owned());
        assert_eq!(found(&samples, 100), [expected]);
    }

    #[test]
    fn a_pause_without_a_jump_means_that_nothing_was_measured() {
        let samples = [(0, 1), (30, 2), (60, 3), (600, 4)];
        let gaps = found(&samples, 610);
        assert_eq!(gaps.len(), 1);
        assert!(gaps[0].2.starts_with("no samples were taken"), "{gaps:?}");
    }

    #[test]
    fn silence_until_now_is_a_gap() {
        let samples = [(0, 1), (30, 2), (60, 3)];
        assert!(found(&samples, 100).is_empty());
        let expected = (60, 1000, "offline".to_owned());
        assert_eq!(found(&samples, 1000), [expected]);
    }

    #[test]
    fn a_gap_between_rollups_has_the_reasons_of_its_time() {
        let stretch = |from, to, online, reason: &str| Stretch {
            from,
            to,
            online,
            reason: reason.into(),
        };
        let presence = [
            stretch(0, 100, true, "connected"),
            stretch(100, 110, false, "goodbye"),
            stretch(110, 120, true, "connected"),
            stretch(120, 300, false, "lost"),
        ];
        let reason_of = |from, to, recorded: &[GapRecord]| {
            explained((from, to), 10, &presence, recorded).reason
        };
        assert_eq!(reason_of(90, 200, &[]), "offline (lost)");
        let full = "offline (lost); declared: the spool was full";
        assert_eq!(reason_of(90, 200, &[reason(205)]), full);
        assert_eq!(reason_of(90, 200, &[reason(210)]), "offline (lost)");
        assert_eq!(reason_of(10, 90, &[reason(9)]), OFF);
    }

    #[test]
    fn a_host_that_is_silent_says_why() {
        let mut host = HostState {
            hostname: "web-1".into(),
            retired_at: None,
            presence: Some(Presence::Offline),
            presence_since: Some(Timestamp::from_second(86_400).unwrap()),
            cause: Some("lost".into()),
        };
        assert_eq!(silence(&host), "offline since 1970-01-02 00:00 UTC (lost)");
        host.presence = Some(Presence::Online);
        assert_eq!(silence(&host), "nothing has arrived since");
        host.presence = None;
        assert_eq!(silence(&host), "no active agent");
        host.retired_at = host.presence_since;
        assert_eq!(silence(&host), "retired since 1970-01-02 00:00 UTC");
    }
}
