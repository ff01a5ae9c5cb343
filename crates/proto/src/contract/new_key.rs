//! What an agent signs with a new key, to prove that it holds it.

/// Bytes of `Welcome.nonce`.
pub const NONCE_BYTES: usize = 16;

/// The bytes that `NewKey.signature` is of. `agent` is the agent's id, and `key` the SHA-256 of the new key's SubjectPublicKeyInfo.
pub fn signed_bytes(agent: [u8; 16], nonce: &[u8], key: &[u8; 32]) -> Vec<u8> {
    [b"svc-ingest new key\0", &agent[..], nonce, key].concat()
}
