//! A server's certificate and key from two files, for every port that ends TLS, and what keeps them fresh.

mod facts;
mod reload;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustls::{
    CipherSuite,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use zeroize::Zeroizing;

pub use facts::CertificateFacts;
pub use reload::Reload;

use crate::{settings::Reader, sync::lock};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} holds no PEM certificate", path = path.display())]
    NoCertificate { path: PathBuf },
    #[error("{path} is damaged or cut short: its PEM text does not decode", path = path.display())]
    Damaged { path: PathBuf },
    #[error("{path} holds no usable PEM certificate", path = path.display())]
    NoAuthority { path: PathBuf },
    #[error("{path} holds no PEM private key that can be used: PKCS#8, PKCS#1 or SEC1, not encrypted", path = path.display())]
    NoKey { path: PathBuf },
    #[error("{path} is not the key of the certificate", path = path.display())]
    Mismatch { path: PathBuf },
    #[error("the pair cannot be used: {0}")]
    Unusable(rustls::Error),
}

/// The file of a pair that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairFile {
    Certificate,
    Key,
}

/// A certificate chain and its private key, read from two files and known to match.
#[derive(Clone, Debug)]
pub struct TlsPair {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    certified: Arc<CertifiedKey>,
}

impl TlsPair {
    /// Returns everything that is wrong with the two files at once.
    pub fn load(
        certificate_file: &Path,
        key_file: &Path,
    ) -> Result<Self, Vec<(PairFile, TlsError)>> {
        let (chain, key) = match (read_chain(certificate_file), read_key(key_file)) {
            (Ok(chain), Ok(key)) => (chain, key),
            (chain, key) => {
                let chain = chain.err().map(|error| (PairFile::Certificate, error));
                let key = key.err().map(|error| (PairFile::Key, error));
                return Err(chain.into_iter().chain(key).collect());
            }
        };
        let certified = CertifiedKey::from_der(chain, key, &provider())
            .map_err(|error| vec![(PairFile::Key, unusable(error, key_file))])?;
        Ok(Self {
            certificate_file: certificate_file.into(),
            key_file: key_file.into(),
            certified: Arc::new(certified),
        })
    }

    /// Like `load`, for two variables that name the files.
    pub fn read(
        reader: &mut Reader<'_>,
        certificate: (&'static str, &Path),
        key: (&'static str, &Path),
    ) -> Option<Self> {
        let errors = match Self::load(certificate.1, key.1) {
            Ok(pair) => return Some(pair),
            Err(errors) => errors,
        };
        for (file, error) in errors {
            let name = match file {
                PairFile::Certificate => certificate.0,
                PairFile::Key => key.0,
            };
            reader.problem::<Self>(name, error);
        }
        None
    }

    /// The server's certificate first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// Names and expiry of the certificate; `None` if they cannot be parsed.
    pub fn facts(&self) -> Option<CertificateFacts> {
        CertificateFacts::of(self.certified.cert.first()?)
    }
}

/// The certificate in service. A reload replaces one pointer.
#[derive(Debug)]
struct CurrentCertificate(Mutex<Arc<CertifiedKey>>);

impl CurrentCertificate {
    fn new(pair: &TlsPair) -> Arc<Self> {
        Arc::new(Self(Mutex::new(pair.certified.clone())))
    }

    fn replace(&self, pair: &TlsPair) {
        *lock(&self.0) = pair.certified.clone();
    }

    /// The leaf that is served now.
    #[cfg(test)]
    fn certificate(&self) -> Vec<u8> {
        lock(&self.0).cert[0].to_vec()
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(lock(&self.0).clone())
    }
}

/// The default cryptography, but AES-128 with SHA-256 first: the SHA-384 of rustls' own first choice has no instructions in most
/// processors, and took 5 % of the CPU while a fleet registered.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    let cheapest = CipherSuite::TLS13_AES_128_GCM_SHA256;
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|suite| suite.suite() != cheapest);
    Arc::new(provider)
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = certificates(path)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(chain)
}

/// All of them or none: a chain that has lost a link would fail at the agents.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let certificates: Result<_, _> = CertificateDer::pem_slice_iter(strip_bom(&text)).collect();
    certificates.map_err(|_| TlsError::Damaged { path: path.into() })
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = Zeroizing::new(read(path)?);
    PrivateKeyDer::from_pem_slice(strip_bom(&text))
        .map_err(|_| TlsError::NoKey { path: path.into() })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    read_file(path).map_err(|source| TlsError::Unreadable {
        path: path.into(),
        source,
    })
}

fn unusable(error: rustls::Error, key_file: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
            path: key_file.into(),
        },
        error => TlsError::Unusable(error),
    }
}

fn strip_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Only a regular file: opening a FIFO would wait for its other end.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read(path)
}
