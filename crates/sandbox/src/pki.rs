//! Certificates for development and tests: ECDSA P-256, quick to make.
//!
//! The certificate of a server is never CA:TRUE, because rustls refuses such a leaf. The
//! certificate of a client needs no names and no dates: the service identifies an agent by its key.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

/// A private key and its certificate.
#[derive(Clone)]
pub struct Identity {
    pub cert_pem: String,
    pub key_pem: String,
    pub cert_der: Vec<u8>,
    pub key_der: Vec<u8>,
}

impl Identity {
    /// Makes a certificate for a client: a common name and no other names.
    pub fn self_signed(common_name: &str) -> anyhow::Result<Identity> {
        self_signed(&client_params(common_name)?)
    }

    /// Makes a certificate for a server, with DNS names and IP addresses.
    pub fn server(names: &[&str]) -> anyhow::Result<Identity> {
        self_signed(&server_params(names)?)
    }

    /// Makes an expired certificate for a server.
    pub fn expired_server(names: &[&str]) -> anyhow::Result<Identity> {
        let mut params = server_params(names)?;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self_signed(&params)
    }

    /// Writes `stem.crt` and `stem.key` (0600), and returns their paths.
    pub fn write(&self, dir: &Path, stem: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
        let (cert, key) = (
            dir.join(format!("{stem}.crt")),
            dir.join(format!("{stem}.key")),
        );
        write_file(&cert, &self.cert_pem, 0o644)?;
        write_file(&key, &self.key_pem, 0o600)?;
        Ok((cert, key))
    }

    fn new(cert: &Certificate, key: &KeyPair) -> Identity {
        Identity {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            cert_der: cert.der().to_vec(),
            key_der: key.serialize_der(),
        }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
}

impl Authority {
    pub fn new(name: &str) -> anyhow::Result<Authority> {
        let mut params = named_params(name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = new_key()?;
        let cert_pem = params.self_signed(&key)?.pem();
        Ok(Authority {
            issuer: Issuer::new(params, key),
            cert_pem,
        })
    }

    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    pub fn issue_server(&self, names: &[&str]) -> anyhow::Result<Identity> {
        self.issue(&server_params(names)?)
    }

    pub fn issue_client(&self, common_name: &str) -> anyhow::Result<Identity> {
        self.issue(&client_params(common_name)?)
    }

    fn issue(&self, params: &CertificateParams) -> anyhow::Result<Identity> {
        let key = new_key()?;
        Ok(Identity::new(&params.signed_by(&key, &self.issuer)?, &key))
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

fn client_params(common_name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = named_params(common_name, &[])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

fn server_params(names: &[&str]) -> anyhow::Result<CertificateParams> {
    let common_name = names
        .first()
        .context("a server's certificate needs a name")?;
    let mut params = named_params(common_name, names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn named_params(common_name: &str, names: &[&str]) -> anyhow::Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = Default::default();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.is_ca = IsCa::ExplicitNoCa;
    Ok(params)
}

fn self_signed(params: &CertificateParams) -> anyhow::Result<Identity> {
    let key = new_key()?;
    Ok(Identity::new(&params.self_signed(&key)?, &key))
}

fn new_key() -> anyhow::Result<KeyPair> {
    Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

fn write_file(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path);
    let mut file = opened.with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes())
        .with_context(|| path.display().to_string())
}
