//! The checkpoint: what the segments do not say. It holds the watermark, the next number,
//! and the numbers that were given up.
//!
//! One file holds two pages, which are written alternately and in place. Each page has a
//! generation and a checksum, and the newest valid page counts. A write that is cut off
//! damages only the older page, so the other one still stands. Both pages are allocated
//! when the spool is created; therefore the agent can declare a sample lost on a disk that
//! is full, where writing a new file would fail.
//!
//! The spool opens even if the file is missing or damaged. The next Welcome then brings the
//! watermark, and numbers without a known loss count as damaged.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use svc_proto::contract::limits::MAX_SEQ;

use super::{
    checksum::checksum,
    losses::{LossReason, Losses},
};

const PAGE: usize = 4096;
const FILE_NAME: &str = "books";
/// The first bytes of a page; the digit is the version of the format.
const MARK: &[u8; 8] = b"svcbook1";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    generation: u64,
    /// The service's watermark, as far as the agent knows it.
    pub acked: u64,
    /// No lower number is used again.
    pub next: u64,
    /// Set while unsent samples are renumbered: those up to this number are finished. See
    /// `resume`.
    pub unsent_after: Option<u64>,
    pub lost: Losses,
}

impl Checkpoint {
    /// Reads the newest valid page; an empty checkpoint if there is none.
    pub fn load(dir: &Path) -> io::Result<Self> {
        let file = match fs::File::open(path(dir)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::with_capacity(2 * PAGE);
        file.take(2 * PAGE as u64).read_to_end(&mut bytes)?;
        let pages = bytes.chunks_exact(PAGE).filter_map(Self::decode);
        Ok(pages
            .max_by_key(|checkpoint| checkpoint.generation)
            .unwrap_or_default())
    }

    /// Replaces the older page and syncs it.
    pub fn save(&mut self, dir: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(path(dir))?;
        let mut next = self.clone();
        next.generation += 1;
        let page = next.encode();
        if file.metadata()?.len() < 2 * PAGE as u64 {
            file.write_all_at(&[0; 2 * PAGE], 0)?;
        }
        file.write_all_at(&page, next.generation % 2 * PAGE as u64)?;
        file.sync_data()?;
        self.generation = next.generation;
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        page.extend(MARK);
        let unsent = self.unsent_after.map_or(u64::MAX, |seq| seq);
        for number in [self.generation, self.acked, self.next, unsent] {
            page.extend(number.to_le_bytes());
        }
        page.push(u8::try_from(self.lost.iter().len()).unwrap_or(u8::MAX));
        for loss in self.lost.iter() {
            page.extend(loss.first.to_le_bytes());
            page.extend(loss.last.to_le_bytes());
            page.push(loss.reason.code());
        }
        page.resize(PAGE - 4, 0);
        page.extend(checksum(&page).to_le_bytes());
        page
    }

    /// `None`: the page was never written, is damaged, or contains impossible values.
    fn decode(page: &[u8]) -> Option<Self> {
        let (content, sum) = page.split_last_chunk::<4>()?;
        if checksum(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = content.strip_prefix(MARK)?;
        let mut checkpoint = Self {
            generation: number(&mut rest)?,
            acked: number(&mut rest)?,
            next: number(&mut rest)?,
            unsent_after: Some(number(&mut rest)?).filter(|seq| *seq <= MAX_SEQ),
            lost: Losses::default(),
        };
        let (count, mut rest) = rest.split_first()?;
        for _ in 0..*count {
            let (first, last) = (number(&mut rest)?, number(&mut rest)?);
            let (code, after) = rest.split_first()?;
            rest = after;
            if first == 0 || last < first || last > MAX_SEQ {
                return None;
            }
            checkpoint
                .lost
                .add(first, last, LossReason::from_code(*code)?);
        }
        (checkpoint.acked <= MAX_SEQ && checkpoint.next <= MAX_SEQ + 1).then_some(checkpoint)
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        let mut lost = Losses::default();
        for seq in 1..=Losses::MOST as u64 {
            lost.add(seq * 2, seq * 2, LossReason::DiskFull);
        }
        Checkpoint {
            generation: 0,
            acked: 1,
            next: 500,
            unsent_after: None,
            lost,
        }
    }

    #[test]
    fn the_maximum_number_of_losses_fits_a_page() {
        let page = checkpoint().encode();
        assert_eq!(page.len(), PAGE);
        assert_eq!(Checkpoint::decode(&page), Some(checkpoint()));
        let midway = Checkpoint {
            unsent_after: Some(0),
            ..checkpoint()
        };
        assert_eq!(Checkpoint::decode(&midway.encode()), Some(midway));
    }

    #[test]
    fn a_write_that_is_cut_off_leaves_the_other_page_intact() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = checkpoint();
        first.save(dir.path()).unwrap();
        let before = fs::read(path(dir.path())).unwrap();
        let mut second = first.clone();
        second.acked = 7;
        second.save(dir.path()).unwrap();
        let after = fs::read(path(dir.path())).unwrap();
        for cut in (0..=2 * PAGE).step_by(64) {
            let torn = [&after[..cut], &before[cut..]].concat();
            fs::write(path(dir.path()), &torn).unwrap();
            let read = Checkpoint::load(dir.path()).unwrap();
            assert!(read == first || read == second, "cut at {cut}");
        }
    }
}
