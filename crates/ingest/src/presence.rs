//! Who is there: this instance's lease, by which its siblings know it is alive, and
//! the sweep, by which the agents of a lost instance are known to be offline.

mod lease;
mod sweep;

pub use lease::Lease;
