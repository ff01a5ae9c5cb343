//! The state folder: the seed and the JWTs of a fleet between runs, so that agents need not register again.
//!
//! Keys come from the seed and need no file. Each file holds the lines `number bearer` of a block of a
//! thousand agents, readable by its owner only. An expired JWT needs no handling here: the service refuses
//! it, and the agent registers again with its key.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::Path,
};

use anyhow::Context;
use tempfile::NamedTempFile;

const AGENTS_PER_FILE: u32 = 1_000;

/// Loads the JWTs of the agents `first..first + count`.
pub fn load(folder: &Path, first: u32, count: u32) -> BTreeMap<u32, String> {
    let mut known = BTreeMap::new();
    for block in first / AGENTS_PER_FILE..=(first + count) / AGENTS_PER_FILE {
        let text = fs::read_to_string(folder.join(file_name(block))).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.filter_map(|(number, jwt)| Some((number.parse().ok()?, jwt.to_owned())));
        known.extend(lines.filter(|(number, _)| (first..first + count).contains(number)));
    }
    known
}

/// Saves `jwts`, and keeps those of other agents.
pub fn save(folder: &Path, jwts: &BTreeMap<u32, String>) -> anyhow::Result<()> {
    let mut blocks: BTreeMap<u32, BTreeMap<u32, String>> = BTreeMap::new();
    for (number, jwt) in jwts {
        let block = number / AGENTS_PER_FILE;
        let kept = || load(folder, block * AGENTS_PER_FILE, AGENTS_PER_FILE);
        let kept = blocks.entry(block).or_insert_with(kept);
        kept.insert(*number, jwt.clone());
    }
    blocks.iter().try_for_each(|(block, jwts)| {
        let lines = jwts.iter().map(|(number, jwt)| format!("{number} {jwt}\n"));
        write_private(folder, &file_name(*block), &lines.collect::<String>())
    })
}

/// The seed of a folder, written when the folder is created. Another seed would give other agents, so it
/// is refused.
pub fn seed(folder: &Path, wanted: Option<&str>) -> anyhow::Result<String> {
    if let Ok(kept) = fs::read_to_string(folder.join("seed")) {
        let kept = kept.trim().to_owned();
        let same = wanted.is_none_or(|wanted| wanted == kept);
        anyhow::ensure!(same, "{} was created with another --seed", folder.display());
        return Ok(kept);
    }
    let seed = wanted.map_or_else(random_seed, str::to_owned);
    write_private(folder, "seed", &seed)?;
    Ok(seed)
}

pub fn random_seed() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Replaces the file atomically: several workers write to one folder, and neighbours to the same file. Only
/// its owner may read it.
fn write_private(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let write = || {
        fs::create_dir_all(folder)?;
        let mut unfinished = NamedTempFile::new_in(folder)?;
        unfinished.write_all(text.as_bytes())?;
        unfinished.persist(folder.join(name))?;
        io::Result::Ok(())
    };
    write().with_context(|| folder.join(name).display().to_string())
}

fn file_name(block: u32) -> String {
    format!("{block:05}.jwts")
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
