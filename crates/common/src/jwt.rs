//! The agents' JWTs: RS256, a `kid` in the header, and exactly the claims `sub`, `iss` and `exp`. The service signs and
//! verifies them, the console verifies them.
//!
//! Verification is written here and not left to a general library. There is one algorithm, one issuer and three claims of
//! known types, so that little can go wrong. Nothing in a token selects how it is verified, except that its `kid` selects
//! one of the caller's keys. The signature is verified before the claims are parsed.

use std::time::Duration;

use aws_lc_rs::{rsa::PublicKeyComponents, signature::RSA_PKCS1_2048_8192_SHA256};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The `iss` of every token.
pub const ISSUER: &str = "svc-ingest";
/// How far apart two machines may be in what they know of the time, by which JWTs are dated and judged.
pub const LEEWAY: Duration = Duration::from_secs(30);
/// Our tokens have less than 600 bytes with a 2048-bit key, and less than 1,700 with 8192 bits.
const MAX_LENGTH: usize = 2048;

/// Modulus and exponent of an RSA key.
pub type PublicKey = PublicKeyComponents<Vec<u8>>;

/// The claims of a token.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    pub sub: String,
    pub iss: String,
    pub exp: i64,
}

/// A token that is valid now.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// The id of the key that has signed it.
    pub kid: String,
    pub claims: Claims,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("the token is not three base64url parts of JSON, JSON and signature")]
    Malformed,
    #[error("the header is not exactly alg RS256, typ JWT and a kid")]
    Header,
    #[error("the token was signed by another key")]
    ForeignKey,
    #[error("the signature does not match")]
    Signature,
    #[error("the claims are not exactly sub, iss svc-ingest and exp")]
    ClaimsForm,
    #[error("the token has expired")]
    Expired,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
}

/// Header and claims of a token, as they are signed.
pub fn signing_input(kid: &str, claims: &Claims) -> String {
    let header = Header {
        alg: "RS256".into(),
        typ: "JWT".into(),
        kid: kid.into(),
    };
    format!("{}.{}", encode(&header), encode(claims))
}

/// Verifies a token with the key that `key_of` has for its `kid`.
pub fn verify<'k>(
    token: &str,
    key_of: impl FnOnce(&str) -> Option<&'k PublicKey>,
    now: Timestamp,
) -> Result<Verified, JwtError> {
    if token.len() > MAX_LENGTH {
        return Err(JwtError::Malformed);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
    let (header, claims, signature) = (decode(header)?, decode(claims)?, decode(signature)?);
    let header: Header = serde_json::from_slice(&header).map_err(|_| JwtError::Header)?;
    if header.alg != "RS256" || header.typ != "JWT" {
        return Err(JwtError::Header);
    }
    let key = key_of(&header.kid).ok_or(JwtError::ForeignKey)?;
    key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature)
        .map_err(|_| JwtError::Signature)?;
    Ok(Verified {
        kid: header.kid,
        claims: check_claims(&claims, now)?,
    })
}

fn check_claims(json: &[u8], now: Timestamp) -> Result<Claims, JwtError> {
    let claims: Claims = serde_json::from_slice(json).map_err(|_| JwtError::ClaimsForm)?;
    if claims.iss != ISSUER {
        return Err(JwtError::ClaimsForm);
    }
    if claims.exp.saturating_add(LEEWAY.as_secs().cast_signed()) <= now.as_second() {
        return Err(JwtError::Expired);
    }
    Ok(claims)
}

fn encode(value: &impl Serialize) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::json!(value).to_string())
}

fn decode(part: &str) -> Result<Vec<u8>, JwtError> {
    BASE64_URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| JwtError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a token is refused for by a verifier without keys.
    fn without_keys(token: &str) -> JwtError {
        verify(token, |_| None, Timestamp::UNIX_EPOCH).unwrap_err()
    }

    #[test]
    fn a_token_of_the_largest_key_is_read_and_a_longer_one_is_not() {
        let claims = Claims {
            sub: "a0000000-0000-4000-8000-000000000001".into(),
            iss: ISSUER.into(),
            exp: i64::MAX,
        };
        let thumbprint = BASE64_URL_SAFE_NO_PAD.encode([0_u8; 32]);
        let signature = BASE64_URL_SAFE_NO_PAD.encode([0_u8; 8192 / 8]);
        let token = format!("{}.{signature}", signing_input(&thumbprint, &claims));
        assert!(token.len() < 1700, "{}", token.len());
        assert_eq!(without_keys(&token), JwtError::ForeignKey);
        let signature = signature.repeat(2);
        let token = format!("{}.{signature}", signing_input(&thumbprint, &claims));
        assert_eq!(without_keys(&token), JwtError::Malformed);
    }
}
