//! Random secrets: the cookies of sessions, the codes of one-time links, and enrolment tokens. The
//! database stores their SHA-256 only.

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
        sha256(self.0.expose_secret())
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

/// An enrolment token as the ingest service makes them: `svc_enr_`, 32 random base62 characters, and a
/// checksum of 6. The service's parser accepts it; a test holds the two together.
#[derive(Clone, Debug)]
pub struct EnrolmentToken(SecretString);

const PREFIX: &str = "svc_enr_";
const SECRET_LENGTH: usize = 32;
const CHECKSUM_LENGTH: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl EnrolmentToken {
    pub fn generate() -> Result<Self, Unspecified> {
        let mut body = String::with_capacity(SECRET_LENGTH);
        while body.len() < SECRET_LENGTH {
            let mut bytes = [0; SECRET_LENGTH];
            rand::fill(&mut bytes)?;
            // 248 = 4 × 62: with larger bytes the first characters would be more likely.
            let unbiased = bytes.iter().filter(|byte| **byte < 248);
            let letters = unbiased.map(|byte| char::from(ALPHABET[usize::from(byte % 62)]));
            body.extend(letters.take(SECRET_LENGTH - body.len()));
        }
        Ok(Self(format!("{PREFIX}{body}{}", checksum(&body)).into()))
    }

    pub fn hash(&self) -> [u8; 32] {
        sha256(self.0.expose_secret())
    }

    /// The secret, for the page that shows it once.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// 32 bits of SHA-256 in base62, most significant digit first.
fn checksum(body: &str) -> String {
    let hash = sha256(&format!("{PREFIX}{body}"));
    let first = hash.iter().take(4);
    let mut rest = first.fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

fn sha256(text: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    hash
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
