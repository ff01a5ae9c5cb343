//! The JWKS document, with exactly the members of the specification.

use std::time::Duration;

use aws_lc_rs::digest;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Serialize;

use super::{PublicKey, encoded};

/// How long a verifier may use the document before it fetches it again.
pub const JWKS_MAX_AGE: Duration = Duration::from_mins(5);

/// The document and its ETag. Both stay the same for the life of the process.
#[derive(Clone, Debug)]
pub struct Jwks {
    pub body: String,
    pub etag: String,
}

#[derive(Serialize)]
struct Document {
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    kty: &'static str,
    kid: String,
    #[serde(rename = "use")]
    usage: &'static str,
    alg: &'static str,
    n: String,
    e: String,
}

impl Key {
    fn of(key: &PublicKey) -> Self {
        let [n, e] = encoded(&key.components);
        Self {
            kty: "RSA",
            kid: key.kid().to_owned(),
            usage: "sig",
            alg: "RS256",
            n,
            e,
        }
    }
}

impl Jwks {
    pub(super) fn new<'a>(keys: impl Iterator<Item = &'a PublicKey>) -> Self {
        let keys = keys.map(Key::of).collect();
        let body = serde_json::json!(Document { keys }).to_string();
        let hash = digest::digest(&digest::SHA256, body.as_bytes());
        let etag = format!(
            "\"{}\"",
            BASE64_URL_SAFE_NO_PAD.encode(&hash.as_ref()[..12])
        );
        Self { body, etag }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_specified_members_and_no_others() {
        let key = PublicKey::new(vec![0xab; 256], vec![1, 0, 1]);
        let jwks = Jwks::new(std::iter::once(&key));
        let document: serde_json::Value = serde_json::from_str(&jwks.body).unwrap();
        let expected = serde_json::json!({"keys": [{
            "kty": "RSA", "kid": key.kid(), "use": "sig", "alg": "RS256",
            "n": encoded(&key.components)[0], "e": "AQAB",
        }]});
        assert_eq!(document, expected);
    }
}
