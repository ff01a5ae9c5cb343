//! What the firmware says: /sys/class/dmi/id.
//!
//! The hardware's UUID is root's alone to read. The agent does not run as root: its
//! systemd unit has systemd read the file and hand it over as a credential.

use std::{env, fs::File, io::Read, path::PathBuf};

use crate::machine::{Machine, clean};

const MAX_UUID: u64 = 64;

pub(super) fn product_uuid(machine: &Machine) -> String {
    let uuid = field(machine, "product_uuid");
    if uuid.is_empty() {
        credential("product_uuid").unwrap_or_default()
    } else {
        uuid
    }
}

/// One of the fields that everybody may read, or as root any.
pub(super) fn field(machine: &Machine, name: &str) -> String {
    machine.line(&format!("/sys/class/dmi/id/{name}"))
}

fn credential(name: &str) -> Option<String> {
    let folder = PathBuf::from(env::var_os("CREDENTIALS_DIRECTORY")?);
    let mut text = String::new();
    let file = File::open(folder.join(name)).ok()?;
    file.take(MAX_UUID).read_to_string(&mut text).ok()?;
    Some(clean(text.trim()))
}
