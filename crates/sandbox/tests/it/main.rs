//! The sandbox against the real programs.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod death;
mod nats;
mod pki;
mod postgres;
mod proxy;

/// A temporary folder that PostgreSQL gets through to its own, as another user than we.
fn traversable_folder() -> tempfile::TempDir {
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let mut folder = tempfile::Builder::new();
    folder.permissions(everyone).tempdir().unwrap()
}
