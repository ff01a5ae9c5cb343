//! The distribution and its version, from os-release: `debian`, `12`.

use crate::machine::{Machine, clean};

pub(super) struct Release {
    pub id: String,
    pub version: String,
}

pub(super) fn read(machine: &Machine) -> Release {
    let files = ["/etc/os-release", "/usr/lib/os-release"];
    let texts = files.into_iter().map(|file| machine.text(file));
    let text = texts.into_iter().find(|text| !text.is_empty());
    let text = text.unwrap_or_default();
    Release {
        id: value(&text, "ID").unwrap_or_else(|| "linux".into()),
        version: value(&text, "VERSION_ID")
            .or_else(|| value(&text, "BUILD_ID"))
            .unwrap_or_default(),
    }
}

/// Removes quotes as a shell does, which is enough for these keys.
fn value(text: &str, key: &str) -> Option<String> {
    let mut assignments = text.lines().filter_map(|line| line.trim().split_once('='));
    let (_, value) = assignments.find(|(name, _)| *name == key)?;
    let value = clean(value.trim().trim_matches(['"', '\'']));
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    #[test]
    fn distribution_and_version_are_read_from_os_release() {
        for (text, id, version) in [
            ("NAME=\"x\"\nVERSION_ID=\"12\"\nID=debian\n", "debian", "12"),
            ("ID=\"rhel\"\nVERSION_ID='9.4'\n", "rhel", "9.4"),
            ("ID=arch\nBUILD_ID=rolling\n", "arch", "rolling"),
            ("# nothing\nID=\n", "linux", ""),
        ] {
            let (_dir, machine) = machine(&[("/usr/lib/os-release", text)]);
            let release = read(&machine);
            assert_eq!(
                (release.id.as_str(), release.version.as_str()),
                (id, version)
            );
        }
    }
}
