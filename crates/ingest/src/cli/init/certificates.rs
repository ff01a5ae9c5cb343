//! The server's certificate: a given pair that is checked, or one from a private CA that is made here.
//!
//! The CA's files stay beside the settings, so that a later run can renew the certificate or add names. Agents pin
//! `ca.pem`; the service's key stays the same when its certificate is renewed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};

use super::{
    args::Args,
    files::{self, Owner},
    settings::Settings,
    step::Step,
};
use crate::listener::{CertificateFacts, TlsPair};

const CERTIFICATE: &str = "INGEST_TLS_CERT";
const KEY: &str = "INGEST_TLS_KEY";
const CA_NAME: &str = "svc-ingest private CA";
const CA_YEARS: i16 = 20;
const CERTIFICATE_DAYS: i32 = 730;
/// A later run renews a certificate of ours that ends sooner.
const RENEWAL_DAYS: i32 = 60;

/// The files of the private CA and of the certificate that it issued.
struct Files {
    ca: PathBuf,
    ca_key: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn of(settings: &Settings) -> Self {
        let at = |name: &str| settings.folder().join(name);
        Self {
            ca: at("ca.pem"),
            ca_key: at("ca.key"),
            certificate: at("tls.crt"),
            key: at("tls.key"),
        }
    }
}

pub fn ensure(
    args: &Args,
    settings: &mut Settings,
    owner: Option<Owner>,
) -> anyhow::Result<Vec<Step>> {
    let files = Files::of(settings);
    let known = settings.get(CERTIFICATE).map(PathBuf::from);
    let is_given = args.tls_cert.is_some() || known.is_some_and(|path| path != files.certificate);
    if is_given {
        return Ok(vec![check_given(args, settings)?]);
    }
    let mut steps = Vec::new();
    let issuer = authority(&files, &mut steps)?;
    steps.push(certificate(&files, &issuer, &args.names, owner)?);
    settings.set(CERTIFICATE, &files.certificate.to_string_lossy())?;
    settings.set(KEY, &files.key.to_string_lossy())?;
    Ok(steps)
}

/// The private CA that agents pin, if the certificate comes from it.
pub fn private_ca(settings: &Settings) -> Option<PathBuf> {
    let files = Files::of(settings);
    let ours = settings
        .get(CERTIFICATE)
        .is_some_and(|path| Path::new(path) == files.certificate);
    (ours && files.ca.exists()).then_some(files.ca)
}

/// The first name of the certificate.
pub fn first_name(settings: &Settings) -> Option<String> {
    let (certificate, key) = (settings.get(CERTIFICATE)?, settings.get(KEY)?);
    let facts = load(Path::new(certificate), Path::new(key)).ok()?.1;
    facts.names.into_iter().next()
}

/// What keeps the service's user from reading the key, if anything does.
pub fn unreadable_key(settings: &Settings, user: Owner) -> anyhow::Result<Option<String>> {
    let Some(key) = settings.get(KEY) else {
        return Ok(None);
    };
    Ok((!files::may_read(Path::new(key), user)?).then(|| {
        format!(
            "the service's user cannot read {key}: chgrp {} {key}; chmod 640 {key}",
            user.gid
        )
    }))
}

fn check_given(args: &Args, settings: &mut Settings) -> anyhow::Result<Step> {
    for (variable, given) in [(CERTIFICATE, &args.tls_cert), (KEY, &args.tls_key)] {
        if let Some(given) = given {
            let given = fs::canonicalize(given).with_context(|| given.display().to_string())?;
            settings.set(variable, &given.to_string_lossy())?;
        }
    }
    let path = |name: &'static str| settings.get(name).map(PathBuf::from).context(name);
    let (certificate, key) = (path(CERTIFICATE)?, path(KEY)?);
    let (_, facts) = load(&certificate, &key)?;
    if facts.names.is_empty() {
        bail!(
            "{} names no host (subjectAltName): agents would refuse it",
            certificate.display()
        );
    }
    if facts.expired(Timestamp::now()) {
        bail!("{} ended on {}", certificate.display(), facts.not_after);
    }
    if let Some(missing) = args.names.iter().find(|name| !names(&facts, name)) {
        bail!("{} does not name {missing}", certificate.display());
    }
    Ok(Step::kept("certificate", described(&certificate, &facts)))
}

