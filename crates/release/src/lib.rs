//! What a release consists of: a signed manifest that names every file with its size and SHA-256, and a second one, for
//! agents that update themselves.
//!
//! The signature is Ed25519 over the exact bytes of the file, raw, in a file of its own (`release.json.sig`). OpenSSL
//! verifies it with nothing of ours, and docs/releasing.md has the line. The private key belongs to people, outside CI.

mod hours;
mod keys;
mod manifest;
mod update;

pub use hours::{Hours, HoursError};
pub use keys::{KeyError, PublicKey, SIGNATURE_LENGTH, SecretKey, hex};
pub use manifest::{Artefact, FILE, Kind, Manifest, ManifestError, digest, is_file_name};
/// A release candidate ranks below its release. Build numbers order builds of one version, so that a build after a release
/// (`1.2.3+45.gabcdef0`) ranks above it.
pub use semver::Version;
pub use update::{Binary, LARGEST_UPDATE, UPDATE_FILE, Update};
