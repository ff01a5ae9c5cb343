//! The agents' JWTs: RS256, a `kid` in the header, and exactly the claims `sub`, `iss` and `exp`.
//!
//! Verification is written here and not left to a general library. There is one algorithm, one issuer and three claims of
//! known types, so that little can go wrong. Nothing in a token selects how it is verified, except that its `kid` selects
//! one of our own keys. The signature is verified before the claims are parsed.

use std::time::Duration;

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{PublicKey, SigningKey};

/// The `iss` of every token.
pub const ISSUER: &str = "svc-ingest";
/// From issuance to `exp`.
pub const JWT_LIFETIME: Duration = Duration::from_hours(24);
/// How far apart two instances may be in what they know of the database's clock, by which JWTs are dated and judged.
pub const LEEWAY: Duration = Duration::from_secs(30);
/// Our tokens have less than 600 bytes with a 2048-bit key, and less than 1,700 with 8192 bits.
const MAX_LENGTH: usize = 4096;

/// A signed token and its expiry. Its `Debug` output hides the token.
#[derive(Clone)]
pub struct Jwt {
    pub text: String,
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwt")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// The claims of a token.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    pub sub: String,
    pub iss: String,
    pub exp: i64,
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

impl SigningKey {
    /// Signs a token for `sub`. It takes about half a millisecond of CPU, so async code calls it on a blocking thread.
    pub fn sign(&self, sub: &str, now: Timestamp) -> Result<Jwt, aws_lc_rs::error::Unspecified> {
        let expires_at = Timestamp::from_second(now.as_second())
            .and_then(|now| now.checked_add(JWT_LIFETIME))
            .map_err(|_| aws_lc_rs::error::Unspecified)?;
        let header = Header {
            alg: "RS256".into(),
            typ: "JWT".into(),
            kid: self.kid().to_owned(),
        };
        let claims = Claims {
            sub: sub.into(),
            iss: ISSUER.into(),
            exp: expires_at.as_second(),
        };
        let mut text = format!("{}.{}", encode(&header), encode(&claims));
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            text.as_bytes(),
            &mut signature,
        )?;
        text.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(&signature, &mut text);
        Ok(Jwt { text, expires_at })
    }
}

/// A token whose header has the right form. Nothing of it is verified yet.
pub(super) struct SignedToken<'a> {
    kid: String,
    /// Header and claims, as they were signed.
    signed: &'a str,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> SignedToken<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, JwtError> {
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
        Ok(Self {
            kid: header.kid,
            signed,
            claims,
            signature,
        })
    }

    pub(super) fn kid(&self) -> &str {
        &self.kid
    }

    /// The claims as JSON, if the key has signed them.
    pub(super) fn verified_claims(self, key: &PublicKey) -> Result<Vec<u8>, JwtError> {
        let (algorithm, signed) = (&RSA_PKCS1_2048_8192_SHA256, self.signed.as_bytes());
        let verified = key.components.verify(algorithm, signed, &self.signature);
        verified.map_err(|_| JwtError::Signature)?;
        Ok(self.claims)
    }
}

