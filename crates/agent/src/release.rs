//! This version, and notices about newer ones for people. What an agent installs by itself is in [`update`](crate::update).

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use svc_proto::v1::AgentRelease;

/// What `scripts/version` says of a release, otherwise the workspace's version.
const VERSION: &str = match option_env!("SVC_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// This version.
pub fn version() -> &'static str {
    static OWN: OnceLock<&str> = OnceLock::new();
    OWN.get_or_init(|| appended().unwrap_or(VERSION))
}

/// This version as a number; `None`: it is not one.
pub fn own_version() -> Option<svc_release::Version> {
    version().parse().ok()
}

/// The tests of updates need programs that differ in their version: they append one to copies of a debug build.
#[cfg(debug_assertions)]
fn appended() -> Option<&'static str> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open("/proc/self/exe").ok()?;
    file.seek(SeekFrom::End(-64)).ok()?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    let (_, version) = end.split_once("\nSVC_AGENT_VERSION=")?;
    Some(String::leak(version.trim_end().to_owned()))
}

#[cfg(not(debug_assertions))]
fn appended() -> Option<&'static str> {
    None
}

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
    is_newer(version, self::version()).then(|| Notice {
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
