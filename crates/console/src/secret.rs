//! Random secrets: the cookies of sessions and the codes of one-time links. The database stores their SHA-256 only.

use std::fmt;

use aws_lc_rs::{
    digest::{SHA256, digest},
    error::Unspecified,
    rand,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// 32 random bytes in base64url.
#[derive(Clone, Debug)]
pub struct Secret(SecretString);

impl Secret {
    pub fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes)?;
        Ok(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// A secret that a client sent. Only its form is checked.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        (bytes.len() == 32).then(|| Self(text.into()))
    }

    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, self.0.expose_secret().as_bytes()).as_ref());
        hash
    }

    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The one-time link with this code. The fragment is not sent by browsers, so it reaches no server log and no Referer.
    pub fn link(&self, base_url: &Url) -> String {
        let origin = base_url.origin().ascii_serialization();
        format!("{origin}/welcome#{}", self.expose())
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    use fmt::Write;
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_a_round_trip_and_does_not_print_itself() {
        let secret = Secret::generate().unwrap();
        let again = Secret::parse(secret.expose()).unwrap();
        assert_eq!(again.hash(), secret.hash());
        assert!(!format!("{secret:?}").contains(secret.expose()));
        for wrong in [
            "",
            "x",
            &secret.expose()[1..],
            &format!("{}=", secret.expose()),
        ] {
            assert!(Secret::parse(wrong).is_none(), "{wrong}");
        }
    }
}
