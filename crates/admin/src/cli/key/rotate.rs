//! `svc-ingest key rotate`: makes the next signing key and says what to do with it.
//!
//! It needs no database and changes no setting: which machines run instances, and how their variables are set, only the
//! administrator knows. `svc-ingest status` says when the next step may be taken.

use std::{path::Path, process::ExitCode};

use anyhow::bail;
use serde::Serialize;
use svc_ingest::signing;

use super::{super::output::OutputArgs, configured};

#[derive(Debug, Serialize)]
struct Rotation {
    file: String,
    kid: String,
    old_file: String,
    old_kid: String,
    steps: [String; 6],
}

pub fn run(args: &OutputArgs) -> anyhow::Result<ExitCode> {
    let (old_file, keys) = configured()?;
    if !keys.extra_kids().is_empty() {
        bail!(
            "INGEST_JWT_EXTRA_KEY_FILES is set, so a rotation is in progress: finish it, and unset the variable"
        );
    }
    let (file, key) = signing::create_beside(&old_file)?;
    let rotation = Rotation {
        steps: steps(&old_file, &file),
        file: file.display().to_string(),
        kid: key.kid().to_owned(),
        old_file: old_file.display().to_string(),
        old_kid: keys.signing().kid().to_owned(),
    };
    args.output.print(&rotation, || text(&rotation))?;
    Ok(ExitCode::SUCCESS)
}

/// The new key is published everywhere before it signs anywhere, and the old one until its last JWT has expired.
fn steps(old: &Path, new: &Path) -> [String; 6] {
    let (old, new) = (old.display(), new.display());
    [
        format!("Back up {new}, and copy it to every machine that runs an instance. Keep its owner and mode."),
        format!(
            "On every machine set INGEST_JWT_EXTRA_KEY_FILES={old},{new} and restart the instances one after another. \
             They publish both keys and sign with the old one."
        ),
        "Wait until `svc-ingest status` says that the new key may sign: 5 minutes after the last restart, when no \
         verifier's copy of the JWKS document lacks it."
            .to_owned(),
        format!(
            "On every machine set INGEST_JWT_KEY_FILE={new} and restart the instances one after another. Connected agents \
             get JWTs of the new key."
        ),
        "Wait until `svc-ingest status` says that the old key may go: 24 hours after the last restart, when its last \
         JWT has expired."
            .to_owned(),
        format!(
            "On every machine unset INGEST_JWT_EXTRA_KEY_FILES, restart the instances one after another, and delete {old}."
        ),
    ]
}

fn text(rotation: &Rotation) -> String {
    let mut lines = vec![
        format!("new key  {}  {}", rotation.kid, rotation.file),
        format!("old key  {}  {}", rotation.old_kid, rotation.old_file),
        String::new(),
        "Nothing has changed yet. To put the new key into use:".to_owned(),
    ];
    let steps = rotation.steps.iter().zip(1..);
    lines.extend(steps.map(|(step, number)| format!("{number}. {step}")));
    lines.join("\n")
}
