//! A new key that an agent announces: its form and the proof that the agent holds it. What is proven goes to the pass that stores
//! keys ([`NextKeys`](crate::session::NextKeys)); the answer comes back as mail.

use aws_lc_rs::{
    digest,
    signature::{self, UnparsedPublicKey},
};
use svc_proto::{contract::new_key::signed_bytes, v1::NewKey};
use svc_store::NextKey;

use super::{
    StreamEnd,
    stream::{Event, HeartbeatStream},
    violation,
};
use crate::session::StoredKey;

/// An agent needs one.
const MAX_NEW_KEYS: u8 = 4;

/// What the SubjectPublicKeyInfo of such a key begins with; its public key follows.
const P256: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P256_KEY: usize = 65;
const ED25519: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const ED25519_KEY: usize = 32;

impl HeartbeatStream {
    pub(super) fn new_key(&mut self, announced: &NewKey) -> Result<Event, StreamEnd> {
        self.new_keys += 1;
        if self.new_keys > MAX_NEW_KEYS {
            return Err(violation("too many new keys came on one stream"));
        }
        let mut key = [0; 32];
        key.copy_from_slice(digest::digest(&digest::SHA256, &announced.spki).as_ref());
        let agent = self.session.agent;
        let signed = signed_bytes(agent.0.into_bytes(), &self.nonce, &key);
        match verify(&announced.spki, &signed, &announced.signature) {
            Ok(()) => self.context.sessions.next_keys.put(NextKey {
                agent,
                epoch: self.session.epoch,
                key,
            }),
            Err(refused) => self.inbox.key_stored(StoredKey {
                key,
                refused: refused.into(),
            }),
        }
        Ok(Event::Ready)
    }
}

fn verify(spki: &[u8], signed: &[u8], signature: &[u8]) -> Result<(), &'static str> {
    let key_of = |prefix, length| {
        let key: Option<&[u8]> = spki.strip_prefix(prefix);
        key.filter(|key| key.len() == length)
    };
    let verified = match (key_of(P256, P256_KEY), key_of(ED25519, ED25519_KEY)) {
        (Some(key), _) => UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_ASN1, key)
            .verify(signed, signature),
        (_, Some(key)) => {
            UnparsedPublicKey::new(&signature::ED25519, key).verify(signed, signature)
        }
        (None, None) => return Err("the key is neither ECDSA P-256 nor Ed25519"),
    };
    verified.map_err(|_| "the signature is not by this key of this stream's nonce")
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    #[test]
    fn only_a_signature_by_the_key_itself_is_a_proof() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let spki = [ED25519, pair.public_key().as_ref()].concat();
        let signature = pair.sign(b"text");
        assert_eq!(verify(&spki, b"text", signature.as_ref()), Ok(()));
        assert!(verify(&spki, b"other", signature.as_ref()).is_err());
        assert!(verify(&spki, b"text", &[]).is_err());
        let other = Ed25519KeyPair::generate().unwrap();
        let other = [ED25519, other.public_key().as_ref()].concat();
        assert!(verify(&other, b"text", signature.as_ref()).is_err());
        for malformed in [&[][..], &spki[1..], &[spki.as_slice(), b"x"].concat()] {
            assert!(verify(malformed, b"text", signature.as_ref()).is_err());
        }
    }
}