pub(super) fn check_claims(json: &[u8], now: Timestamp) -> Result<Claims, JwtError> {
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
    use crate::signing::{Keyring, pem};

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn ring() -> &'static Keyring {
        static RING: std::sync::OnceLock<Keyring> = std::sync::OnceLock::new();
        RING.get_or_init(|| Keyring::new(pem::generate().unwrap().1, []))
    }

    fn key() -> &'static SigningKey {
        ring().signing()
    }

    /// A token with any header and claims, correctly signed by our own key.
    fn forged(header: &str, claims: &str) -> String {
        let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let mut token = format!("{}.{}", encode(header), encode(claims));
        let mut signature = vec![0; 256];
        key()
            .pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                token.as_bytes(),
                &mut signature,
            )
            .unwrap();
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        token
    }

    fn verify(token: &str) -> Result<String, JwtError> {
        ring().verify(token, NOW).map(|jwt| jwt.claims.sub)
    }

    fn header() -> String {
        format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{}"}}"#, key().kid())
    }

    const CLAIMS: &str = r#"{"sub":"a","iss":"svc-ingest","exp":1800000100}"#;

    #[test]
    fn a_token_holds_exactly_three_claims_and_lasts_24_hours() {
        let jwt = key().sign("agent-1", NOW).unwrap();
        let claims: serde_json::Value =
            serde_json::from_slice(&decode(jwt.text.split('.').nth(1).unwrap()).unwrap()).unwrap();
        assert_eq!(
            claims,
            serde_json::json!({"sub": "agent-1", "iss": "svc-ingest", "exp": 1_800_086_400})
        );
        assert_eq!(verify(&jwt.text).unwrap(), "agent-1");
    }

    #[test]
    fn a_token_expires_after_its_lifetime_and_30_seconds_of_leeway() {
        let jwt = key().sign("a", NOW).unwrap();
        let at = |seconds: i64| Timestamp::from_second(NOW.as_second() + seconds).unwrap();
        assert!(ring().verify(&jwt.text, at(86_400 + 29)).is_ok());
        let late = ring().verify(&jwt.text, at(86_400 + 30));
        assert_eq!(late, Err(JwtError::Expired));
    }

    #[test]
    fn other_headers_are_refused_even_with_a_valid_signature() {
        assert_eq!(verify(&forged(&header(), CLAIMS)).unwrap(), "a");
        let kid = key().kid();
        for header in [
            format!(r#"{{"alg":"none","typ":"JWT","kid":"{kid}"}}"#),
            format!(r#"{{"alg":"HS256","typ":"JWT","kid":"{kid}"}}"#),
            format!(r#"{{"alg":"RS384","typ":"JWT","kid":"{kid}"}}"#),
            format!(r#"{{"alg":"PS256","typ":"JWT","kid":"{kid}"}}"#),
            format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{kid}","jku":"https://x.example"}}"#),
            format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{kid}","jwk":{{}}}}"#),
            format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{kid}","x5u":"https://x.example"}}"#),
            format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{kid}","crit":["exp"]}}"#),
            format!(r#"{{"alg":"RS256","alg":"RS256","typ":"JWT","kid":"{kid}"}}"#),
            format!(r#"{{"alg":"RS256","kid":"{kid}"}}"#),
            r#"{"alg":"RS256","typ":"JWT"}"#.to_owned(),
            "[]".to_owned(),
        ] {
            let refused = verify(&forged(&header, CLAIMS));
            assert_eq!(refused, Err(JwtError::Header), "{header}");
        }
        for kid in ["../../etc/passwd", "", &"k".repeat(1500)] {
            let header = format!(r#"{{"alg":"RS256","typ":"JWT","kid":"{kid}"}}"#);
            assert_eq!(verify(&forged(&header, CLAIMS)), Err(JwtError::ForeignKey));
        }
    }

    #[test]
    fn other_claims_are_refused_even_with_a_valid_signature() {
        for claims in [
            r#"{"sub":"a","iss":"svc-ingest"}"#,
            r#"{"sub":"a","exp":1800000100}"#,
            r#"{"iss":"svc-ingest","exp":1800000100}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":"1800000100"}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":1800000100.5}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":9223372036854775808}"#,
            r#"{"sub":"a","iss":"other","exp":1800000100}"#,
            r#"{"sub":"a","iss":["svc-ingest"],"exp":1800000100}"#,
            r#"{"sub":1,"iss":"svc-ingest","exp":1800000100}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":1800000100,"exp":1900000000}"#,
            r#"{"sub":"a","sub":"b","iss":"svc-ingest","exp":1800000100}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":1800000100,"admin":true}"#,
            r#"{"sub":"a","iss":"svc-ingest","exp":1800000100} "x""#,
        ] {
            let refused = verify(&forged(&header(), claims));
            assert_eq!(refused, Err(JwtError::ClaimsForm), "{claims}");
        }
        let past = r#"{"sub":"a","iss":"svc-ingest","exp":-1}"#;
        assert_eq!(verify(&forged(&header(), past)), Err(JwtError::Expired));
        let end_of_time = format!(r#"{{"sub":"a","iss":"svc-ingest","exp":{}}}"#, i64::MAX);
        assert!(verify(&forged(&header(), &end_of_time)).is_ok());
    }

    #[test]
    fn a_token_that_is_not_three_base64url_parts_is_malformed() {
        let good = key().sign("a", NOW).unwrap().text;
        let [header, claims, signature]: [&str; 3] =
            good.split('.').collect::<Vec<_>>().try_into().unwrap();
        for token in [
            String::new(),
            ".".to_owned(),
            format!("{header}.{claims}"),
            format!("{header}.{claims}.{signature}.{signature}"),
            format!("{header}.{claims}.{signature}=="),
            format!("{header}=.{claims}.{signature}"),
            format!(" {good}"),
            format!("{good}\n"),
            "x".repeat(10_000),
        ] {
            assert_eq!(verify(&token), Err(JwtError::Malformed), "{token}");
        }
        let unsigned = format!("{header}.{claims}.");
        assert_eq!(verify(&unsigned), Err(JwtError::Signature));
    }

    #[test]
    fn a_token_of_another_key_or_with_changed_claims_is_refused() {
        let other = pem::generate().unwrap().1;
        let foreign = other.sign("a", NOW).unwrap().text;
        assert_eq!(verify(&foreign), Err(JwtError::ForeignKey));
        let good = key().sign("a", NOW).unwrap().text;
        let mut parts: Vec<&str> = good.split('.').collect();
        let others = BASE64_URL_SAFE_NO_PAD.encode(CLAIMS);
        parts[1] = &others;
        assert_eq!(verify(&parts.join(".")), Err(JwtError::Signature));
        assert!(!format!("{:?}", other.sign("a", NOW).unwrap()).contains("ey"));
    }
}
