//! `svc-ingest release`: the keys, manifests and signatures of releases, for the people who make them. These commands need no
//! database and no settings, so that they run on the offline machine that has the key; only `add` and `list` do.

mod add;
mod verify;

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, ensure};
use clap::Subcommand;
use jiff::Timestamp;
use svc_release::{
    Artefact, Binary, FILE, Kind, Manifest, PublicKey, SecretKey, UPDATE_FILE, Update, Version,
    digest, is_file_name,
};
use zeroize::Zeroizing;

use super::output;

/// Signed files and keys are small; anything larger is a mistake.
const LARGEST: u64 = 1024 * 1024;

/// The product that updates itself.
const AGENT: &str = "svc-agent";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key that signs releases, and its public key beside it with the ending .pub
    Keygen {
        /// Where the private key is written (mode 0600). It must not exist yet
        #[arg(long, value_name = "FILE", default_value = "release.key")]
        out: PathBuf,
    },
    /// Write release.json into a folder, with size and SHA-256 of each file there
    Manifest {
        #[arg(value_name = "VERSION")]
        release: Version,
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// When the release was made (RFC 3339) [default: now]
        #[arg(long, value_name = "TIME")]
        created: Option<Timestamp>,
        /// The oldest version that may be updated to this one in one step
        #[arg(long, value_name = "VERSION")]
        minimum: Option<Version>,
        /// Write svc-agent.json, too, with which agents update themselves; higher than that of every update before
        #[arg(long, value_name = "NUMBER")]
        serial: Option<u64>,
        /// Where people read what is new
        #[arg(long, value_name = "URL", requires = "serial")]
        notes: Option<String>,
    },
    /// Sign files: the raw Ed25519 signature of FILE is written to FILE.sig
    Sign {
        /// The private key, from `keygen` or from `openssl genpkey -algorithm ed25519`
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Check the signatures of release.json and svc-agent.json in a folder, and the files beside them
    Verify {
        /// The public keys that are trusted, one after another in one file
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Add the signed manifest of an update, so that a rollout can offer it to agents
    Add(add::Args),
    /// List the releases that were added, the newest first
    List(output::OutputArgs),
}

impl Command {
    /// Whether it needs neither settings nor the database.
    pub fn is_offline(&self) -> bool {
        !matches!(self, Command::Add(_) | Command::List(_))
    }
}

pub async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Keygen { out } => keygen(&out),
        Command::Sign { key, files } => sign(&key, &files),
        Command::Add(args) => add::add(args).await,
        Command::List(args) => add::list(args).await,
        Command::Verify { key, folder } => verify::run(&key, &folder),
        Command::Manifest {
            release,
            folder,
            created,
            minimum,
            serial,
            notes,
        } => {
            let created = created.unwrap_or_else(Timestamp::now);
            let mut manifest = Manifest::new(release, created, artefacts(&folder)?);
            manifest.minimum = minimum;
            if let Some(serial) = serial {
                let text = update(&manifest, serial, notes).to_text()?;
                replace(&folder.join(UPDATE_FILE), text.as_bytes())?;
            }
            let path = folder.join(FILE);
            replace(&path, manifest.to_text()?.as_bytes())?;
            let count = manifest.artefacts.len();
            done(&format!("{}: {count} files", path.display()))
        }
    }
}

fn keygen(out: &Path) -> anyhow::Result<ExitCode> {
    let public_file = out.with_extension("pub");
    ensure!(
        public_file != out && !public_file.exists(),
        "{} exists already, or is the name of the private key",
        public_file.display()
    );
    let key = SecretKey::generate()?;
    let public = key.public_key()?;
    create(out, 0o600, key.to_pem()?.as_bytes())?;
    create(&public_file, 0o644, public.to_pem().as_bytes())?;
    done(&format!(
        "private key  {}\npublic key   {}  {}\n\n\
         Keep the private key offline, on two media in two places: whoever has it can sign programs that run as root.\n\
         Publish the public key where the releases are not: in the repository and in the documentation.",
        out.display(),
        public_file.display(),
        public.fingerprint(),
    ))
}

