//! Which servers the agent trusts, and the TLS settings of its connections.
//!
//! The agent trusts the system's root certificates, or those in `ca_cert_file`. That file may
//! contain the server's own certificate, which `openssl req -x509` marks as a certificate
//! authority (CA:TRUE), and webpki accepts no authority as a server certificate. So a server
//! certificate that equals one in the file, byte for byte, is *pinned*: it needs no chain. Its
//! name and dates are still checked, and so is the server's possession of the key.
//!
//! Anchors that the service has announced (`anchors`) are trusted beside them, in the same way.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
        verify_tls13_signature,
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use webpki::EndEntityCert;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{identity::Identity, wire::Server};

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("ca_cert_file: {path} cannot be read: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("ca_cert_file: {path} contains no certificate in PEM form", path = path.display())]
    Empty { path: PathBuf },
    #[error("this system has no root certificates: install ca-certificates, or set ca_cert_file")]
    NoRoots,
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(#[from] Error),
}

/// The certificates that the agent trusts.
#[derive(Clone, Debug)]
pub struct Trust {
    roots: Arc<RootCertStore>,
    /// Certificates that are also trusted without a chain.
    pinned: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Trusts the certificates of a file, or the system's roots.
    pub fn load(ca_cert_file: Option<&Path>) -> Result<Self, TrustError> {
        match ca_cert_file {
            Some(path) => Self::from_file(path),
            None => Self::system(),
        }
    }

    /// The same, and these certificates. With them, the system needs no roots.
    pub fn load_with(
        ca_cert_file: Option<&Path>,
        more: &[CertificateDer<'static>],
    ) -> Result<Self, TrustError> {
        let configured = match Self::load(ca_cert_file) {
            Err(TrustError::NoRoots) if !more.is_empty() => Self::of_certificates(Vec::new()),
            loaded => loaded?,
        };
        let mut roots = RootCertStore::clone(&configured.roots);
        roots.add_parsable_certificates(more.iter().cloned());
        let mut pinned = more.to_vec();
        let further = configured.pinned.into_iter();
        pinned.extend(further.filter(|one| !more.contains(one)));
        Ok(Self {
            roots: Arc::new(roots),
            pinned,
        })
    }

    /// All but the system's roots.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.pinned
    }

    /// Whether a connection to this server would be trusted now.
    pub fn verifies(&self, server: &Server) -> bool {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (Some((leaf, further)), Ok(verifier)) =
            (server.chain.split_first(), self.verifier(&provider))
        else {
            return false;
        };
        verifier
            .verify_server_cert(leaf, further, &server.name, &[], UnixTime::now())
            .is_ok()
    }

    /// Trusts these certificates, as issuers and pinned.
    pub fn of_certificates(pinned: Vec<CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(pinned.iter().cloned());
        Self {
            roots: Arc::new(roots),
            pinned,
        }
    }

    fn from_file(path: &Path) -> Result<Self, TrustError> {
        let text = std::fs::read(path).map_err(|source| TrustError::Unreadable {
            path: path.into(),
            source,
        })?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(Self::of_certificates(certificates)),
            _ => Err(TrustError::Empty { path: path.into() }),
        }
    }

    fn system() -> Result<Self, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(TrustError::NoRoots);
        }
        Ok(Self {
            roots: Arc::new(roots),
            pinned: Vec::new(),
        })
    }

    /// Trusts the system's roots as well, if there are any.
    pub fn with_system(self) -> Self {
        let mut roots = RootCertStore::clone(&self.roots);
        if let Ok(system) = Self::system() {
            roots.extend(system.roots.roots.iter().cloned());
        }
        Self {
            roots: Arc::new(roots),
            ..self
        }
    }

    /// Trusts these certificates as well.
    pub fn and(self, certificates: &[CertificateDer<'static>]) -> Self {
        if certificates.is_empty() {
            return self;
        }
        let mut roots = RootCertStore::clone(&self.roots);
        roots.add_parsable_certificates(certificates.iter().cloned());
        let pinned = [self.pinned.as_slice(), certificates].concat();
        Self {
            roots: Arc::new(roots),
            pinned,
        }
    }

    /// The TLS settings of a download: HTTP/1.1, without a client certificate.
    pub fn anonymous(&self) -> Result<ClientConfig, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Arc::new(self.verifier(&provider)?);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The TLS settings of an agent: its certificate, HTTP/2, and no session resumption,
    /// because the service verifies the certificate of every connection.
    pub fn client(&self, identity: &Identity) -> Result<ClientConfig, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Arc::new(self.verifier(&provider)?);
        let (chain, key) = identity.certified();
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Verifier, TrustError> {
        let chains =
            WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()));
        // Certificates that cannot be roots leave the store empty. They are still pinned.
        let chains = match chains {
            Ok(chains) => Some(chains),
            Err(_) if !self.pinned.is_empty() => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Verifier {
            algorithms: provider.signature_verification_algorithms,
            chains,
            pinned: self.pinned.clone(),
        })
    }
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    chains: Option<Arc<WebPkiServerVerifier>>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned.iter().any(|pinned| pinned == leaf) {
            return verify_pinned(leaf, name, now).map(|()| ServerCertVerified::assertion());
        }
        match &self.chains {
            Some(chains) => chains.verify_server_cert(leaf, intermediates, name, ocsp, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks the name and the dates of a pinned certificate.
fn verify_pinned(
    leaf: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let bad = || Error::from(CertificateError::BadEncoding);
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| bad())?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    let names = EndEntityCert::try_from(leaf).map_err(|_| bad())?;
    if names.verify_is_valid_for_subject_name(name).is_ok() || is_common_name(&parsed, name) {
        return Ok(());
    }
    Err(CertificateError::NotValidForName.into())
}

/// `openssl req -x509 -subj /CN=…` writes no alternative name. For a pinned certificate the
/// common name is sufficient.
fn is_common_name(certificate: &X509Certificate<'_>, name: &ServerName<'_>) -> bool {
    let no_other = matches!(certificate.subject_alternative_name(), Ok(None));
    let mut common = certificate.subject().iter_common_name();
    let common = common.next().and_then(|name| name.as_str().ok());
    let fits = |common: &str| match name {
        ServerName::DnsName(dns) => dns.as_ref().eq_ignore_ascii_case(common),
        ServerName::IpAddress(ip) => common
            .parse()
            .is_ok_and(|common: IpAddr| common == IpAddr::from(*ip)),
        _ => false,
    };
    no_other && common.is_some_and(fits)
}
