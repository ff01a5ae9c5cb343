//! The firmware's fields in /sys/class/dmi/id.
//!
//! Only root can read the hardware UUID, and the agent does not run as root. Before its unit
//! starts the agent, it copies the file to the unit's folder in /run. An administrator can
//! give a machine or a container a UUID of its own, as the systemd credential `product_uuid`.

use std::{env, fs::File, io::Read, path::PathBuf};

use crate::machine::Machine;

const NAME: &str = "product_uuid";
const MAX_UUID: u64 = 64;

/// In a container the firmware is that of its node, and only the administrator's UUID counts.
pub(super) fn product_uuid(machine: &Machine, is_container: bool) -> String {
    let given = read_in("CREDENTIALS_DIRECTORY");
    let firmware = || {
        let uuid = field(machine, NAME);
        if uuid.is_empty() {
            read_in("RUNTIME_DIRECTORY")
        } else {
            Some(uuid)
        }
    };
    let found = given.or_else(|| if is_container { None } else { firmware() });
    found.unwrap_or_default()
}

/// A field; empty if this user cannot read it.
pub(super) fn field(machine: &Machine, name: &str) -> String {
    machine.line(&format!("/sys/class/dmi/id/{name}"))
}

/// The UUID in a folder that systemd names in a variable.
fn read_in(variable: &str) -> Option<String> {
    let folder = PathBuf::from(env::var_os(variable)?);
    let mut text = String::new();
    let file = File::open(folder.join(NAME)).ok()?;
    file.take(MAX_UUID).read_to_string(&mut text).ok()?;
    is_uuid(text.trim()).then(|| text.trim().to_owned())
}

fn is_uuid(text: &str) -> bool {
    let digits = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    text.len() == 36 && text.bytes().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_well_formed_uuid_is_accepted() {
        assert!(is_uuid("4C4C4544-0042-3510-8054-B7C04F563232"));
        assert!(!is_uuid("none") && !is_uuid("") && !is_uuid(&"x".repeat(36)));
    }
}
