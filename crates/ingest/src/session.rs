//! Heartbeat streams: what is decided about them, from their opening to their end.
//!
//! A stream is run by its response's body ([`conversation`]). What the rest of the instance has
//! to say to it goes through its [`Inbox`], which holds at most one thing of each
//! kind, so that nothing can pile up however slow a client reads.

mod backstop;
mod close;
mod conversation;
mod hearing;
mod inbox;
mod open;
mod report;
mod slots;
mod stream;
mod table;
mod upkeep;

pub use backstop::Backstop;
pub use close::Closer;
pub(crate) use conversation::{Conversation, Outbox};
pub use hearing::Hearing;
pub use inbox::{Awaited, Ending, Inbox};
pub use open::{OpenError, Opener, OpenerPart};
pub use report::{Numbering, Rules, Violation};
pub(crate) use stream::converse;
pub use stream::{Authenticated, StreamContext};
pub use table::{Held, Sessions};
pub use upkeep::{Upkeep, drain};
