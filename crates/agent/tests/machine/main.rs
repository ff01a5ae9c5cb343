//! What only a real machine shows: processes that are killed, disks that are full,
//! and whether other tools see what we see.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of tests may fail as loudly as the tests"
)]

mod agreement;
mod child;
mod full;
mod killed;
