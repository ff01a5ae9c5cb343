//! Issuing the agents' JWTs. Their form, and their verification, are in `svc_common::jwt`; the tests here verify what is
//! issued, and what is forged with the right key.

use std::time::Duration;

use aws_lc_rs::{rand::SystemRandom, signature::RSA_PKCS1_SHA256};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use svc_common::jwt::{Claims, ISSUER, signing_input};

use super::SigningKey;

/// From issuance to `exp`.
pub const JWT_LIFETIME: Duration = Duration::from_hours(24);

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

impl SigningKey {
    /// Signs a token for `sub`. It takes about half a millisecond of CPU, so async code calls it on a blocking thread.
    pub fn sign(&self, sub: &str, now: Timestamp) -> Result<Jwt, aws_lc_rs::error::Unspecified> {
        let expires_at = Timestamp::from_second(now.as_second())
            .and_then(|now| now.checked_add(JWT_LIFETIME))
            .map_err(|_| aws_lc_rs::error::Unspecified)?;
        let claims = Claims {
            sub: sub.into(),
            iss: ISSUER.into(),
            exp: expires_at.as_second(),
        };
        let mut text = signing_input(self.kid(), &claims);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing::{JwtError, Keyring, pem};

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
        let claims = jwt.text.split('.').nth(1).unwrap();
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
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
        for kid in ["../../etc/passwd", "", &"k".repeat(1000)] {
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
