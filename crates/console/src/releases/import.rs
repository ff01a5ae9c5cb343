//! Fills the folder of releases from the files of a release, as `make release` names them.
//!
//! What is served is what was checked: a file is copied first, and its copy is compared with the release's checksums.
//! A new version appears at once with all of its files, or not at all.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use svc_release::{PublicKey, digest};

use super::{FILES, SIGNATURE, SUMS, is_version};

/// A file of a release, and where it goes.
#[derive(Debug, PartialEq, Eq)]
struct Artefact {
    source: PathBuf,
    arch: String,
    file: &'static str,
}

/// What an import did.
#[derive(Debug, Default)]
pub struct Imported {
    pub files: Vec<String>,
    /// Files that no checksums came with.
    pub unchecked: Vec<PathBuf>,
}

/// Imports files, and the known files of folders. `release` is the version of a file that is named `svc-agent`
/// alone. With keys, the release's checksums must be signed by one of them.
pub fn import(
    folder: &Path,
    paths: &[PathBuf],
    release: Option<&str>,
    keys: &[PublicKey],
) -> anyhow::Result<Imported> {
    let mut versions: BTreeMap<String, Vec<Artefact>> = BTreeMap::new();
    for path in expand(paths)? {
        let Some((version, artefact)) = recognise(&path, release)? else {
            bail!(
                "{} is no file of a release: svc-agent_VERSION_ARCH.deb, svc-agent-VERSION-1.ARCH.rpm or svc-agent-VERSION-linux-ARCH",
                path.display()
            );
        };
        versions.entry(version).or_default().push(artefact);
    }
    ensure!(!versions.is_empty(), "there is no file of the agent here");
    let mut imported = Imported::default();
    create(folder)?;
    for (version, artefacts) in versions {
        let stage = folder.join(format!(".new-{version}"));
        drop(fs::remove_dir_all(&stage));
        let staged = fill(&stage, &artefacts, keys, &mut imported);
        let placed = staged.and_then(|files| place(&stage, &folder.join(&version), &files));
        drop(fs::remove_dir_all(&stage));
        let files = placed.with_context(|| format!("nothing of {version} was imported"))?;
        let names = files
            .iter()
            .map(|file| format!("{version}/{}", file.display()));
        imported.files.extend(names);
    }
    Ok(imported)
}

/// Checksums are read where the artefacts are.
fn expand(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let about = || path.display().to_string();
        if !fs::metadata(path).with_context(about)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        for entry in fs::read_dir(path).with_context(about)? {
            let file = entry?.path();
            if named(&name(&file)).is_some() {
                files.push(file);
            }
        }
    }
    files.retain(|file| ![SUMS, SIGNATURE].contains(&name(file).as_str()));
    files.sort();
    Ok(files)
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn recognise(path: &Path, release: Option<&str>) -> anyhow::Result<Option<(String, Artefact)>> {
    let name = name(path);
    let found = match named(&name) {
        None if name == "svc-agent" => {
            let version =
                release.context("svc-agent has no version in its name: give --release")?;
            Some((version.to_owned(), architecture(path)?, FILES[0]))
        }
        found => found,
    };
    let Some((version, arch, file)) = found else {
        return Ok(None);
    };
    ensure!(is_version(&version), "{version:?} is not a version");
    let source = path.to_owned();
    Ok(Some((version, Artefact { source, arch, file })))
}

/// Version, architecture and place of a file of `make release`. Packages write `~` where the version has `-`.
fn named(name: &str) -> Option<(String, String, &'static str)> {
    let (version, arch, file) = if let Some(rest) = name.strip_suffix(".deb") {
        let (version, arch) = rest.strip_prefix("svc-agent_")?.split_once('_')?;
        (version, arch, FILES[1])
    } else if let Some(rest) = name.strip_suffix(".rpm") {
        let (version, arch) = rest.strip_prefix("svc-agent-")?.rsplit_once("-1.")?;
        (version, arch, FILES[2])
    } else {
        let (version, arch) = name.strip_prefix("svc-agent-")?.rsplit_once("-linux-")?;
        (version, arch, FILES[0])
    };
    let arch = match arch {
        "amd64" | "x86_64" => "x86_64",
        "arm64" | "aarch64" => "aarch64",
        _ => return None,
    };
    let version = version.replace('~', "-");
    is_version(&version).then(|| (version, arch.to_owned(), file))
}

/// The machine in the header of an ELF file.
fn architecture(path: &Path) -> anyhow::Result<String> {
    let mut header = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.with_context(|| path.display().to_string())?;
    match (&header[..4], u16::from_le_bytes([header[18], header[19]])) {
        (b"\x7fELF", 62) => Ok("x86_64".into()),
        (b"\x7fELF", 183) => Ok("aarch64".into()),
        _ => Err(anyhow!(
            "{} is no program for x86_64 or aarch64",
            path.display()
        )),
    }
}

