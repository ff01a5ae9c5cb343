//! The sources of settings. Flags override the agent's variables, which override the file and
//! its drop-ins (`<file>.d/*.toml`, the last one wins), which override variables that all programs
//! share. An empty value counts as not set in each of them.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use strsim::levenshtein;

use super::{
    problems::Problem,
    settings::{SETTINGS, Setting},
};

pub const DEFAULT_FILE: &str = "/etc/svc/agent.toml";
/// The variable that names another file.
pub const FILE_VARIABLE: &str = "SVC_AGENT_CONFIG";

/// Settings that other programs read from the environment, under the name itself or in
/// capitals. The agent's own sources override these variables.
const COMMON: [&str; 2] = ["https_proxy", "no_proxy"];

const TOKEN: &str = "enrolment_token";
/// A key with more typing errors is not recognised.
const MOST_TYPOS: usize = 3;

/// The values of the command line, by the names of their settings, and the file it names.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub file: Option<PathBuf>,
    pub values: BTreeMap<&'static str, String>,
}

/// A value, and its name in the source that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub text: String,
    pub name: String,
}

pub(super) struct Sources<'a> {
    flags: &'a Flags,
    environment: &'a dyn Fn(&str) -> Option<OsString>,
    /// The file and its drop-ins, each with its settings.
    files: Vec<(PathBuf, BTreeMap<String, Found>)>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl<'a> Sources<'a> {
    /// Reads the files. A file with a problem counts as empty.
    pub(super) fn open(
        flags: &'a Flags,
        environment: &'a dyn Fn(&str) -> Option<OsString>,
    ) -> Self {
        let named = flags.file.clone().map(|path| (path, "--config".to_owned()));
        let named = named.or_else(|| {
            let path = environment(FILE_VARIABLE).filter(|path| !path.is_empty())?;
            Some((path.into(), FILE_VARIABLE.to_owned()))
        });
        let is_default = named.is_none();
        let default = || (DEFAULT_FILE.into(), "the configuration".to_owned());
        let (path, name) = named.unwrap_or_else(default);
        let mut sources = Self {
            flags,
            environment,
            files: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        };
        sources.read(&path, &name, is_default);
        for drop_in in drop_ins(&path) {
            sources.read(&drop_in, "a drop-in", false);
        }
        sources
    }

    /// The default file may be missing: the environment or flags can set everything.
    fn read(&mut self, path: &Path, name: &str, may_be_missing: bool) {
        let shown = path.display();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                let message = format!("{shown} cannot be read: {error}");
                return self.problems.push(Problem::new(name, message));
            }
        };
        match text.parse::<toml::Table>() {
            Ok(table) => self.add(path, table),
            Err(error) => {
                // The parser's message quotes the line, which may contain the token.
                let line = error.span().map(|span| text[..span.start].lines().count());
                let line =
                    line.map_or(String::new(), |line| format!(", near line {}", line.max(1)));
                let message = format!("{shown} is not TOML{line}");
                self.problems.push(Problem::new(name, message));
            }
        }
    }

    fn add(&mut self, path: &Path, table: toml::Table) {
        let (shown, mut entries) = (path.display(), BTreeMap::new());
        for (key, value) in table {
            let name = format!("{key} in {shown}");
            // A newer binary may know it: the configuration may be ahead of the binary.
            if Setting::named(&key).is_none() {
                self.warnings.push(Problem::new(name, unknown(&key)));
            } else if key == TOKEN && is_open_to_all(path) {
                let fix = format!("chmod o-rwx {shown}");
                let message = format!("is not used, because every user can read it: run `{fix}`");
                self.warnings.push(Problem::new(name, message));
            } else if let Some(text) = as_text(value) {
                entries.insert(key, Found { text, name });
            } else {
                let message = "is neither a text nor a list of texts";
                self.problems.push(Problem::new(name, message));
            }
        }
        self.files.push((path.to_owned(), entries));
    }

    /// The file, if the value of a setting comes from it.
    pub(super) fn file_that_sets(&self, name: &str) -> Option<PathBuf> {
        let setting = Setting::named(name)?;
        let found = self.find(setting).ok()?;
        let (path, entry) = self.entry(name)?;
        (found.name == entry.name).then(|| path.to_owned())
    }

    /// The value from the first source that sets it, or its default.
    pub(super) fn find(&self, setting: &Setting) -> Result<Found, Problem> {
        let flag = self.flags.values.get(setting.name).map(|text| Found {
            text: text.clone(),
            name: format!("--{}", setting.flag()),
        });
        if let Some(flag) = flag.filter(Found::is_set) {
            return Ok(flag);
        }
        if let Some(variable) = self.variable(setting)?.filter(Found::is_set) {
            return Ok(variable);
        }
        let entry = self.entry(setting.name).map(|(_, entry)| entry.clone());
        let entry = match entry {
            Some(entry) => Some(entry),
            None => self.common_variable(setting)?.filter(Found::is_set),
        };
        let default = setting.default.map(|default| Found {
            text: default.into(),
            name: setting.name.into(),
        });
        entry.or(default).ok_or_else(|| {
            let variable = setting.variable();
            let message = format!("is required: set it in {DEFAULT_FILE}, or {variable}");
            Problem::new(setting.name, message)
        })
    }

    /// The last file that sets it, and its value there.
    fn entry(&self, name: &str) -> Option<(&Path, &Found)> {
        let mut latest = self.files.iter().rev();
        latest.find_map(|(path, entries)| {
            let entry = entries.get(name).filter(|entry| entry.is_set())?;
            Some((path.as_path(), entry))
        })
    }

    fn variable(&self, setting: &Setting) -> Result<Option<Found>, Problem> {
        self.read_variable(setting.variable())
    }

    fn common_variable(&self, setting: &Setting) -> Result<Option<Found>, Problem> {
        if !COMMON.contains(&setting.name) {
            return Ok(None);
        }
        match self.read_variable(setting.name.into())? {
            Some(found) => Ok(Some(found)),
            None => self.read_variable(setting.name.to_uppercase()),
        }
    }

    fn read_variable(&self, name: String) -> Result<Option<Found>, Problem> {
        match (self.environment)(&name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(Found { text, name })),
            Some(Err(_)) => Err(Problem::new(name, "is not valid UTF-8")),
        }
    }
}

