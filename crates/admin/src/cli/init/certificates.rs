//! The server's certificate: a given pair that is checked, or one from a private CA that is made here.
//!
//! The CA's files stay beside the settings, so that a later run can renew the certificate or add names. The service's key stays
//! the same when its certificate is renewed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use svc_common::tls::{CertificateFacts, TlsPair};
use svc_front::listener::is_signed_by;

use super::{
    args::{Args, NewCa},
    authority::{Authority, Files, Pair},
    files::{self, Owner},
    replacement::Replacement,
    settings::Settings,
    step::Step,
};

const CERTIFICATE: &str = "INGEST_TLS_CERT";
pub const KEY: &str = "INGEST_TLS_KEY";
/// A later run renews a certificate of ours that ends sooner.
const RENEWAL_DAYS: i32 = 60;

/// A certificate that is to exist: whose, where, for which names, and who reads its key.
pub struct Wanted {
    pub subject: &'static str,
    pub pair: Pair,
    pub names: Vec<String>,
    pub readers: Option<Owner>,
}

/// The service's certificate, and the `further` one of the console, which only the private CA issues.
pub fn ensure(
    args: &Args,
    settings: &mut Settings,
    owner: Option<Owner>,
    further: Option<Wanted>,
) -> anyhow::Result<Vec<Step>> {
    let files = Files::of(settings, args.ca_folder.as_deref());
    let known = settings.get(CERTIFICATE).map(PathBuf::from);
    let is_given =
        args.tls_cert.is_some() || known.is_some_and(|path| path != files.server.certificate);
    if is_given {
        if args.new_ca.is_some() || args.ca_folder.is_some() {
            bail!(
                "the service's certificate is not of the private CA: leave --new-ca and --ca-folder out"
            );
        }
        return Ok(vec![check_given(args, settings)?]);
    }
    let server = Wanted {
        subject: "certificate",
        pair: files.server.clone(),
        names: args.names.clone(),
        readers: owner,
    };
    let wanted: Vec<Wanted> = std::iter::once(server).chain(further).collect();
    let steps = match args.new_ca {
        Some(step) => replace_ca(step, &files, &wanted)?,
        None => {
            let (authority, step) = Authority::ensure(&files)?;
            let mut steps = vec![step];
            for wanted in &wanted {
                steps.push(certificate(&files, authority.as_ref(), wanted)?);
            }
            steps
        }
    };
    settings.set(CERTIFICATE, &files.server.certificate.to_string_lossy())?;
    settings.set(KEY, &files.server.key.to_string_lossy())?;
    Ok(steps)
}

/// The certificates change in the step `switch` alone.
fn replace_ca(step: NewCa, files: &Files, wanted: &[Wanted]) -> anyhow::Result<Vec<Step>> {
    let replacement = Replacement::of(files)?;
    Ok(match step {
        NewCa::Begin => vec![replacement.begin()?],
        NewCa::Switch => {
            let authority = replacement.authority()?;
            let issue = |wanted| issue(&authority, issued(files, wanted)?, wanted);
            let mut steps: Vec<Step> = wanted.iter().map(issue).collect::<Result<_, _>>()?;
            steps.push(replacement.switch()?);
            steps
        }
        NewCa::End => {
            for wanted in wanted {
                issued(files, wanted)?;
            }
            vec![replacement.end()?]
        }
    })
}

/// The private CA that agents pin, if the certificate comes from it.
pub fn private_ca(settings: &Settings) -> Option<PathBuf> {
    let files = Files::of(settings, None);
    let ours = settings
        .get(CERTIFICATE)
        .is_some_and(|path| Path::new(path) == files.server.certificate);
    (ours && files.ca.exists()).then_some(files.ca)
}

/// The first name of the certificate.
pub fn first_name(settings: &Settings) -> Option<String> {
    let (certificate, key) = (settings.get(CERTIFICATE)?, settings.get(KEY)?);
    let facts = load(Path::new(certificate), Path::new(key)).ok()?.1;
    facts.names.into_iter().next()
}

/// What keeps the user of a program from reading its key, if anything does.
pub fn unreadable_key(
    settings: &Settings,
    name: &str,
    user: Owner,
) -> anyhow::Result<Option<String>> {
    let Some(key) = settings.get(name) else {
        return Ok(None);
    };
    Ok((!files::may_read(Path::new(key), user)?).then(|| {
        format!(
            "the user {} cannot read {key}: chgrp {} {key}; chmod 640 {key}",
            user.uid, user.gid
        )
    }))
}