/// Copies the artefacts of one version with their checksums into a folder, and verifies the copies.
fn fill(
    stage: &Path,
    artefacts: &[Artefact],
    keys: &[PublicKey],
    imported: &mut Imported,
) -> anyhow::Result<Vec<PathBuf>> {
    create(stage)?;
    let mut files = Vec::new();
    for artefact in artefacts {
        let origin = artefact.source.parent().unwrap_or(Path::new(""));
        let sums = sums(origin, keys)?;
        let place = Path::new("linux").join(&artefact.arch);
        create(&stage.join(&place))?;
        let place = place.join(artefact.file);
        let copy = stage.join(&place);
        copy_file(&artefact.source, &copy)?;
        match &sums {
            Some(sums) => verify(&artefact.source, &copy, sums)?,
            None => imported.unchecked.push(artefact.source.clone()),
        }
        for name in [SUMS, SIGNATURE] {
            if sums.is_some() && origin.join(name).exists() && !stage.join(name).exists() {
                copy_file(&origin.join(name), &stage.join(name))?;
                files.push(name.into());
            }
        }
        files.push(place);
    }
    Ok(files)
}

/// The checksums beside an artefact by file name. Where there are keys, they must be there and signed.
fn sums(origin: &Path, keys: &[PublicKey]) -> anyhow::Result<Option<HashMap<String, String>>> {
    let read = |name: &str| match fs::read(origin.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read
            .map(Some)
            .with_context(|| origin.join(name).display().to_string()),
    };
    let text = read(SUMS)?;
    if !keys.is_empty() {
        let (text, signature) = (text.as_deref(), read(SIGNATURE)?);
        let text = text.context("CONSOLE_RELEASE_KEY is set, and there is no SHA256SUMS")?;
        let signature =
            signature.context("CONSOLE_RELEASE_KEY is set, and there is no SHA256SUMS.sig")?;
        let signed = keys.iter().any(|key| key.has_signed(text, &signature));
        ensure!(signed, "SHA256SUMS is not signed by CONSOLE_RELEASE_KEY");
    }
    let Some(text) = text else { return Ok(None) };
    let text = String::from_utf8(text).context("SHA256SUMS is no text")?;
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    Ok(Some(
        lines
            .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
            .collect(),
    ))
}

fn verify(source: &Path, copy: &Path, sums: &HashMap<String, String>) -> anyhow::Result<()> {
    let name = name(source);
    let wanted = sums
        .get(&name)
        .with_context(|| format!("SHA256SUMS does not name {name}"))?;
    let (_, found) = digest(File::open(copy)?)?;
    ensure!(*wanted == found, "the checksum of {name} is wrong");
    Ok(())
}

/// Moves a filled folder to its place, or its files into the folder of a version that exists.
fn place(stage: &Path, target: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if !target.exists() {
        fs::rename(stage, target)?;
        return Ok(files.to_vec());
    }
    for file in files {
        let to = target.join(file);
        create(to.parent().unwrap_or(target))?;
        fs::rename(stage.join(file), to)?;
    }
    Ok(files.to_vec())
}

/// Whatever the umask is, the console's user can read what root imports.
fn create(folder: &Path) -> anyhow::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    created.with_context(|| folder.display().to_string())?;
    Ok(fs::set_permissions(folder, Permissions::from_mode(0o755))?)
}

fn copy_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = fs::copy(from, to).and_then(|_| {
        fs::set_permissions(to, Permissions::from_mode(0o644))?;
        File::open(to)?.sync_all()
    });
    copied.with_context(|| from.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_release_say_where_its_files_go() {
        for (name, version, arch, file) in [
            (
                "svc-agent_1.0.0~rc.1_amd64.deb",
                "1.0.0-rc.1",
                "x86_64",
                "svc-agent.deb",
            ),
            (
                "svc-agent-1.0.0~rc.1-1.aarch64.rpm",
                "1.0.0-rc.1",
                "aarch64",
                "svc-agent.rpm",
            ),
            (
                "svc-agent-1.0.0-rc.1-linux-x86_64",
                "1.0.0-rc.1",
                "x86_64",
                "svc-agent",
            ),
            (
                "svc-agent_1.2.3+45.gabc_arm64.deb",
                "1.2.3+45.gabc",
                "aarch64",
                "svc-agent.deb",
            ),
        ] {
            let wanted = (version.to_owned(), arch.to_owned(), file);
            assert_eq!(named(name), Some(wanted), "{name}");
        }
        for name in [
            "svc-agent",
            "svc-ingest_1.0.0_amd64.deb",
            "svc-agent_1.0.0_riscv64.deb",
            "svc-agent_.._amd64.deb",
            "svc-agent_x_amd64.deb",
            "svc-agent-1.0.0-x86_64.cdx.json",
        ] {
            assert_eq!(named(name), None, "{name}");
        }
    }
}
