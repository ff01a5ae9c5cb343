//! The RSA keys of the service: their files, the JWTs they sign and verify, and the JWKS document.
//!
//! All instances sign with one key. While it is rotated, the [`Keyring`] holds further public keys, which are published
//! and accepted too.
//!
//! The process keeps the parsed key, because parsing costs twice as much as signing, and computes the `kid` once.
//!
//! Signing a JWT does not authorise it. The caller signs first, then reads the agent's status, and releases the JWT only
//! if the agent is active: `enrol::Issuer` does this and explains why.

mod jwks;
mod jwt;
mod key_file;
mod keyring;
mod pem;

use std::fmt;

use aws_lc_rs::{
    digest,
    rsa::{KeyPair, PublicKeyComponents},
    signature::KeyPair as _,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

pub use jwks::{JWKS_MAX_AGE, Jwks};
pub use jwt::{JWT_LIFETIME, Jwt};
pub use key_file::{KeyFileError, check, create, create_beside, read, read_public};
pub use keyring::{Keyring, Verified};
pub use pem::KeyPemError;
pub use svc_common::jwt::{Claims, JwtError, LEEWAY};

/// An RSA key of 2048 to 8192 bits, with its public half.
pub struct SigningKey {
    pair: KeyPair,
    public: PublicKey,
}

/// The public half of an RSA key, with its id.
#[derive(Clone)]
pub struct PublicKey {
    components: PublicKeyComponents<Vec<u8>>,
    kid: String,
}

impl SigningKey {
    fn new(pair: KeyPair) -> Self {
        let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
        let public = PublicKey::new(
            n.big_endian_without_leading_zero().to_vec(),
            e.big_endian_without_leading_zero().to_vec(),
        );
        Self { pair, public }
    }

    pub fn kid(&self) -> &str {
        self.public.kid()
    }

    /// The size of the modulus.
    pub fn bits(&self) -> usize {
        self.pair.public_modulus_len() * 8
    }
}

impl PublicKey {
    /// Modulus and exponent in big-endian bytes without leading zeros.
    fn new(n: Vec<u8>, e: Vec<u8>) -> Self {
        let components = PublicKeyComponents { n, e };
        let kid = thumbprint(&components);
        Self { components, kid }
    }

    /// The RFC 7638 thumbprint, so that all instances have the same.
    pub fn kid(&self) -> &str {
        &self.kid
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("kid", &self.kid())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// Modulus and exponent in base64url.
fn encoded(public: &PublicKeyComponents<Vec<u8>>) -> [String; 2] {
    [&public.n, &public.e].map(|number| BASE64_URL_SAFE_NO_PAD.encode(number))
}

/// RFC 7638: only the required members, in lexicographic order, without white space.
fn thumbprint(public: &PublicKeyComponents<Vec<u8>>) -> String {
    let [n, e] = encoded(public);
    let canonical = format!(r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#);
    BASE64_URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, canonical.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kid_matches_the_example_of_rfc_7638() {
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
        let public = PublicKeyComponents {
            n: BASE64_URL_SAFE_NO_PAD.decode(n).unwrap(),
            e: BASE64_URL_SAFE_NO_PAD.decode("AQAB").unwrap(),
        };
        assert_eq!(
            thumbprint(&public),
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
        );
    }

    #[test]
    fn debug_output_shows_the_kid_alone() {
        let key = pem::generate().unwrap().1;
        let shown = format!("{key:?}");
        assert!(shown.contains(key.kid()));
        assert!(!shown.contains(&encoded(&key.public.components)[0]));
    }
}
