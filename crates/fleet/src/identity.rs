//! The identity of a virtual agent: its key, its certificate and its machine, derived from the fleet's
//! seed and the agent's number.
//!
//! The same seed and number always give the same key and the same machine. So a fleet of any size can be
//! stopped and started again without keys on disk, and two fleets with different seeds share nothing.
//! The seed gives away every key: use these identities for load tests only.

use std::{fmt, sync::Arc};

use anyhow::Context;
use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{crypto::aws_lc_rs::sign::any_ecdsa_type, sign::CertifiedKey};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use svc_proto::v1::HostFacts;
use uuid::Uuid;

/// The DER encoding of a P-256 private key (RFC 5915) is these bytes around the 32 bytes of the key. The
/// public key is left out; the library computes it.
const SEC1_HEAD: [u8; 7] = [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20];
const SEC1_TAIL: [u8; 12] = [
    0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
];
/// A random number is not a valid key with a probability of about 2^-32; then the next one is tried.
const KEY_TRIES: u8 = 4;

/// The secret that all identities of a fleet are derived from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// The same text gives the same fleet.
    pub fn of(text: &str) -> Seed {
        Seed(hash(&[b"svc-fleet seed", text.as_bytes()]))
    }

    fn derive(&self, what: &str, number: u32, attempt: u8) -> [u8; 32] {
        hash(&[&self.0, what.as_bytes(), &number.to_be_bytes(), &[attempt]])
    }
}

/// Does not print the seed: it gives away the private keys.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

/// An agent's key and certificate, ready for handshakes.
pub fn identity(seed: Seed, number: u32) -> anyhow::Result<Arc<CertifiedKey>> {
    let pkcs8 = (0..KEY_TRIES)
        .find_map(|attempt| pkcs8(&seed.derive("key", number, attempt)))
        .context("could not derive a key")?;
    let der = PrivatePkcs8KeyDer::from(pkcs8);
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "svc-fleet");
    let certificate = params.self_signed(&pair)?;
    let signing = any_ecdsa_type(&PrivateKeyDer::Pkcs8(der))?;
    let chain = vec![certificate.der().clone()];
    Ok(Arc::new(CertifiedKey::new(chain, signing)))
}

/// The facts of the machine that an agent claims to run on.
pub fn machine(seed: Seed, number: u32) -> HostFacts {
    let digest = seed.derive("machine", number, 0);
    let (uuid, machine_id) = digest.split_at(16);
    HostFacts {
        hostname: format!("fleet-{number:06}"),
        os: "Debian GNU/Linux".into(),
        os_version: "12".into(),
        arch: "x86_64".into(),
        kernel_version: "6.1.0".into(),
        machine_id: hex(machine_id),
        hardware_uuid: random_uuid(uuid).to_string(),
        ip_addresses: vec![format!("10.{}.{}.{}", digest[0], digest[1], digest[2])],
        boot_id: random_uuid(&seed.derive("boot", number, 0)).to_string(),
        cpu_count: 4,
        memory_total_bytes: 8 << 30,
        ..HostFacts::default()
    }
}

fn pkcs8(secret: &[u8; 32]) -> Option<Vec<u8>> {
    let sec1 = [&SEC1_HEAD[..], secret, &SEC1_TAIL].concat();
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, &sec1).ok()?;
    Some(pair.to_pkcs8v1().ok()?.as_ref().to_vec())
}

fn random_uuid(bytes: &[u8]) -> Uuid {
    let mut sixteen = [0; 16];
    sixteen.copy_from_slice(&bytes[..16]);
    uuid::Builder::from_random_bytes(sixteen).into_uuid()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut result = [0; 32];
    result.copy_from_slice(digest(&SHA256, &parts.concat()).as_ref());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spki(key: &CertifiedKey) -> Vec<u8> {
        key.key.public_key().unwrap().to_vec()
    }

    #[test]
    fn a_seed_and_a_number_determine_the_agent() {
        let (one, two) = (Seed::of("one"), Seed::of("two"));
        let of = |seed, number| spki(&identity(seed, number).unwrap());
        assert_eq!(of(one, 1), of(one, 1));
        assert_ne!(of(one, 1), of(one, 2));
        assert_ne!(of(one, 1), of(two, 1));
        assert_eq!(machine(one, 1), machine(one, 1));
        assert_ne!(machine(one, 1).hardware_uuid, machine(two, 1).hardware_uuid);
    }
}
