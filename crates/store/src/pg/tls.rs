//! TLS to the database, with libpq's meaning of `sslmode`.
//!
//! One verifier serves all modes: it verifies nothing, the chain, or the chain and the name.
//! The signature of the handshake is verified in all modes. The provider is aws-lc-rs,
//! independent of the process's default.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
        verify_tls13_signature,
    },
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The ALPN protocol that PostgreSQL requires for direct TLS (`sslnegotiation=direct`).
const ALPN: &[u8] = b"postgresql";

type Result<T, E = TlsError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {key} {}", path.display())]
    Read {
        key: &'static str,
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("{key} {} contains no certificate", path.display())]
    Empty { key: &'static str, path: PathBuf },
    #[error("a certificate in sslrootcert {} is not usable", path.display())]
    Root {
        path: PathBuf,
        #[source]
        source: Error,
    },
    #[error("sslrootcert=system, but the system has no certificates")]
    NoSystemRoots,
    #[error("sslcert and sslkey do not match")]
    ClientPair(#[source] Error),
    #[error("the TLS library rejected its settings")]
    Library(#[source] Error),
}

/// The trusted root certificates.
#[derive(Debug, Clone)]
pub(crate) enum Roots {
    File(PathBuf),
    System,
}

/// What is verified of the server's certificate.
#[derive(Debug, Clone)]
pub(crate) enum Check {
    Nothing,
    Chain(Roots),
    ChainAndName(Roots),
}

/// The client certificate, sent if the server asks for one.
#[derive(Debug, Clone)]
pub(crate) struct ClientPair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

pub(crate) fn connector(check: &Check, client: Option<&ClientPair>) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Verifier::new(check, &provider)?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(pair) => builder
            .with_client_auth_cert(certificates("sslcert", &pair.cert)?, key(&pair.key)?)
            .map_err(TlsError::ClientPair)?,
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

#[derive(Debug)]
struct Verifier {
    /// `None`: any certificate is accepted.
    roots: Option<Arc<RootCertStore>>,
    /// The certificates of `sslrootcert`, compared byte by byte. A self-signed server
    /// certificate, made as in PostgreSQL's manual, is marked as a CA, and webpki rejects a CA
    /// as a server certificate. If it is listed in `sslrootcert`, it is trusted anyway.
    named: Vec<CertificateDer<'static>>,
    name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(check: &Check, provider: &CryptoProvider) -> Result<Verifier> {
        let (roots, name) = match check {
            Check::Nothing => (None, false),
            Check::Chain(roots) => (Some(roots), false),
            Check::ChainAndName(roots) => (Some(roots), true),
        };
        let loaded = roots.map(load_roots).transpose()?;
        let (roots, named) = loaded.unzip();
        Ok(Verifier {
            roots: roots.map(Arc::new),
            named: named.unwrap_or_default(),
            name,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(leaf)?;
        if self.named.contains(leaf) {
            check_dates(leaf, now)?;
        } else {
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if self.name {
            verify_server_name(&parsed, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn check_dates(leaf: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| bad())?;
    let seconds = i64::try_from(now.as_secs()).map_err(|_| bad())?;
    let now = ASN1Time::from_timestamp(seconds).map_err(|_| bad())?;
    if parsed.validity().is_valid_at(now) {
        return Ok(());
    }
    let early = now < parsed.validity().not_before;
    Err(Error::InvalidCertificate(match early {
        true => CertificateError::NotValidYet,
        false => CertificateError::Expired,
    }))
}

type LoadedRoots = (RootCertStore, Vec<CertificateDer<'static>>);

fn load_roots(roots: &Roots) -> Result<LoadedRoots> {
    match roots {
        Roots::File(path) => load_root_file(path),
        Roots::System => Ok((load_system_roots()?, Vec::new())),
    }
}

fn load_root_file(path: &Path) -> Result<LoadedRoots> {
    let named = certificates("sslrootcert", path)?;
    let mut store = RootCertStore::empty();
    for certificate in &named {
        let added = store.add(certificate.clone());
        added.map_err(|source| TlsError::Root {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok((store, named))
}

fn load_system_roots() -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match store.is_empty() {
        true => Err(TlsError::NoSystemRoots),
        false => Ok(store),
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = |source| TlsError::Read {
        key,
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(read)?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(read)?;
    if certificates.is_empty() {
        let path = path.to_owned();
        return Err(TlsError::Empty { key, path });
    }
    Ok(certificates)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::Read {
        key: "sslkey",
        path: path.to_owned(),
        source,
    })
}