fn check_given(args: &Args, settings: &mut Settings) -> anyhow::Result<Step> {
    for (variable, option, given) in [
        (CERTIFICATE, "--tls-cert", &args.tls_cert),
        (KEY, "--tls-key", &args.tls_key),
    ] {
        if let Some(given) = given {
            let given = fs::canonicalize(given).with_context(|| given.display().to_string())?;
            let given = given.to_string_lossy();
            settings.check_given(variable, option, &given)?;
            settings.set(variable, &given)?;
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

/// Keeps a certificate that has all names and lasts, or issues one with the names of both.
fn certificate(
    files: &Files,
    authority: Option<&Authority<'_>>,
    wanted: &Wanted,
) -> anyhow::Result<Step> {
    let known = issued(files, wanted)?;
    let Some(authority) = authority else {
        return without_key(files, known, wanted);
    };
    match known {
        Some(facts) if fault(&facts, &wanted.names, renewal()).is_none() => Ok(Step::kept(
            wanted.subject,
            described(&wanted.pair.certificate, &facts),
        )),
        known => issue(authority, known, wanted),
    }
}

fn issue(
    authority: &Authority<'_>,
    known: Option<CertificateFacts>,
    wanted: &Wanted,
) -> anyhow::Result<Step> {
    let names = all_names(known, &wanted.names);
    authority.issue(&wanted.pair, &names, wanted.readers)?;
    let (_, facts) = load(&wanted.pair.certificate, &wanted.pair.key)?;
    let detail = described(&wanted.pair.certificate, &facts);
    Ok(Step::made(wanted.subject, detail))
}

/// Nothing can be issued, so the certificate is kept until its end: a run that has nothing to change must not fail before that.
fn without_key(
    files: &Files,
    known: Option<CertificateFacts>,
    wanted: &Wanted,
) -> anyhow::Result<Step> {
    let fault_at = |at| match &known {
        Some(facts) => fault(facts, &wanted.names, at),
        None => Some("does not exist".into()),
    };
    let certificate = &wanted.pair.certificate;
    let (path, ca_key) = (certificate.display(), files.ca_key.display());
    if let Some(fault) = fault_at(Timestamp::now()) {
        bail!("{path} {fault}, and the private CA's key is not here: bring ca.key back ({ca_key})");
    }
    let shown = known.as_ref().map(|facts| described(certificate, facts));
    let hint = fault_at(renewal()).map(|_| ": bring ca.key back before that, to renew it");
    let detail = shown.unwrap_or_default() + hint.unwrap_or_default();
    Ok(Step::kept(wanted.subject, detail))
}

/// The certificate as it is on disk. Where its CA is there, too, it must have signed it: hosts pin that CA.
fn issued(files: &Files, wanted: &Wanted) -> anyhow::Result<Option<CertificateFacts>> {
    let Pair { certificate, key } = &wanted.pair;
    if !certificate.exists() {
        return Ok(None);
    }
    let (pair, facts) = load(certificate, key)?;
    let valid = facts.not_after.min(Timestamp::now());
    if files.ca.exists() && !is_signed_by(pair.chain(), &files.ca, valid)? {
        let (path, ca) = (certificate.display(), files.ca.display());
        bail!(
            "{ca} has not signed {path}: hosts that pin one of them refuse the other. Bring the ca.pem and the ca.key of {path} back, or remove {path} if no host relies on it"
        );
    }
    Ok(Some(facts))
}

fn renewal() -> Timestamp {
    Timestamp::now() + (RENEWAL_DAYS * 24).hours()
}

/// Why a certificate cannot be used at a time, under these names.
fn fault(facts: &CertificateFacts, wanted: &[String], at: Timestamp) -> Option<String> {
    if facts.expired(at) {
        return Some(format!("ends on {}", last_day(facts)));
    }
    let missing = wanted.iter().find(|name| !names(facts, name));
    missing.map(|name| format!("does not name {name}"))
}

fn all_names(known: Option<CertificateFacts>, wanted: &[String]) -> Vec<String> {
    let mut all = known.map(|facts| facts.names).unwrap_or_default();
    for name in wanted {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

fn load(certificate: &Path, key: &Path) -> anyhow::Result<(TlsPair, CertificateFacts)> {
    let pair = TlsPair::load(certificate, key).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(|(_, error)| error.to_string()).collect();
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
    let (names, until) = (facts.names.join(", "), last_day(facts));
    format!("{}, for {names}, until {until}", path.display())
}

fn last_day(facts: &CertificateFacts) -> Date {
    facts.not_after.to_zoned(TimeZone::UTC).date()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::init::settings::SERVICE;

    #[test]
    fn without_the_cas_key_a_certificate_is_kept_until_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::open(&folder.path().join("env"), SERVICE).unwrap();
        let files = Files::of(&settings, None);
        let wanted = |names: &[&str]| Wanted {
            subject: "certificate",
            pair: files.server.clone(),
            names: names.iter().map(ToString::to_string).collect(),
            readers: None,
        };
        let kept = |days: i32, names: &[&str]| {
            let facts = CertificateFacts {
                subject: String::new(),
                is_authority: false,
                is_self_signed: false,
                names: vec!["a.example".into()],
                not_after: Timestamp::now() + (days * 24).hours(),
            };
            without_key(&files, Some(facts), &wanted(names)).map(|step| step.detail)
        };
        let hint = "bring ca.key back";
        assert!(
            !kept(RENEWAL_DAYS + 1, &["A.example"])
                .unwrap()
                .contains(hint)
        );
        assert!(kept(RENEWAL_DAYS - 1, &[]).unwrap().contains(hint));
        for refused in [kept(-1, &[]), kept(365, &["b.example"])] {
            assert!(refused.unwrap_err().to_string().contains(hint));
        }
        assert!(without_key(&files, None, &wanted(&[])).is_err());
    }
}
