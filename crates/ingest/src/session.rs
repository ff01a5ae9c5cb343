//! Heartbeat streams: what is decided about them, from their opening to their end.
//!
//! A stream is a task of its own ([`stream`]). What the rest of the instance has
//! to say to it goes through its [`Inbox`], which holds at most one thing of each
//! kind, so that nothing can pile up however slow a client reads.

mod backstop;
mod close;
mod hearing;
mod inbox;
mod open;
mod outbox;
mod report;
mod slots;
mod stream;
mod table;
mod upkeep;

pub use backstop::Backstop;
pub use close::Closer;
pub use hearing::Hearing;
pub use inbox::{Awaited, Ending, Inbox};
pub use open::{OpenError, Opener, OpenerPart};
pub use outbox::Outbox;
pub use report::{Numbering, Rules, Violation};
pub use stream::{Authenticated, StreamContext, run};
pub use table::{Held, Sessions};
pub use upkeep::{Upkeep, drain};
