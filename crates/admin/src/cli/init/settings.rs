//! The settings file that `init` completes: what it has, what is added, and how it is saved.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use svc_common::settings::{EnvFile, assignment, read_text};

use super::{files, step::Step};

/// The head of a new file.
pub const SERVICE: &str = "\
# The ingest service's settings, begun by `svc-ingest init`. After a change: systemctl restart svc-ingest
# systemd and all svc-ingest commands read this file and ingest.env.d/*.env; a shell can source it (`set -a` first).
# `svc-ingest doctor` reports problems; the README lists all variables. Only root can read this file.
";
pub const CONSOLE: &str = "\
# The web console's settings, begun by `svc-ingest init`. After a change: systemctl restart svc-console
# docs/console.md lists all variables. Only root can read this file.
";

#[derive(Debug)]
pub struct Settings {
    path: PathBuf,
    head: &'static str,
    values: EnvFile,
    added: Vec<&'static str>,
}

impl Settings {
    /// Fails unless the file can be read and could be written.
    pub fn open(path: &Path, head: &'static str) -> anyhow::Result<Self> {
        let values = EnvFile::read(path);
        if let Some(reason) = values.unreadable() {
            anyhow::bail!("{reason}: run this as root");
        }
        files::folder(folder(path), 0o755, None)?;
        let probe = tempfile::Builder::new().tempfile_in(folder(path));
        probe.with_context(|| format!("{} cannot be written: run this as root", path.display()))?;
        Ok(Self {
            path: path.into(),
            head,
            values,
            added: Vec::new(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where further files of the installation go.
    pub fn folder(&self) -> &Path {
        folder(&self.path)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name)
    }

    /// Fails if the variable has another value than an option gives it: nothing that somebody asks for is ignored.
    pub fn check_given(&self, name: &str, option: &str, value: &str) -> anyhow::Result<()> {
        match self.get(name).filter(|known| *known != value) {
            None => Ok(()),
            Some(known) => anyhow::bail!(
                "{name} is {known} in {}, and {option} says {value}: change the setting, or leave the option out",
                self.path.display()
            ),
        }
    }

    /// As [`Self::set`], for a value that follows from others. Returns a warning if the variable has another one.
    pub fn set_derived(
        &mut self,
        name: &'static str,
        value: &str,
    ) -> anyhow::Result<Option<String>> {
        let differs = self.get(name).filter(|known| *known != value);
        let warning = differs.map(|known| {
            let path = self.path.display();
            format!("{name} is {known} in {path}, and {value} by the other settings: it stays")
        });
        self.set(name, value)?;
        Ok(warning)
    }

    /// Adds a line for a variable that has no value, and saves the file. A value that is set stays.
    pub fn set(&mut self, name: &'static str, value: &str) -> anyhow::Result<()> {
        if self.get(name).is_some() {
            return Ok(());
        }
        let line = assignment(name, value)
            .with_context(|| format!("{name} contains a control character"))?;
        let mut text = match fs::exists(&self.path)? {
            true => read_text(&self.path)?,
            false => self.head.to_owned(),
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&line);
        text.push('\n');
        files::replace(&self.path, &text, 0o600, None)?;
        self.values = EnvFile::read(&self.path);
        self.added.push(name);
        Ok(())
    }

    pub fn step(&self) -> Step {
        let path = self.path.display();
        match self.added.as_slice() {
            [] => Step::kept("settings", format!("{path}")),
            added => Step::made("settings", format!("{path}: {}", added.join(", "))),
        }
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
