//! `svc-ingest init --new-ca`: another private CA in the place of the one that hosts pin, without losing a host.
//!
//! Hosts trust every certificate in `ca.pem`, and agents read that file at every connection. So first both CAs are in it, then the new one
//! issues the certificates, then the old one leaves it; between two steps `ca.pem` is copied to all hosts. The old key is
//! not needed: this is the way out as well where it is lost. Every step may be repeated.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use rcgen::{KeyPair, PublicKeyData};
use svc_common::tls::TlsPair;
use svc_front::listener::{is_signed_by, which_have_key};

use super::{
    authority::{Authority, Files, key, own_certificate, read_key},
    files,
    step::Step,
};

const SUBJECT: &str = "new CA";
const PEM_END: &str = "-----END CERTIFICATE-----";

/// A replacement, which its files remember between two runs.
pub struct Replacement<'a> {
    files: &'a Files,
    new_key: PathBuf,
}

impl<'a> Replacement<'a> {
    pub fn of(files: &'a Files) -> anyhow::Result<Self> {
        ensure!(
            files.ca.exists(),
            "there is no {} to replace",
            files.ca.display()
        );
        Ok(Self {
            files,
            new_key: files.ca_key.with_file_name("ca.new.key"),
        })
    }

    /// The new CA, which issues all certificates in the step `switch`.
    pub fn authority(&self) -> anyhow::Result<Authority<'a>> {
        let (new_key, ca) = (self.new_key.display(), self.files.ca.display());
        ensure!(
            self.new_key.exists(),
            "there is no {new_key}: --new-ca begin makes it"
        );
        ensure!(
            self.is_in_ca(&read_key(&self.new_key)?)?,
            "{ca} does not have the new CA: repeat --new-ca begin"
        );
        Authority::open(self.files, &self.new_key)
    }

    pub fn begin(&self) -> anyhow::Result<Step> {
        let (ca, new_key) = (&self.files.ca, self.new_key.display());
        if !self.new_key.exists() && blocks(ca)?.len() > 1 {
            bail!(
                "{} has more than one certificate: end the last replacement first (--new-ca end)",
                ca.display()
            );
        }
        let folder = self.new_key.parent().unwrap_or(Path::new("."));
        files::folder(folder, 0o700, None)?;
        let made = key(&self.new_key, 0o600, None)?;
        let next = format!(
            "{new_key}: bring {0} to all agents (svc-ingest trust add {0}), and when svc-ingest trust status names none of them: svc-ingest init --new-ca switch",
            ca.display()
        );
        if self.is_in_ca(&made)? {
            return Ok(Step::kept(SUBJECT, next));
        }
        let mut text = fs::read_to_string(ca)?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&own_certificate(&made)?);
        files::replace(ca, &text, 0o644, None)?;
        Ok(Step::made(SUBJECT, next))
    }

    /// Comes when the certificates have been issued, so that a run that is cut off here is repeated with the same key.
    pub fn switch(&self) -> anyhow::Result<Step> {
        let (key, old) = (&self.files.ca_key, self.old_key());
        if key.exists() {
            fs::rename(key, &old).with_context(|| old.display().to_string())?;
        }
        fs::rename(&self.new_key, key).with_context(|| key.display().to_string())?;
        Ok(Step::made(
            SUBJECT,
            format!(
                "issues the certificates now; when no host connects by the old {} alone: svc-ingest init --new-ca end",
                self.files.ca.display()
            ),
        ))
    }

    pub fn end(&self) -> anyhow::Result<Step> {
        let (ca, key) = (&self.files.ca, &self.files.ca_key);
        ensure!(
            !self.new_key.exists(),
            "the old CA still issues the certificates: --new-ca switch comes first"
        );
        let key = read_key(key).context("bring ca.key back")?;
        let blocks = blocks(ca)?;
        let keyed = which_have_key(ca, &key.subject_public_key_info())?;
        ensure!(
            keyed.len() == blocks.len() && keyed.contains(&true),
            "{} is not the key of {}: bring the right one back",
            self.files.ca_key.display(),
            ca.display()
        );
        if !keyed.contains(&false) {
            return Ok(Step::kept(SUBJECT, "it is the only one"));
        }
        let left = blocks.into_iter().zip(keyed).filter(|(_, keyed)| *keyed);
        let left: String = left.map(|(block, _)| block + "\n").collect();
        self.check_issued(&left)?;
        files::replace(ca, &left, 0o644, None)?;
        let old = self.old_key();
        let advice = match old.exists() {
            true => format!("; destroy {}", old.display()),
            false => String::new(),
        };
        let detail = format!("it is the only one: copy {} to all hosts", ca.display());
        Ok(Step::made(SUBJECT, detail + &advice))
    }

    /// Fails if the service's certificate would be an orphan.
    fn check_issued(&self, left: &str) -> anyhow::Result<()> {
        let folder = self.files.ca.parent().unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(folder)?;
        fs::write(&file, left)?;
        let pair = &self.files.server;
        let loaded = TlsPair::load(&pair.certificate, &pair.key);
        let loaded = loaded.map_err(|_| anyhow::anyhow!("no {}", pair.certificate.display()))?;
        ensure!(
            is_signed_by(loaded.chain(), file.path(), Timestamp::now())?,
            "the old CA has signed {}: --new-ca switch comes first",
            pair.certificate.display()
        );
        Ok(())
    }

    fn is_in_ca(&self, key: &KeyPair) -> anyhow::Result<bool> {
        let keyed = which_have_key(&self.files.ca, &key.subject_public_key_info())?;
        Ok(keyed.contains(&true))
    }

    fn old_key(&self) -> PathBuf {
        self.files.ca_key.with_file_name("ca.old.key")
    }
}

/// The certificates of a file, each with the text before it.
fn blocks(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let blocks = text.split_inclusive(PEM_END);
    let blocks = blocks.filter(|block| block.ends_with(PEM_END));
    Ok(blocks.map(|block| block.trim_start().to_owned()).collect())
}