impl Found {
    fn is_set(&self) -> bool {
        !self.text.trim().is_empty()
    }
}

fn drop_ins(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path.with_added_extension("d"));
    let paths = entries.into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = paths
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    files.sort();
    files
}

/// A list is equivalent to a text with commas.
fn as_text(value: toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Array(list) => {
            let texts: Option<Vec<String>> = list.into_iter().map(as_text).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

/// Whether every user of the machine may read a file.
pub fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.mode() & 0o004 != 0)
}

/// The token that a configuration file sets now.
pub fn token_in(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let table: toml::Table = text.parse().map_err(|_| "it is not TOML")?;
    let token = table.get(TOKEN).and_then(toml::Value::as_str);
    Ok(token.unwrap_or_default().trim().to_owned())
}

/// The token in a file of its own.
pub fn read_token(path: &Path) -> Result<String, String> {
    if is_open_to_all(path) {
        let path = path.display();
        return Err(format!("every user can read it: run `chmod o-rwx {path}`"));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    Ok(text.trim().to_owned())
}

fn unknown(key: &str) -> String {
    let key = key.to_lowercase().replace('-', "_");
    let distance = |setting: &&Setting| levenshtein(setting.name, &key);
    match SETTINGS.iter().min_by_key(distance) {
        Some(near) if distance(&near) <= MOST_TYPOS => {
            format!("is not a setting and is ignored: {} is one", near.name)
        }
        _ => "is not a setting of this version and is ignored".into(),
    }
}
