//! What samples leave out, as an operator wants it: whole parts, and mounts, file systems and interfaces by pattern.

use svc_proto::v1::Interface;

use super::disks::Mount;

/// The parts that a sample can do without, by the names of their fields. Without `disks`, no file system is asked.
pub const PARTS: [&str; 5] = [
    "disks",
    "interfaces",
    "block_devices",
    "pressure",
    "cpu_steal_ms",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub parts: Vec<String>,
    pub mounts: Vec<String>,
    pub file_systems: Vec<String>,
    pub interfaces: Vec<String>,
}

impl Filter {
    pub(super) fn has(&self, part: &str) -> bool {
        !self.parts.iter().any(|left_out| left_out == part)
    }

    /// An ignored file system is not even asked, so it cannot hang.
    pub(super) fn mount(&self, mount: &Mount) -> bool {
        let is_ignored =
            any(&self.mounts, &mount.place()) || any(&self.file_systems, mount.fs_type());
        self.has("disks") && !is_ignored
    }

    pub(super) fn interface(&self, interface: &Interface) -> bool {
        !any(&self.interfaces, &interface.name)
    }
}

fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

/// `*` stands for any characters, also for none. The earliest place of each part leaves the most for the parts after it, so no
/// other place has to be tried.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, letter by letter.
    fn defined(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), None) => defined(rest, text),
            (Some((b'*', rest)), Some((_, after))) => {
                defined(rest, text) || defined(pattern, after)
            }
            (Some((one, rest)), Some((other, after))) => one == other && defined(rest, after),
            _ => false,
        }
    }

    #[test]
    fn a_star_stands_for_any_characters_and_all_others_for_themselves() {
        for (pattern, text, is_match) in [
            ("veth*", "veth12", true),
            ("veth*", "eth0", false),
            ("/var/lib/*/merged", "/var/lib/docker/x/merged", true),
            ("/var/lib/*/merged", "/var/lib/merged", false),
            ("*", "", true),
            ("e?h0", "eth0", false),
            ("eth0", "eth01", false),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_defined(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(matches(&pattern, &text), defined(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
