//! The sandbox against the real programs.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod killed_parent;
mod nats;
mod pki;
mod postgres;

/// A temporary folder that PostgreSQL, which runs as another user, can enter.
fn traversable_folder() -> tempfile::TempDir {
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let mut folder = tempfile::Builder::new();
    folder.permissions(everyone).tempdir().unwrap()
}
