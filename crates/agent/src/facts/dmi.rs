//! The firmware's fields in /sys/class/dmi/id.
//!
//! Only root can read the hardware UUID, and the agent does not run as root. Its systemd unit
//! lets systemd read the file and pass it to the agent as a credential.

use std::{env, fs::File, io::Read, path::PathBuf};

use crate::machine::Machine;

const MAX_UUID: u64 = 64;

pub(super) fn product_uuid(machine: &Machine) -> String {
    let uuid = field(machine, "product_uuid");
    if uuid.is_empty() {
        credential("product_uuid").unwrap_or_default()
    } else {
        uuid
    }
}

/// A field; empty if this user cannot read it.
pub(super) fn field(machine: &Machine, name: &str) -> String {
    machine.line(&format!("/sys/class/dmi/id/{name}"))
}

fn credential(name: &str) -> Option<String> {
    let folder = PathBuf::from(env::var_os("CREDENTIALS_DIRECTORY")?);
    let mut text = String::new();
    let file = File::open(folder.join(name)).ok()?;
    file.take(MAX_UUID).read_to_string(&mut text).ok()?;
    is_uuid(text.trim()).then(|| text.trim().to_owned())
}

/// On a machine without the file, the credential contains another word.
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
