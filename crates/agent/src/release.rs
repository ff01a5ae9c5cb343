//! Notices about newer versions of the agent. The agent downloads nothing.

use serde::{Deserialize, Serialize};
use svc_proto::v1::AgentRelease;

/// This version: what `scripts/version` says of a release, otherwise the workspace's.
pub const VERSION: &str = match option_env!("SVC_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// A newer version, and the URL of its binary for this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub version: String,
    pub url: String,
}

/// A notice, if the release is newer than this version. Text that could move a terminal's
/// cursor is ignored.
pub fn notice(release: &AgentRelease) -> Option<Notice> {
    let version = release.version.trim();
    let base = release.download_base_url.trim_end_matches('/');
    let harmless = |text: &str| !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if version.is_empty() || base.is_empty() || !harmless(version) || !harmless(base) {
        return None;
    }
    is_newer(version, VERSION).then(|| Notice {
        version: version.into(),
        url: url(base, version),
    })
}

/// `{base}/download/svc-agent/{version}/{os}/{arch}/svc-agent`, os and arch as Rust names them.
fn url(base: &str, version: &str) -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{base}/download/svc-agent/{version}/{os}/{arch}/svc-agent")
}

/// Compares the numbers; a release is newer than its candidates. A version without numbers counts as newer if it differs.
fn is_newer(offered: &str, own: &str) -> bool {
    let order = |version: &str| -> Option<(Vec<u64>, bool)> {
        let version = version.trim_start_matches('v');
        let version = version.split('+').next()?;
        let core = version.split('-').next()?;
        let core = core.split('.').map(|part| part.parse().ok());
        Some((core.collect::<Option<_>>()?, !version.contains('-')))
    };
    match (order(offered), order(own)) {
        (Some(offered), Some(own)) => offered > own,
        _ => offered != own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_version_is_a_notice() {
        for (offered, newer) in [
            ("1.0.1", true),
            ("1.0.0", false),
            ("0.9.9", false),
            ("1.10.0", true),
            ("v2", true),
            ("edge", true),
        ] {
            assert_eq!(is_newer(offered, "1.0.0"), newer, "{offered}");
        }
        assert!(is_newer("1.0.0", "1.0.0-rc.1"));
        assert!(!is_newer("1.0.0-rc.1", "1.0.0"));
    }

    #[test]
    fn the_url_begins_with_the_base_url() {
        let release = |version: &str, base: &str| AgentRelease {
            version: version.into(),
            download_base_url: base.into(),
        };
        let notice = notice(&release("99.0.0", "https://fleet.example/app/")).unwrap();
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let wanted =
            format!("https://fleet.example/app/download/svc-agent/99.0.0/{os}/{arch}/svc-agent");
        assert_eq!(notice.url, wanted);
        assert_eq!(super::notice(&release("", "https://fleet.example")), None);
        assert_eq!(super::notice(&release("99\n", "https://x\u{1b}[2J")), None);
    }
}
