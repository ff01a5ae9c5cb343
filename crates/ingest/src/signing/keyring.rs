//! The keys of an instance: the one that signs, and those that are published and accepted beside it.
//!
//! **Rotation.** A verifier may use a JWKS document that is five minutes old, and a JWT lives for a day. So a new key is
//! published by every instance before the first one signs with it, and the old one is published and accepted until its
//! last JWT has expired. In between instances with different signing keys run side by side, because each accepts the
//! other's JWTs (`svc_store::LeaseClaim` has the rule).

use jiff::Timestamp;
use svc_common::jwt;

use super::{Claims, Jwks, JwtError, PublicKey, SigningKey};

#[derive(Debug)]
pub struct Keyring {
    signing: SigningKey,
    extra: Vec<PublicKey>,
}

/// A JWT of one of our keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    pub claims: Claims,
    /// Whether the key is the one that signs now. If not, the JWT should be replaced soon.
    pub by_signing_key: bool,
}

impl Keyring {
    /// A key that is given twice counts once. So an administrator may list the old and the new key on every machine, and
    /// then change nothing but the signing key.
    pub fn new(signing: SigningKey, extra: impl IntoIterator<Item = PublicKey>) -> Self {
        let mut ring = Self {
            signing,
            extra: Vec::new(),
        };
        for key in extra {
            if ring.find(key.kid()).is_none() {
                ring.extra.push(key);
            }
        }
        ring
    }

    pub fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// How many keys are published and accepted: more than one while the key is rotated.
    pub fn count(&self) -> i64 {
        1 + i64::try_from(self.extra_kids().len()).unwrap_or(i64::MAX - 1)
    }

    /// The ids of the keys that are accepted beside the signing key.
    pub fn extra_kids(&self) -> Vec<String> {
        let kids = self.extra.iter().map(PublicKey::kid);
        kids.map(str::to_owned).collect()
    }

    /// The document with all public keys, the signing key first.
    pub fn jwks(&self) -> Jwks {
        Jwks::new(self.public_keys())
    }

    /// Verifies a JWT with the key that its header names.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Verified, JwtError> {
        let key_of = |kid: &str| self.find(kid).map(|key| &key.components);
        let jwt::Verified { kid, claims } = jwt::verify(token, key_of, now)?;
        Ok(Verified {
            claims,
            by_signing_key: kid == self.signing.kid(),
        })
    }

    fn find(&self, kid: &str) -> Option<&PublicKey> {
        self.public_keys().find(|key| key.kid() == kid)
    }

    fn public_keys(&self) -> impl Iterator<Item = &PublicKey> {
        std::iter::once(&self.signing.public).chain(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signing::pem;

    fn key() -> SigningKey {
        pem::generate().unwrap().1
    }

    #[test]
    fn jwts_of_every_key_in_the_ring_are_accepted_and_of_no_other() {
        let (old, new, foreign) = (key(), key(), key());
        let now = Timestamp::now();
        let jwts = [&new, &old, &foreign].map(|key| key.sign("a", now).unwrap().text);
        let ring = Keyring::new(new, [old.public.clone()]);
        let by_signing_key = |jwt: &String| Ok(ring.verify(jwt, now)?.by_signing_key);
        let expected = [Ok(true), Ok(false), Err(JwtError::ForeignKey)];
        assert_eq!(jwts.each_ref().map(by_signing_key), expected);
    }

    #[test]
    fn a_jwt_that_names_another_key_of_the_ring_is_refused() {
        let (old, new) = (key(), key());
        let now = Timestamp::now();
        let [by_old, by_new] = [&old, &new].map(|key| key.sign("a", now).unwrap().text);
        let (header, _) = by_new.split_once('.').unwrap();
        let (_, rest) = by_old.split_once('.').unwrap();
        let mixed = format!("{header}.{rest}");
        let ring = Keyring::new(new, [old.public.clone()]);
        assert_eq!(ring.verify(&mixed, now), Err(JwtError::Signature));
    }

    #[test]
    fn a_key_that_is_given_twice_is_published_once() {
        let (old, new) = (key(), key());
        let extra = [&new, &old, &old].map(|key| key.public.clone());
        let expected = [old.kid().to_owned()];
        let ring = Keyring::new(new, extra);
        assert_eq!(ring.extra_kids(), expected);
        let document: serde_json::Value = serde_json::from_str(&ring.jwks().body).unwrap();
        assert_eq!(document["keys"][0]["kid"], ring.signing().kid());
        assert_eq!(document["keys"][1]["kid"], expected[0]);
        assert_eq!(document["keys"][2], serde_json::Value::Null);
    }
}