/// The CA as it is on disk, or a new one. Its certificate follows from its key and its name.
fn authority(files: &Files, steps: &mut Vec<Step>) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let exists = files.ca_key.exists();
    let key = key(&files.ca_key, 0o600, None)?;
    let mut params = named(CA_NAME, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_dates(&mut params, today() + CA_YEARS.years());
    let path = files.ca.display();
    if exists && files.ca.exists() {
        steps.push(Step::kept("private CA", format!("{path}")));
    } else {
        files::replace(&files.ca, &params.self_signed(&key)?.pem(), 0o644, None)?;
        let key = files.ca_key.display();
        steps.push(Step::made(
            "private CA",
            format!("{path}; its key {key} may be kept offline"),
        ));
    }
    Ok(Issuer::new(params, key))
}

/// Keeps a certificate that has all names and lasts, or issues one with the names of both.
fn certificate(
    files: &Files,
    issuer: &Issuer<'static, KeyPair>,
    wanted: &[String],
    owner: Option<Owner>,
) -> anyhow::Result<Step> {
    let known = match files.certificate.exists() {
        true => Some(load(&files.certificate, &files.key)?.1),
        false => None,
    };
    if let Some(facts) = &known {
        let lasts = facts.not_after > Timestamp::now() + (RENEWAL_DAYS * 24).hours();
        if lasts && wanted.iter().all(|name| names(facts, name)) {
            return Ok(Step::kept(
                "certificate",
                described(&files.certificate, facts),
            ));
        }
    }
    let mut all: Vec<String> = known.map(|facts| facts.names).unwrap_or_default();
    all.extend(
        wanted
            .iter()
            .filter(|name| !all.contains(name))
            .cloned()
            .collect::<Vec<_>>(),
    );
    let first = all
        .first()
        .context("a certificate needs a name: add --name")?;
    let key = key(&files.key, 0o640, owner)?;
    let mut params = named(first, &all)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    set_dates(&mut params, today() + CERTIFICATE_DAYS.days());
    let pem = params.signed_by(&key, issuer)?.pem();
    files::replace(&files.certificate, &pem, 0o644, None)?;
    let (_, facts) = load(&files.certificate, &files.key)?;
    Ok(Step::made(
        "certificate",
        described(&files.certificate, &facts),
    ))
}

/// The key in a file, or a new one in it.
fn key(path: &Path, mode: u32, readers: Option<Owner>) -> anyhow::Result<KeyPair> {
    if path.exists() {
        let text = zeroize::Zeroizing::new(
            fs::read_to_string(path).with_context(|| path.display().to_string())?,
        );
        return KeyPair::from_pem(&text).with_context(|| path.display().to_string());
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    files::replace(
        path,
        &zeroize::Zeroizing::new(key.serialize_pem()),
        mode,
        readers,
    )?;
    Ok(key)
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

fn load(certificate: &Path, key: &Path) -> anyhow::Result<(TlsPair, CertificateFacts)> {
    let pair = TlsPair::load(certificate, key).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", errors.join("; "))
    })?;
    let facts = pair.facts();
    let facts = facts.with_context(|| format!("{} cannot be parsed", certificate.display()))?;
    Ok((pair, facts))
}

fn names(facts: &CertificateFacts, name: &str) -> bool {
    facts
        .names
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}

fn described(path: &Path, facts: &CertificateFacts) -> String {
    let until = facts.not_after.to_zoned(TimeZone::UTC).date();
    format!(
        "{}, for {}, until {until}",
        path.display(),
        facts.names.join(", ")
    )
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
