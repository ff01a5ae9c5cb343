//! Who is there: this instance's lease, by which its siblings know it is alive.

mod lease;

pub use lease::Lease;
