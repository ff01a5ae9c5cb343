//! The agent that a JWT names, and the service's keys by which it is verified. `svc_common::jwt` has the rules.

use std::collections::HashMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;
use svc_common::jwt::{self, JwtError, PublicKey};
use uuid::Uuid;

const MAX_KEYS: usize = 16;

/// The public keys of a JWKS document, by their ids.
pub type KeySet = HashMap<String, PublicKey>;

#[derive(Deserialize)]
struct Document {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    alg: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
}

/// The RSA keys of a JWKS document. `None` if it is no such document, or has no such key.
pub fn parse_keys(json: &[u8]) -> Option<KeySet> {
    let document: Document = serde_json::from_slice(json).ok()?;
    let keys = document.keys.into_iter().take(MAX_KEYS);
    let keys = keys.filter(|key| key.kty == "RSA" && key.alg == "RS256");
    let keys: KeySet = keys
        .filter_map(|key| {
            let (n, e) = (decode(&key.n)?, decode(&key.e)?);
            Some((key.kid, PublicKey { n, e }))
        })
        .collect();
    (!keys.is_empty()).then_some(keys)
}

/// The agent that a JWT names.
pub fn verify(jwt: &str, keys: &KeySet, now: Timestamp) -> Result<Uuid, JwtError> {
    let verified = jwt::verify(jwt, |kid| keys.get(kid), now)?;
    Uuid::parse_str(&verified.claims.sub).map_err(|_| JwtError::ClaimsForm)
}

fn decode(part: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(part).ok()
}
