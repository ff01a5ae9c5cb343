//! The environment of an instance: its variables, and the files that they name.

use std::{collections::BTreeMap, ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path};

use svc_sandbox::Identity;

/// An RSA key of 2048 bits, made by `openssl genpkey`. Generating one takes long. It is published
/// with the source: never use it for anything but tests.
pub const SIGNING_KEY: &str = include_str!("signing_key.pem");

/// Environment variables, as an instance reads them.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// What an instance needs; writes its certificate and signing key to `folder`.
    pub fn with_files(folder: &Path, database_url: &str) -> anyhow::Result<Self> {
        let server = Identity::server(&["localhost", "127.0.0.1"])?;
        let (certificate, key) = server.write(folder, "server")?;
        let jwt_key = folder.join("jwt_key.pem");
        write_private(&jwt_key, SIGNING_KEY)?;
        Ok(Self::default()
            .set("DATABASE_URL", database_url)
            .set("INGEST_TLS_CERT", certificate)
            .set("INGEST_TLS_KEY", key)
            .set("INGEST_JWT_KEY_FILE", jwt_key)
            .set("INGEST_BIND_ADDRESS", "127.0.0.1"))
    }

    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    pub fn unset(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(name).cloned()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &OsString)> {
        self.0.iter()
    }
}

/// Writes a file that only its owner may read, as the service requires of its key.
pub fn write_private(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}
