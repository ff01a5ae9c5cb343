//! Whether an agent has a stream, and why that last changed.

use super::text_enum::{Stored, text_enum};

text_enum! {
    pub enum Presence {
        Online = "online",
        Offline = "offline",
    }
}

text_enum! {
    /// Why the presence of an agent last changed.
    pub enum PresenceCause {
        Connected = "connected",
        Goodbye = "goodbye",
        Lost = "lost",
        Drained = "drained",
        InstanceLost = "instance lost",
        Replaced = "replaced",
        Refused = "refused",
    }
}

impl Stored<Presence> {
    pub fn is_online(&self) -> bool {
        self.known() == Some(Presence::Online)
    }
}
