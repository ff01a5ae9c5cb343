//! The Ed25519 keys that sign releases, in the forms that OpenSSL reads and writes: PKCS#8 and SPKI, as PEM.

use std::fmt;

use aws_lc_rs::{
    digest::{SHA256, digest},
    encoding::AsDer,
    error::Unspecified,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject};
use zeroize::Zeroizing;

pub const SIGNATURE_LENGTH: usize = 64;

/// More text than any list of trusted keys needs.
const LONGEST_PEM: usize = 16 * 1024;

/// What precedes the 32 bytes of every Ed25519 key in its SPKI form (RFC 8410).
const SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("no `-----BEGIN PRIVATE KEY-----` with an Ed25519 key in PKCS#8")]
    NotPrivate,
    #[error("the key has a passphrase; sign with `openssl pkeyutl`, which asks for it")]
    Encrypted,
    #[error("no `-----BEGIN PUBLIC KEY-----` with an Ed25519 key")]
    NotPublic,
    #[error("larger than {LONGEST_PEM} bytes")]
    TooLong,
    #[error("the cryptography failed")]
    Failed(#[from] Unspecified),
}

/// The key that signs. It is neither shown nor logged.
pub struct SecretKey(Ed25519KeyPair);

impl SecretKey {
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(Ed25519KeyPair::generate()?))
    }

    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        check_length(pem)?;
        if pem.contains("BEGIN ENCRYPTED PRIVATE KEY") {
            return Err(KeyError::Encrypted);
        }
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes());
        let der = der.map_err(|_| KeyError::NotPrivate)?;
        let pair = Ed25519KeyPair::from_pkcs8(der.secret_pkcs8_der());
        Ok(Self(pair.map_err(|_| KeyError::NotPrivate)?))
    }

    /// Version 1 of PKCS#8, as `openssl genpkey` writes it.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        let der = self.0.to_pkcs8v1()?;
        Ok(Zeroizing::new(pem("PRIVATE KEY", der.as_ref())))
    }

    pub fn public_key(&self) -> Result<PublicKey, KeyError> {
        let der = self.0.public_key().as_der()?;
        PublicKey::from_spki(der.as_ref())
    }

    pub fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, KeyError> {
        Ok(self.0.try_sign(bytes)?.as_ref().to_vec())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SecretKey")
    }
}

/// A key that is trusted to sign releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    fn from_spki(der: &[u8]) -> Result<Self, KeyError> {
        let key = der.strip_prefix(&SPKI).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or(KeyError::NotPublic)
    }

    /// All keys of a file. While keys change, it has the old one and the new one.
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, KeyError> {
        check_length(pem)?;
        let keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem.as_bytes()).map(|der| {
            let der = der.map_err(|_| KeyError::NotPublic)?;
            Self::from_spki(&der)
        });
        let keys: Vec<Self> = keys.collect::<Result<_, _>>()?;
        match keys.is_empty() {
            true => Err(KeyError::NotPublic),
            false => Ok(keys),
        }
    }

    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &self.spki())
    }

    /// SHA-256 of the SPKI form: the checksum of `openssl pkey -pubin -outform DER`.
    pub fn fingerprint(&self) -> String {
        hex(digest(&SHA256, &self.spki()).as_ref())
    }

    pub fn has_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        signature.len() == SIGNATURE_LENGTH && key.verify(bytes, signature).is_ok()
    }

    fn spki(&self) -> Vec<u8> {
        [&SPKI[..], &self.0].concat()
    }
}

fn check_length(pem: &str) -> Result<(), KeyError> {
    match pem.len() > LONGEST_PEM {
        true => Err(KeyError::TooLong),
        false => Ok(()),
    }
}

/// Both forms of an Ed25519 key fit into one line of PEM.
fn pem(label: &str, der: &[u8]) -> String {
    let body = Zeroizing::new(BASE64_STANDARD.encode(der));
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        *body
    )
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_text() {
        let key = SecretKey::generate().unwrap();
        let again = SecretKey::from_pem(&key.to_pem().unwrap()).unwrap();
        let public = again.public_key().unwrap();
        assert_eq!(
            PublicKey::all_from_pem(&public.to_pem()).unwrap(),
            [key.public_key().unwrap()]
        );
        let signature = key.sign(b"text").unwrap();
        assert!(public.has_signed(b"text", &signature));
        assert!(!public.has_signed(b"texT", &signature));
        assert!(!public.has_signed(b"text", &signature[..63]));
        assert_eq!(format!("{key:?}"), "SecretKey");
    }

    #[test]
    fn a_file_has_several_trusted_keys_and_one_wrong_one_refuses_it() {
        let pems: Vec<String> = (0..2)
            .map(|_| {
                SecretKey::generate()
                    .unwrap()
                    .public_key()
                    .unwrap()
                    .to_pem()
            })
            .collect();
        assert_eq!(PublicKey::all_from_pem(&pems.concat()).unwrap().len(), 2);
        let wrong = pem("PUBLIC KEY", &[0; 44]);
        for text in ["", "no key", &wrong, &[&*pems[0], &wrong].concat()] {
            let error = PublicKey::all_from_pem(text).unwrap_err();
            assert!(matches!(error, KeyError::NotPublic), "{text}");
        }
        let long = pems[0].repeat(LONGEST_PEM);
        assert!(matches!(
            PublicKey::all_from_pem(&long),
            Err(KeyError::TooLong)
        ));
    }

    #[test]
    fn other_keys_are_refused_with_the_reason() {
        let public = SecretKey::generate()
            .unwrap()
            .public_key()
            .unwrap()
            .to_pem();
        for text in ["", &public, &pem("PRIVATE KEY", &[0; 48])] {
            let error = SecretKey::from_pem(text).unwrap_err();
            assert!(matches!(error, KeyError::NotPrivate), "{text}");
        }
        let encrypted = pem("ENCRYPTED PRIVATE KEY", &[0; 48]);
        assert!(matches!(
            SecretKey::from_pem(&encrypted),
            Err(KeyError::Encrypted)
        ));
    }
}
