//! The state folder: the seed and the JWTs of a fleet between runs, so that agents need not register again.
//!
//! Keys come from the seed and need no file. Each file holds the lines `number bearer` of a block of a
//! thousand agents, readable by its owner only. An expired JWT needs no handling here: the service refuses
//! it, and the agent registers again with its key.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

const AGENTS_PER_FILE: u32 = 1_000;

/// Loads the JWTs of the agents `first..first + count`.
pub fn load(folder: &Path, first: u32, count: u32) -> BTreeMap<u32, String> {
    let mut known = BTreeMap::new();
    for block in first / AGENTS_PER_FILE..=(first + count) / AGENTS_PER_FILE {
        let text = fs::read_to_string(file(folder, block)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter_map(|(number, jwt)| Some((number.parse().ok()?, jwt.to_owned())));
        known.extend(lines.filter(|(number, _)| (first..first + count).contains(number)));
    }
    known
}

/// Saves `jwts`, and keeps those of other agents.
pub fn save(folder: &Path, jwts: &BTreeMap<u32, String>) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut blocks: BTreeMap<u32, BTreeMap<u32, String>> = BTreeMap::new();
    for (number, jwt) in jwts {
        let block = number / AGENTS_PER_FILE;
        let kept = || load(folder, block * AGENTS_PER_FILE, AGENTS_PER_FILE);
        let kept = blocks.entry(block).or_insert_with(kept);
        kept.insert(*number, jwt.clone());
    }
    blocks
        .iter()
        .try_for_each(|(block, jwts)| write_jwts(&file(folder, *block), jwts))
}

/// The seed of a folder, written when the folder is created. Another seed would give other agents, so it
/// is refused.
pub fn seed(folder: &Path, wanted: Option<&str>) -> anyhow::Result<String> {
    let path = folder.join("seed");
    if let Ok(kept) = fs::read_to_string(&path) {
        let kept = kept.trim().to_owned();
        let same = wanted.is_none_or(|wanted| wanted == kept);
        anyhow::ensure!(same, "{} was created with another --seed", folder.display());
        return Ok(kept);
    }
    let seed = wanted.map_or_else(random_seed, str::to_owned);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write_private(&path, seed.as_bytes())?;
    Ok(seed)
}

pub fn random_seed() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn write_jwts(path: &Path, jwts: &BTreeMap<u32, String>) -> anyhow::Result<()> {
    let mut text = String::new();
    for (number, jwt) in jwts {
        writeln!(text, "{number} {jwt}")?;
    }
    write_private(path, text.as_bytes())
}

/// Replaces the file atomically: several workers write to one folder, and neighbours to the same file.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = opened
        .open(&unfinished)
        .with_context(|| unfinished.display().to_string())?;
    file.write_all(bytes)?;
    fs::rename(&unfinished, path).with_context(|| path.display().to_string())
}

fn file(folder: &Path, block: u32) -> PathBuf {
    folder.join(format!("{block:05}.jwts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(numbers: std::ops::Range<u32>, jwt: &str) -> BTreeMap<u32, String> {
        numbers
            .map(|number| (number, format!("{jwt}{number}")))
            .collect()
    }

    #[test]
    fn jwts_are_loaded_by_agent_number_across_files() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &some(0..1500, "a")).unwrap();
        save(folder.path(), &some(1400..2600, "b")).unwrap();
        assert_eq!(load(folder.path(), 1300, 100), some(1300..1400, "a"));
        assert_eq!(load(folder.path(), 1400, 1200), some(1400..2600, "b"));
        assert_eq!(load(folder.path(), 9_000, 10), BTreeMap::new());
    }

    #[test]
    fn a_folder_belongs_to_one_seed() {
        let folder = tempfile::tempdir().unwrap();
        let made = seed(folder.path(), None).unwrap();
        assert_eq!(seed(folder.path(), None).unwrap(), made);
        assert_eq!(seed(folder.path(), Some(&made)).unwrap(), made);
        assert!(seed(folder.path(), Some("another")).is_err());
    }
}
