//! The RSA key that all instances share: what it is, and what it signs.
//!
//! The parsed key is kept for the life of the process (parsing costs twice as
//! much as signing), and everything derived from its public half, the `kid` and
//! the JWKS document, is computed once here.

mod jwks;
mod jwt;
mod key_file;
mod pem;

use std::fmt;

use aws_lc_rs::{
    digest,
    rsa::{KeyPair, PublicKeyComponents},
    signature::KeyPair as _,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

pub use jwks::Jwks;
pub use jwt::{Claims, ISSUER, JWT_LIFETIME, Jwt, JwtError};
pub use key_file::{KeyFileError, check, create, read};
pub use pem::KeyPemError;

/// An RSA key of 2048 to 8192 bits, and its public half in the forms that the
/// service hands out.
pub struct SigningKey {
    pair: KeyPair,
    public: PublicKeyComponents<Vec<u8>>,
    kid: String,
}

impl SigningKey {
    fn new(pair: KeyPair) -> Self {
        let public = PublicKeyComponents {
            n: pair
                .public_key()
                .modulus()
                .big_endian_without_leading_zero()
                .to_vec(),
            e: pair
                .public_key()
                .exponent()
                .big_endian_without_leading_zero()
                .to_vec(),
        };
        let kid = thumbprint(&public);
        Self { pair, public, kid }
    }

    /// The RFC 7638 thumbprint of the public key: the same on every instance.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    pub fn bits(&self) -> usize {
        self.pair.public_modulus_len() * 8
    }

    pub fn jwks(&self) -> Jwks {
        Jwks::new(&self.kid, &self.modulus(), &self.exponent())
    }

    fn modulus(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(&self.public.n)
    }

    fn exponent(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(&self.public.e)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

/// RFC 7638: the required members alone, in lexicographic order, without white space.
fn thumbprint(public: &PublicKeyComponents<Vec<u8>>) -> String {
    let e = BASE64_URL_SAFE_NO_PAD.encode(&public.e);
    let n = BASE64_URL_SAFE_NO_PAD.encode(&public.n);
    let canonical = format!(r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#);
    BASE64_URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, canonical.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kid_is_the_thumbprint_of_rfc_7638s_own_example() {
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
    fn a_key_does_not_print_itself() {
        let key = pem::generate().unwrap().1;
        let shown = format!("{key:?}");
        assert!(shown.contains(key.kid()));
        assert!(!shown.contains(&key.modulus()));
    }
}
