//! The JWKS document, with exactly the members of the specification.

use aws_lc_rs::digest;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Serialize;

/// The document and its ETag. Both stay the same for the life of the process.
#[derive(Clone, Debug)]
pub struct Jwks {
    pub body: String,
    pub etag: String,
}

#[derive(Serialize)]
struct Document<'a> {
    keys: [Key<'a>; 1],
}

#[derive(Serialize)]
struct Key<'a> {
    kty: &'static str,
    kid: &'a str,
    #[serde(rename = "use")]
    usage: &'static str,
    alg: &'static str,
    n: &'a str,
    e: &'a str,
}

impl Jwks {
    pub(super) fn new(kid: &str, n: &str, e: &str) -> Self {
        let key = Key {
            kty: "RSA",
            kid,
            usage: "sig",
            alg: "RS256",
            n,
            e,
        };
        let body = serde_json::json!(Document { keys: [key] }).to_string();
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
        let jwks = Jwks::new("the-kid", "the-n", "AQAB");
        let document: serde_json::Value = serde_json::from_str(&jwks.body).unwrap();
        let expected = serde_json::json!({"keys": [{
            "kty": "RSA", "kid": "the-kid", "use": "sig", "alg": "RS256", "n": "the-n", "e": "AQAB",
        }]});
        assert_eq!(document, expected);
    }
}
