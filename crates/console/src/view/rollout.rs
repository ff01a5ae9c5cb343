//! How rollouts are shown.

use svc_store::{RolloutRecord, RolloutState, Stage, UpdateStep};

use super::Share;

/// The class of a state's colour.
pub fn rollout_class(state: &RolloutState) -> &'static str {
    match state {
        RolloutState::Running => "active",
        RolloutState::Paused => "warn",
        RolloutState::Halted => "rejected",
        RolloutState::Done => "",
    }
}

/// The class of a step's colour.
pub fn step_class(step: &UpdateStep) -> &'static str {
    match step {
        UpdateStep::Approved => "active",
        UpdateStep::Refused => "rejected",
        UpdateStep::Unable => "warn",
        _ => "",
    }
}

/// Agents that approved the release, of those that were offered it.
pub fn approved(rollout: &RolloutRecord) -> Share {
    Share(rollout.approved as f64 / rollout.offered.max(1) as f64)
}

pub fn stage_text(stage: &Stage) -> String {
    match stage {
        Stage::Hosts(1) => "1 host".into(),
        Stage::Hosts(hosts) => format!("{hosts} hosts"),
        Stage::Percent(percent) => format!("{percent} % of the hosts"),
    }
}

/// The present stage, as `2 of 4`.
pub fn stage_of(rollout: &RolloutRecord) -> String {
    format!("{} of {}", rollout.stage + 1, rollout.stages.len())
}

/// How far a stage is, and in words.
pub fn stage_progress(rollout: &RolloutRecord, index: &usize) -> (Share, &'static str) {
    let present = usize::try_from(rollout.stage).unwrap_or(0);
    match rollout.state {
        RolloutState::Done => (Share(1.0), "done"),
        _ if *index < present => (Share(1.0), "done"),
        _ if *index > present => (Share(0.0), "to come"),
        _ => (approved(rollout), "now"),
    }
}

/// The command by which the system's package manager replaces an agent that cannot do so itself.
pub fn package_line(os: &str) -> &'static str {
    let os = os.to_ascii_lowercase();
    let is = |names: &str| names.split(' ').any(|name| os.contains(name));
    if is("debian ubuntu mint") {
        "sudo apt-get update && sudo apt-get install --only-upgrade svc-agent"
    } else if is("rocky red rhel centos alma fedora oracle amazon") {
        "sudo dnf upgrade svc-agent"
    } else {
        "apt-get install --only-upgrade svc-agent, or: dnf upgrade svc-agent"
    }
}
