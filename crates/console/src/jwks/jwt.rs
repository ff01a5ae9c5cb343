//! Agents' JWTs: RS256, issued by `svc-ingest`, not expired. Nothing else is accepted, and nothing in
//! a header is followed.

use std::collections::HashMap;

use aws_lc_rs::{rsa::PublicKeyComponents, signature::RSA_PKCS1_2048_8192_SHA256};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;
use uuid::Uuid;

const ISSUER: &str = "svc-ingest";
/// Clocks of different machines differ a little.
const LEEWAY: i64 = 30;
const MAX_BYTES: usize = 2048;
const MAX_KEYS: usize = 16;

/// The public keys of a JWKS document, by their ids.
pub type KeySet = HashMap<String, PublicKeyComponents<Vec<u8>>>;

#[derive(Debug, PartialEq, Eq)]
pub enum Invalid {
    /// No known key has this id: the document may be out of date.
    UnknownKey,
    Other,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
}

#[derive(Deserialize)]
struct Claims {
    sub: Uuid,
    iss: String,
    exp: i64,
}

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
            Some((key.kid, PublicKeyComponents { n, e }))
        })
        .collect();
    (!keys.is_empty()).then_some(keys)
}

/// The agent that a JWT names.
pub fn verify(jwt: &str, keys: &KeySet, now: Timestamp) -> Result<Uuid, Invalid> {
    let (signed, claims, signature, key) = open(jwt, keys)?;
    key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature)
        .map_err(|_| Invalid::Other)?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| Invalid::Other)?;
    let current = claims.exp.saturating_add(LEEWAY) > now.as_second();
    match claims.iss == ISSUER && current {
        true => Ok(claims.sub),
        false => Err(Invalid::Other),
    }
}

type Opened<'a> = (&'a str, Vec<u8>, Vec<u8>, &'a PublicKeyComponents<Vec<u8>>);

/// The signed text, the claims, the signature, and the key of its header.
fn open<'a>(jwt: &'a str, keys: &'a KeySet) -> Result<Opened<'a>, Invalid> {
    if jwt.len() > MAX_BYTES {
        return Err(Invalid::Other);
    }
    let parts = (|| {
        let (signed, signature) = jwt.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        let accepted = header.alg == "RS256" && header.typ == "JWT";
        accepted.then_some((signed, decode(claims)?, decode(signature)?, header.kid))
    })();
    let (signed, claims, signature, kid) = parts.ok_or(Invalid::Other)?;
    let key = keys.get(&kid).ok_or(Invalid::UnknownKey)?;
    Ok((signed, claims, signature, key))
}

fn decode(part: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(part).ok()
}
