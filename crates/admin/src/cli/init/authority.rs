//! The private CA: made once, and never over another one.
//!
//! Hosts pin `ca.pem`. A second CA in its place would lock all of them out with the next certificate, so a CA is made only where
//! nothing of one is left. Its key may be kept elsewhere: only issuing a certificate needs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};
use svc_front::listener::is_signed_by;

use super::{
    files::{self, Owner},
    settings::Settings,
    step::Step,
};

const CA_NAME: &str = "svc-ingest private CA";
const CA_YEARS: i16 = 20;
const CERTIFICATE_DAYS: i32 = 730;

/// The files of the private CA and of the certificate that it issued.
pub struct Files {
    pub ca: PathBuf,
    pub ca_key: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Files {
    pub fn of(settings: &Settings) -> Self {
        let at = |name: &str| settings.folder().join(name);
        Self {
            ca: at("ca.pem"),
            ca_key: at("ca.key"),
            certificate: at("tls.crt"),
            key: at("tls.key"),
        }
    }

    /// A link counts as well, wherever it leads: it may be to a medium that is not there now.
    fn are_missing(&self) -> bool {
        let all = [&self.ca, &self.ca_key, &self.certificate];
        all.iter().all(|path| path.symlink_metadata().is_err())
    }
}

/// The CA with its key, which can issue certificates.
pub struct Authority<'a> {
    files: &'a Files,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    /// The CA as it is on disk, or a new one if there is nothing of one. `None`: its key is kept elsewhere.
    pub fn ensure(files: &'a Files) -> anyhow::Result<(Option<Self>, Step)> {
        let (ca, key) = (files.ca.display(), files.ca_key.display());
        let kept = |detail| Step::kept("private CA", detail);
        match (files.ca.exists(), files.ca_key.exists()) {
            _ if files.are_missing() => {
                let detail = format!("{ca}; its key {key} may be kept offline");
                Ok((Some(Self::make(files)?), Step::made("private CA", detail)))
            }
            (true, true) => Ok((Some(Self::open(files)?), kept(ca.to_string()))),
            (true, false) => Ok((None, kept(format!("{ca}; its key is not here")))),
            (false, false) => Ok((None, kept("not here".into()))),
            (false, true) => bail!(
                "{key} is there without its certificate: bring ca.pem back, or remove {key} if no host has pinned its certificate"
            ),
        }
    }

    fn make(files: &'a Files) -> anyhow::Result<Self> {
        let key = key(&files.ca_key, 0o600, None)?;
        let params = ca_params()?;
        files::replace(&files.ca, &params.self_signed(&key)?.pem(), 0o644, None)?;
        let issuer = Issuer::new(params, key);
        Ok(Self { files, issuer })
    }

    /// The name of the issuer follows from the program, not from the file: [`Self::issue`] notices another CA.
    fn open(files: &'a Files) -> anyhow::Result<Self> {
        let issuer = Issuer::new(ca_params()?, read_key(&files.ca_key)?);
        Ok(Self { files, issuer })
    }

    /// Issues the server's certificate for these names. Its key stays, if there is one.
    pub fn issue(&self, names: &[String], owner: Option<Owner>) -> anyhow::Result<()> {
        let first = names.first();
        let first = first.context("a certificate needs a name: add --name")?;
        let mut params = named(first, names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_dates(&mut params, today() + CERTIFICATE_DAYS.days());
        let key = key(&self.files.key, 0o640, owner)?;
        let issued = params.signed_by(&key, &self.issuer)?;
        let (ca, ca_key) = (&self.files.ca, self.files.ca_key.display());
        ensure!(
            is_signed_by(&[issued.der().clone()], ca, Timestamp::now())?,
            "{ca_key} is not the key of {}: bring the right one back",
            ca.display()
        );
        files::replace(&self.files.certificate, &issued.pem(), 0o644, None)
    }
}

/// The key in a file, or a new one in it.
fn key(path: &Path, mode: u32, readers: Option<Owner>) -> anyhow::Result<KeyPair> {
    if path.exists() {
        return read_key(path);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let text = zeroize::Zeroizing::new(key.serialize_pem());
    files::replace(path, &text, mode, readers)?;
    Ok(key)
}

fn read_key(path: &Path) -> anyhow::Result<KeyPair> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let text = zeroize::Zeroizing::new(text);
    KeyPair::from_pem(&text).with_context(|| path.display().to_string())
}

fn ca_params() -> anyhow::Result<CertificateParams> {
    let mut params = named(CA_NAME, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_dates(&mut params, today() + CA_YEARS.years());
    Ok(params)
}

fn named(common_name: &str, names: &[String]) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = Default::default();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    // A renewed certificate has the same key, from which the serial number would otherwise follow.
    let mut serial: [u8; 16] = rand::random();
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// Sets the days of validity. The day before covers clocks that are late.
fn set_dates(params: &mut CertificateParams, last: Date) {
    let day = |date: Date| {
        date_time_ymd(
            date.year().into(),
            date.month().cast_unsigned(),
            date.day().cast_unsigned(),
        )
    };
    params.not_before = day(today() - 1.day());
    params.not_after = day(last);
}
