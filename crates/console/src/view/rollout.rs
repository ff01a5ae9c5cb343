//! How rollouts are shown.

use svc_store::{RolloutRecord, RolloutState};

use super::Share;

/// The class of the colour of a rollout's state or an agent's step.
pub fn update_class(name: &dyn std::fmt::Display) -> &'static str {
    match name.to_string().as_str() {
        "running" | "approved" => "active",
        "paused" | "unable" => "warn",
        "halted" | "refused" => "rejected",
        _ => "",
    }
}

/// Agents that approved the release, of those that were offered it.
pub fn approved(rollout: &RolloutRecord) -> Share {
    Share(rollout.approved as f64 / rollout.offered.max(1) as f64)
}

/// How far a stage is, and in words.
pub fn stage_progress(rollout: &RolloutRecord, index: &usize) -> (Share, &'static str) {
    let present = usize::try_from(rollout.stage).unwrap_or(0);
    if rollout.state == RolloutState::Done || *index < present {
        (Share(1.0), "done")
    } else if *index > present {
        (Share(0.0), "to come")
    } else {
        (approved(rollout), "now")
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
