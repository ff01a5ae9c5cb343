//! The manifest of an update: which program replaces which versions, and what it must be on each platform.
//!
//! Agents take it from a service that they do not trust, so it is small, its signature is verified before a byte of it is
//! parsed, and its serial only rises: an older one is not accepted again, and going back is a new serial that names the
//! older version. Nothing expires. A date would stop agents whose clock or network is wrong, and would not help: the service
//! decides anyway when an agent is offered something.

use std::collections::BTreeMap;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{
    keys::PublicKey,
    manifest::{ManifestError, is_file_name, is_hex},
};

/// The manifest's name in the folder of a release; its signature is in `svc-agent.json.sig`.
pub const UPDATE_FILE: &str = "svc-agent.json";

/// The largest manifest of an update, in bytes.
pub const LARGEST_UPDATE: usize = 4 * 1024;
const MOST_PLATFORMS: usize = 16;
const LONGEST_NOTES: usize = 512;

/// Serials stay within what JSON readers and databases can hold.
const HIGHEST_SERIAL: u64 = i64::MAX as u64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    pub product: String,
    pub version: Version,
    /// Rises with each update that is signed, whatever its version.
    pub serial: u64,
    /// The oldest version that this one may replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<Version>,
    /// Where people read what is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// By `os/architecture`, such as `linux/x86_64`.
    pub platforms: BTreeMap<String, Binary>,
}

/// The program of one platform: a bare file, no archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    pub size: u64,
    pub sha256: String,
}

impl Update {
    /// The manifest, if one of the keys has signed exactly these bytes.
    pub fn verify(
        bytes: &[u8],
        signature: &[u8],
        keys: &[PublicKey],
    ) -> Result<Self, ManifestError> {
        if bytes.len() > LARGEST_UPDATE {
            return Err(too_large());
        }
        if !keys.iter().any(|key| key.has_signed(bytes, signature)) {
            return Err(ManifestError::Signature);
        }
        Self::parse(bytes)
    }

    /// Without a signature: for those who are about to sign it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > LARGEST_UPDATE {
            return Err(too_large());
        }
        let update: Self = serde_json::from_slice(bytes)?;
        update.check()?;
        Ok(update)
    }

    /// The text that is signed.
    pub fn to_text(&self) -> Result<String, ManifestError> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        Self::parse(text.as_bytes())?;
        Ok(text)
    }

    fn check(&self) -> Result<(), ManifestError> {
        let refuse = |reason: &str| Err(ManifestError::Content(reason.to_owned()));
        if !is_file_name(&self.product) {
            return refuse("its product is not a name");
        }
        if !(1..=HIGHEST_SERIAL).contains(&self.serial) {
            return refuse("its serial is not a positive number");
        }
        let harmless = |notes: &String| {
            notes.len() <= LONGEST_NOTES && !notes.contains(|c: char| c.is_control())
        };
        if !self.notes.iter().all(harmless) {
            return refuse("its notes are too long, or have control characters");
        }
        if !(1..=MOST_PLATFORMS).contains(&self.platforms.len()) {
            return refuse("it has no platform, or too many");
        }
        for (platform, binary) in &self.platforms {
            let parts = platform.split_once('/');
            if !parts.is_some_and(|(os, arch)| is_file_name(os) && is_file_name(arch)) {
                return refuse("a platform is not named as linux/x86_64 is");
            }
            if binary.sha256.len() != 64 || !binary.sha256.bytes().all(is_hex) {
                return refuse("a checksum is not 64 hexadecimal digits");
            }
            if binary.size == 0 {
                return refuse("a program is empty");
            }
        }
        Ok(())
    }
}

fn too_large() -> ManifestError {
    ManifestError::Content(format!("larger than {LARGEST_UPDATE} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretKey;

    fn update() -> Update {
        let binary = Binary {
            size: 7,
            sha256: "0f".repeat(32),
        };
        Update {
            product: "svc-agent".into(),
            version: "1.2.3".parse().unwrap(),
            serial: 7,
            minimum: None,
            notes: Some("https://example.org/1.2.3".into()),
            platforms: [("linux/x86_64".into(), binary)].into(),
        }
    }

    #[test]
    fn only_the_signed_bytes_of_a_trusted_key_are_parsed() {
        let (key, other) = (
            SecretKey::generate().unwrap(),
            SecretKey::generate().unwrap(),
        );
        let (key_id, other_id) = (key.public_key().unwrap(), other.public_key().unwrap());
        let text = update().to_text().unwrap();
        let signature = key.sign(text.as_bytes()).unwrap();
        let verify = |text: &str, keys: &[PublicKey]| {
            Update::verify(text.as_bytes(), &signature, keys).map_err(|error| error.to_string())
        };
        let keys = [other_id.clone(), key_id];
        assert_eq!(verify(&text, &keys).unwrap(), update());
        let refused = "the signature is of none of the trusted keys";
        assert_eq!(verify(&text, &[other_id]).unwrap_err(), refused);
        assert_eq!(verify(&text, &[]).unwrap_err(), refused);
        assert_eq!(
            verify(&text.replace("1.2.3", "1.2.4"), &keys).unwrap_err(),
            refused
        );
        let long = text + &" ".repeat(LARGEST_UPDATE);
        assert!(verify(&long, &keys).unwrap_err().contains("larger than"));
    }

    #[test]
    fn hostile_content_is_refused_and_unknown_fields_are_not() {
        let text = update().to_text().unwrap();
        for (from, to) in [
            ("svc-agent", "../svc-agent"),
            ("\"serial\": 7", "\"serial\": 0"),
            ("\"serial\": 7", "\"serial\": -7"),
            ("\"serial\": 7", "\"serial\": 18446744073709551615"),
            ("linux/x86_64", "linux"),
            ("linux/x86_64", "linux/../x"),
            ("0f0f", "0F0F"),
            ("\"size\": 7", "\"size\": 0"),
            ("https://example.org", "https://\\u001b[2J"),
            ("1.2.3\"", "1.2\""),
        ] {
            let hostile = text.replacen(from, to, 1);
            assert_ne!(hostile, text, "{from}");
            assert!(Update::parse(hostile.as_bytes()).is_err(), "{to}");
        }
        let more = text.replacen("\"serial\"", "\"later\": {}, \"serial\"", 1);
        assert_eq!(Update::parse(more.as_bytes()).unwrap(), update());
    }
}
