//! `svc-ingest release verify`: the signatures of a release in a folder, and those of its files that are there.

use std::{fs::File, path::Path, process::ExitCode};

use anyhow::{Context, ensure};
use svc_release::{Artefact, FILE, Manifest, PublicKey, UPDATE_FILE, Update, digest};

use super::{public_keys, read, signature_of};
use crate::cli::output;

/// A folder may have some of the files only, but not none. One wrong file is a failure.
pub fn run(key: &Path, folder: &Path) -> anyhow::Result<ExitCode> {
    let keys = public_keys(key)?;
    let path = folder.join(FILE);
    let (bytes, signature) = (read(&path)?, read(&signature_of(&path))?);
    let manifest = Manifest::verify(&bytes, &signature, &keys);
    let manifest = manifest.with_context(|| path.display().to_string())?;
    let update = update(&keys, folder)?;
    let mut checked = 0;
    for artefact in &manifest.artefacts {
        let path = folder.join(&artefact.file);
        if path.exists() {
            check(&path, artefact)?;
            checked += 1;
        }
    }
    let (all, version) = (manifest.artefacts.len(), manifest.version);
    ensure!(
        checked > 0,
        "{}: none of the {all} files of the release {version}",
        folder.display()
    );
    output::print(&format!(
        "release {version}: the signature is good, and so are {checked} of {all} files"
    ))?;
    if let Some(Update {
        serial, version, ..
    }) = update
    {
        output::print(&format!(
            "update {serial} to {version}: the signature is good"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The manifest of the update, if the release has one.
fn update(keys: &[PublicKey], folder: &Path) -> anyhow::Result<Option<Update>> {
    let path = folder.join(UPDATE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let (bytes, signature) = (read(&path)?, read(&signature_of(&path))?);
    let update = Update::verify(&bytes, &signature, keys);
    Ok(Some(update.with_context(|| path.display().to_string())?))
}

fn check(path: &Path, artefact: &Artefact) -> anyhow::Result<()> {
    let about = || path.display().to_string();
    let (size, sha256) = digest(File::open(path).with_context(about)?).with_context(about)?;
    let same = (size, &sha256) == (artefact.size, &artefact.sha256);
    ensure!(same, "{}: not the file that was signed", about());
    Ok(())
}
