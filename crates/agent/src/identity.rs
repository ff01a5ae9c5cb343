//! The agent's identity: a private key. The service identifies the agent by the SHA-256 of
//! the public key, its fingerprint, which an administrator compares before approving.
//!
//! The certificate around the key is self-signed. The service ignores its names and dates,
//! so it never has to be renewed.

use std::{fmt, path::PathBuf};

use aws_lc_rs::{
    digest,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use webpki::EndEntityCert;

use crate::{
    config::{ClientPair, is_open_to_all},
    data_dir::short,
};

/// What stands above the key in its file, so that it is copied and replaced with the key.
const MADE: &str = "made: ";
const SPOOL: &str = "spool: ";

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("no key could be created")]
    Create(#[source] rcgen::Error),
    #[error("{what} contains no private key in PEM form")]
    NoKey { what: String },
    #[error("{what} contains no certificate in PEM form")]
    NoCertificate { what: String },
    #[error("every user can read the private key {path}: run `chmod o-rwx {path}`", path = path.display())]
    OpenToAll { path: PathBuf },
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// A key and its certificate, which may be a chain of the site's own PKI.
pub struct Identity {
    key: PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    fingerprint: [u8; 32],
    made: Option<Timestamp>,
    spool: Option<String>,
}

impl Identity {
    pub fn generate() -> Result<Self, IdentityError> {
        Ok(Self::generate_with_pem(Timestamp::now(), None)?.0)
    }

    /// A new identity, and the text to store it as. `spool`: that of the key whose place it takes.
    pub fn generate_with_pem(
        made: Timestamp,
        spool: Option<&str>,
    ) -> Result<(Self, String), IdentityError> {
        let spool = spool.map(|spool| format!("{SPOOL}{spool}\n"));
        let pem = generate_pem().map_err(IdentityError::Create)?;
        let text = format!("{MADE}{made}\n{}{pem}", spool.unwrap_or_default());
        Ok((Self::from_pem(&text, "a new identity")?, text))
    }

    /// From a text with the key and the certificate.
    pub fn from_pem(text: &str, what: &str) -> Result<Self, IdentityError> {
        let note = |name| {
            let notes = text.lines().take_while(|line| !line.starts_with("-----"));
            notes.filter_map(|line| line.strip_prefix(name)).next()
        };
        let is_folder =
            |name: &&str| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(Self {
            made: note(MADE).and_then(|made| made.parse().ok()),
            spool: note(SPOOL).filter(is_folder).map(str::to_owned),
            ..Self::from_parts(text, what, text, what)?
        })
    }

    /// From the files of a site's own PKI.
    pub fn from_files(pair: &ClientPair) -> Result<Self, IdentityError> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| IdentityError::Unreadable {
                path: path.clone(),
                source,
            })
        };
        if is_open_to_all(&pair.key) {
            let path = pair.key.clone();
            return Err(IdentityError::OpenToAll { path });
        }
        let (certificate, key) = (read(&pair.certificate)?, read(&pair.key)?);
        let name = |path: &PathBuf| path.display().to_string();
        Self::from_parts(
            &certificate,
            &name(&pair.certificate),
            &key,
            &name(&pair.key),
        )
    }

    fn from_parts(
        certificate: &str,
        certificate_name: &str,
        key: &str,
        key_name: &str,
    ) -> Result<Self, IdentityError> {
        let no_certificate = || IdentityError::NoCertificate {
            what: certificate_name.into(),
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| no_certificate())?;
        let leaf = chain.first().ok_or_else(no_certificate)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(|_| no_certificate())?;
        let fingerprint = sha256(&leaf.subject_public_key_info());
        let key =
            PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| IdentityError::NoKey {
                what: key_name.into(),
            })?;
        Ok(Self {
            key,
            chain,
            fingerprint,
            made: None,
            spool: None,
        })
    }

    /// SHA-256 of the public key (SPKI).
    pub fn key_hash(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The hash of the key in hexadecimal, as `svc-ingest agent show` prints it.
    pub fn fingerprint(&self) -> String {
        let bytes = self.fingerprint.iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn made(&self) -> Option<Timestamp> {
        self.made
    }

    /// The name of the folder of the agent's samples: after its first key.
    pub fn spool(&self) -> String {
        let own = || short(&self.fingerprint()).to_owned();
        self.spool.clone().unwrap_or_else(own)
    }

    /// The SubjectPublicKeyInfo, DER.
    pub(crate) fn spki(&self) -> Vec<u8> {
        let leaf = self
            .chain
            .first()
            .and_then(|leaf| EndEntityCert::try_from(leaf).ok());
        leaf.map(|leaf| leaf.subject_public_key_info().to_vec())
            .unwrap_or_default()
    }

    /// A signature by a key that the agent made. `None` for one of another kind.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, self.key.secret_der()).ok()?;
        let signature = pair.sign(&SystemRandom::new(), bytes).ok()?;
        Some(signature.as_ref().to_vec())
    }

    /// The chain that TLS presents, and the key that proves it.
    pub(crate) fn certified(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain.clone(), self.key.clone_key())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

fn generate_pem() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = Default::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "svc-agent");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.self_signed(&key)?;
    Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_being_stored() {
        let at: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
        let (first, text) = Identity::generate_with_pem(at, None).unwrap();
        assert_eq!(
            (first.made(), first.spool()),
            (Some(at), first.fingerprint()[..16].into())
        );
        assert!(text.contains("PRIVATE KEY"));
        let (made, text) = Identity::generate_with_pem(at, Some(&first.spool())).unwrap();
        let read = Identity::from_pem(&text, "identity.pem").unwrap();
        assert_eq!((read.made(), read.spool()), (Some(at), first.spool()));
        assert_eq!(made.fingerprint(), read.fingerprint());
        assert_eq!(made.fingerprint().len(), 64);
        assert_ne!(
            made.fingerprint(),
            Identity::generate().unwrap().fingerprint()
        );
    }

    #[test]
    fn a_damaged_text_is_named_but_its_content_is_not_shown() {
        let (_, text) = Identity::generate_with_pem(Timestamp::now(), None).unwrap();
        for cut in [0, 10, text.len() / 3, text.len() - 40] {
            let error = Identity::from_pem(&text[..cut], "identity.pem").unwrap_err();
            assert!(error.to_string().starts_with("identity.pem"), "{error}");
        }
        let shown = format!("{:?}", Identity::generate().unwrap());
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }
}
