//! Sessions: the heartbeat streams of this instance, from their opening in the database to their end.
//!
//! A session is what the instance and the database know about a stream: its agent, its epoch, and an
//! [`Inbox`] through which the rest of the instance reaches it. The stream itself, with its messages, is
//! in `grpc::heartbeat`. Nothing here knows the wire protocol.
//!
//! In reading order: [`SessionTable`] and [`Inbox`], opening and closing in batches ([`Opener`],
//! [`Closer`]) after the client's key was checked ([`Pins`]), sequence numbers ([`Numbering`]), and what keeps sessions healthy: [`Upkeep`],
//! [`AckBackstop`], [`HintListener`], [`Orphans`], [`contests`] and [`drain`]; [`Offers`] of updates, with the [`Keys`] that
//! agents change to, settings ([`SettingsPart`]), trust anchors ([`TrustPass`]), and [`Moves`] to other cells.

mod backstop;
mod close;
pub mod contests;
mod drain;
mod end_reason;
pub mod held;
mod hints;
mod inbox;
mod keys;
mod moves;
mod next_keys;
mod numbering;
mod offers;
mod open;
mod orphans;
mod pins;
mod settings;
mod table;
mod trust;
mod upkeep;

pub use backstop::AckBackstop;
pub use close::Closer;
pub use drain::drain;
pub use end_reason::{EndReason, drained};
pub use hints::HintListener;
pub use inbox::{Inbox, Offer, PendingReport};
pub use keys::Keys;
pub use moves::{MoveBoard, Moves};
pub use next_keys::{NextKeys, StoredKey};
pub use numbering::{Entry, Numbering};
pub use offers::{Offers, Said, UpdateReports};
pub use open::{OPEN_TOLERANCE, OPEN_VALIDITY, OpenError, Opener, OpenerPart};
pub use orphans::Orphans;
pub use pins::{PinPart, Pins};
pub use settings::{SettingsPart, SettingsReports, settings_said};
pub use table::{Session, SessionKey, SessionTable};
pub use trust::{TrustPass, TrustReports};
pub use upkeep::Upkeep;
