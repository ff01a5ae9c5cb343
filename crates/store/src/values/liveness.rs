//! Whether an identity is in use, by what the database can prove.

use super::text_enum::text_enum;

text_enum! {
    /// The SQL function `agent_liveness` decides.
    pub enum Liveness {
        Offline = "offline",
        /// It counts as online, without a proof: a grace period, a drain, a lost instance, or a
        /// stream that is silent.
        Presumed = "presumed",
        /// A live instance holds its stream. Within the last interval the stream was opened, or it
        /// brought a message after another machine had presented the identity.
        Heard = "heard",
    }
    else Presumed
}