fn sign(key: &Path, files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let secret = SecretKey::from_pem(&text(key)?).with_context(|| key.display().to_string())?;
    let mut lines = vec![format!("key {}", secret.public_key()?.fingerprint())];
    for file in files {
        let bytes = read(file)?;
        let about = || file.display().to_string();
        let name = file.file_name().unwrap_or_default();
        if name == FILE {
            Manifest::parse(&bytes).with_context(about)?;
        }
        if name == UPDATE_FILE {
            Update::parse(&bytes).with_context(about)?;
        }
        let signature = signature_of(file);
        replace(&signature, &secret.sign(&bytes)?)?;
        let (_, sum) = digest(&bytes[..])?;
        lines.push(format!(
            "{sum}  {}: {}",
            file.display(),
            signature.display()
        ));
    }
    done(&lines.join("\n"))
}

/// What agents are offered: the bare programs of svc-agent among the files of a release.
fn update(release: &Manifest, serial: u64, notes: Option<String>) -> Update {
    let programs = release.artefacts.iter();
    let programs = programs.filter(|one| one.product == AGENT && one.kind == Kind::Binary);
    let platforms = programs.filter_map(|one| {
        let (_, platform) = one.file.rsplit_once("-linux-")?;
        let binary = Binary {
            size: one.size,
            sha256: one.sha256.clone(),
        };
        Some((format!("linux/{platform}"), binary))
    });
    Update {
        product: AGENT.to_owned(),
        version: release.version.clone(),
        serial,
        minimum: release.minimum.clone(),
        notes,
        platforms: platforms.collect(),
    }
}

/// The files of a folder, without checksums, signatures and an older manifest.
fn artefacts(folder: &Path) -> anyhow::Result<Vec<Artefact>> {
    let mut artefacts = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if [FILE, UPDATE_FILE, "SHA256SUMS"].contains(&&*name) || name.ends_with(".sig") {
            continue;
        }
        let about = || path.display().to_string();
        ensure!(
            path.is_file() && is_file_name(&name),
            "{}: not a file that a release can have",
            about()
        );
        let (size, sha256) = digest(File::open(&path).with_context(about)?).with_context(about)?;
        artefacts.push(Artefact {
            product: product(&name).to_owned(),
            target: target(&name).map(str::to_owned),
            kind: kind(&name),
            file: name.into_owned(),
            size,
            sha256,
        });
    }
    Ok(artefacts)
}

/// The names are those that `scripts/release` gives.
fn product(name: &str) -> &'static str {
    let programs = ["svc-ingest", "svc-console", AGENT];
    let found = programs
        .into_iter()
        .find(|program| name.starts_with(program));
    found.unwrap_or("svc")
}

/// All programs of a release are static.
fn target(name: &str) -> Option<&'static str> {
    let is = |names: [&str; 2]| names.into_iter().any(|arch| name.contains(arch));
    match () {
        () if is(["x86_64", "amd64"]) => Some("x86_64-unknown-linux-musl"),
        () if is(["aarch64", "arm64"]) => Some("aarch64-unknown-linux-musl"),
        () => None,
    }
}

fn kind(name: &str) -> Kind {
    let endings = [
        (".tar.xz", Kind::Tarball),
        (".deb", Kind::Deb),
        (".rpm", Kind::Rpm),
        (".cdx.json", Kind::Sbom),
        ("-linux-x86_64", Kind::Binary),
        ("-linux-aarch64", Kind::Binary),
    ];
    let found = endings
        .into_iter()
        .find(|(ending, _)| name.ends_with(ending));
    found.map_or(Kind::Other, |(_, kind)| kind)
}

fn signature_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

fn read(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let read = || {
        let mut bytes = Zeroizing::new(Vec::new());
        File::open(path)?
            .take(LARGEST + 1)
            .read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().with_context(|| path.display().to_string())?;
    ensure!(
        bytes.len() as u64 <= LARGEST,
        "{}: larger than {LARGEST} bytes",
        path.display()
    );
    Ok(bytes)
}

fn text(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let bytes = read(path)?;
    let text = std::str::from_utf8(&bytes).with_context(|| path.display().to_string())?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn public_keys(path: &Path) -> anyhow::Result<Vec<PublicKey>> {
    PublicKey::all_from_pem(&text(path)?).with_context(|| path.display().to_string())
}

/// Writes a file that does not exist yet: a key is never overwritten.
fn create(path: &Path, mode: u32, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| path.display().to_string())
}

fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

fn done(text: &str) -> anyhow::Result<ExitCode> {
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}
