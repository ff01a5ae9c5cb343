//! New keys of fake agents, with the proof that the wire contract asks for.

use anyhow::{Context, ensure};
use aws_lc_rs::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use svc_proto::{
    ClientMessage,
    contract::new_key::signed_bytes,
    v1::{KeyStored, NewKey},
};
use svc_sandbox::Identity;

use crate::{ActiveAgent, FakeAgent, HeartbeatCall};

const P256: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";

/// The announcement of a key, for the stream of this agent with this nonce.
pub fn new_key(agent: &str, nonce: &[u8], key: &Identity) -> anyhow::Result<NewKey> {
    let (pair, spki) = pair(key)?;
    let agent = u128::from_str_radix(&agent.replace('-', ""), 16)?;
    let signed = signed_bytes(agent.to_be_bytes(), nonce, &sha256(&spki));
    let signature = pair.sign(&SystemRandom::new(), &signed);
    let signature = signature.ok().context("a signature")?.as_ref().to_vec();
    Ok(NewKey { spki, signature })
}

/// SHA-256 of the public key, which identifies its agent.
pub(crate) fn key_hash(key: &Identity) -> anyhow::Result<[u8; 32]> {
    pair(key).map(|(_, spki)| sha256(&spki))
}

/// The key, and its SubjectPublicKeyInfo.
fn pair(key: &Identity) -> anyhow::Result<(EcdsaKeyPair, Vec<u8>)> {
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.key_der);
    let pair = pair.ok().context("a P-256 key")?;
    let spki = [P256, pair.public_key().as_ref()].concat();
    Ok((pair, spki))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

impl ActiveAgent {
    /// The same agent with another key.
    pub fn with_key(&self, identity: Identity) -> Self {
        let host = self.agent.host.clone();
        Self {
            agent: FakeAgent { identity, host },
            ..self.clone()
        }
    }

    /// Makes a key and announces it on this stream, which stores it. Returns the agent with that key.
    pub async fn announces(&self, call: &mut HeartbeatCall) -> anyhow::Result<Self> {
        let next = Identity::self_signed("next")?;
        let announced = new_key(&self.id, &call.welcome.nonce, &next)?;
        let stored = call.announced(announced).await?;
        ensure!(stored.refused.is_empty(), "{stored:?}");
        Ok(self.with_key(next))
    }
}

impl HeartbeatCall {
    /// Announces a key. Returns what became of it.
    pub async fn announced(&mut self, key: NewKey) -> anyhow::Result<KeyStored> {
        self.send(ClientMessage::NewKey(key)).await?;
        self.next_key_stored().await
    }
}
