//! The private CA: made once, and never over another one.
//!
//! Hosts pin `ca.pem`. A second CA in its place would lock all of them out with the next certificate, so a CA is made only where
//! nothing of one is left. Its key may be kept elsewhere: only issuing a certificate needs it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
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

/// The files of the private CA, and the service's pair that it issued.
pub struct Files {
    /// What hosts pin: one certificate, or two while the CA is being replaced.
    pub ca: PathBuf,
    pub ca_key: PathBuf,
    pub server: Pair,
}

/// A certificate that the CA issued, and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pair {
    pub fn at(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }
}

impl Files {
    pub fn of(settings: &Settings, ca_folder: Option<&Path>) -> Self {
        let folder = settings.folder();
        Self {
            ca: folder.join("ca.pem"),
            ca_key: ca_folder.unwrap_or(folder).join("ca.key"),
            server: Pair::at(folder, "tls"),
        }
    }

    /// A link counts as well, wherever it leads: it may be to a medium that is not there now.
    fn are_missing(&self) -> bool {
        let all = [&self.ca, &self.ca_key, &self.server.certificate];
        all.iter().all(|path| path.symlink_metadata().is_err())
    }

    /// Moves a key that lies beside the settings to the folder that is meant for it. Returns whether there was one.
    fn move_key(&self) -> anyhow::Result<bool> {
        let old = self.ca.with_file_name("ca.key");
        if old == self.ca_key || old.symlink_metadata().is_err() {
            return Ok(false);
        }
        let folder = self.ca_key.parent().unwrap_or(Path::new("."));
        files::folder(folder, 0o700, None)?;
        let place = |folder: &Path| fs::metadata(folder).map(|folder| (folder.dev(), folder.ino()));
        if place(folder)? == place(old.parent().unwrap_or(Path::new(".")))? {
            return Ok(false); // Another name of the same folder.
        }
        let key = read_key(&old)?;
        if self.ca_key.exists() {
            ensure!(
                read_key(&self.ca_key)?.public_key_raw() == key.public_key_raw(),
                "{} and {} are different keys: remove the one that is not of {}",
                old.display(),
                self.ca_key.display(),
                self.ca.display()
            );
        } else {
            write_key(&self.ca_key, &key, 0o600, None)?;
        }
        fs::remove_file(&old).with_context(|| old.display().to_string())?;
        Ok(true)
    }
}

/// The CA with its key, which can issue certificates.
pub struct Authority<'a> {
    files: &'a Files,
    key_file: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    /// The CA as it is on disk, or a new one if there is nothing of one. `None`: its key is kept elsewhere.
    pub fn ensure(files: &'a Files) -> anyhow::Result<(Option<Self>, Step)> {
        let moved = files.move_key()?;
        let (ca, key) = (files.ca.display(), files.ca_key.display());
        let kept = |detail| Step::kept("private CA", detail);
        match (files.ca.exists(), files.ca_key.exists()) {
            _ if files.are_missing() => {
                let detail = format!("{ca}; its key {key} may be kept offline");
                Ok((Some(Self::make(files)?), Step::made("private CA", detail)))
            }
            (true, true) => {
                let step = match moved {
                    true => Step::made("private CA", format!("{ca}; its key moved to {key}")),
                    false => kept(ca.to_string()),
                };
                Ok((Some(Self::open(files, &files.ca_key)?), step))
            }
            (true, false) => Ok((None, kept(format!("{ca}; its key is not here")))),
            (false, false) => Ok((None, kept("not here".into()))),
            (false, true) => bail!(
                "{key} is there without its certificate: bring ca.pem back, or remove {key} if no host has pinned its certificate"
            ),
        }
    }

    fn make(files: &'a Files) -> anyhow::Result<Self> {
        let folder = files.ca_key.parent().unwrap_or(Path::new("."));
        files::folder(folder, 0o700, None)?;
        let key = key(&files.ca_key, 0o600, None)?;
        files::replace(&files.ca, &own_certificate(&key)?, 0o644, None)?;
        Self::open(files, &files.ca_key)
    }

    /// The name of the issuer follows from the program, not from the file: [`Self::issue`] notices another CA.
    pub fn open(files: &'a Files, key_file: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            files,
            key_file: key_file.into(),
            issuer: Issuer::new(ca_params()?, read_key(key_file)?),
        })
    }

    /// Issues a certificate for these names. Its key stays, if there is one.
    pub fn issue(
        &self,
        pair: &Pair,
        names: &[String],
        readers: Option<Owner>,
    ) -> anyhow::Result<()> {
        let first = names.first();
        let first = first.context("a certificate needs a name: add --name")?;
        let mut params = named(first, names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_dates(&mut params, today() + CERTIFICATE_DAYS.days());
        let key = key(&pair.key, 0o640, readers)?;
        let issued = params.signed_by(&key, &self.issuer)?;
        let (ca, ca_key) = (&self.files.ca, self.key_file.display());
        ensure!(
            is_signed_by(&[issued.der().clone()], ca, Timestamp::now())?,
            "{ca_key} is not the key of {}: bring the right one back",
            ca.display()
        );
        files::replace(&pair.certificate, &issued.pem(), 0o644, None)
    }
}

/// The certificate of a CA with this key, in PEM form.
pub fn own_certificate(key: &KeyPair) -> anyhow::Result<String> {
    Ok(ca_params()?.self_signed(key)?.pem())
}

/// The key in a file, or a new one in it.
pub fn key(path: &Path, mode: u32, readers: Option<Owner>) -> anyhow::Result<KeyPair> {
    if path.exists() {
        return read_key(path);
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    write_key(path, &key, mode, readers)?;
    Ok(key)
}

fn write_key(path: &Path, key: &KeyPair, mode: u32, readers: Option<Owner>) -> anyhow::Result<()> {
    let text = zeroize::Zeroizing::new(key.serialize_pem());
    files::replace(path, &text, mode, readers)
}

pub fn read_key(path: &Path) -> anyhow::Result<KeyPair> {
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
