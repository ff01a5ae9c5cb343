//! What the segments do not say: how far the service has confirmed, and which
//! numbers were given up and why.
//!
//! One file of two pages, written in turns and in place. A write that is cut short
//! spoils one page and the other still stands; and because both pages were
//! allocated when the spool was made, a number can be given up on a disk that is
//! full. Whatever is wrong with the file, the spool opens: what it then does not
//! know, the service's Welcome tells.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    MAX_SEQ,
    checksum::checksum,
    losses::{LossReason, Losses},
};

const PAGE: usize = 4096;
const NAME: &str = "books";
/// Stands first in a page; the digit is the format's version.
const MARK: &[u8; 8] = b"svcbook1";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    generation: u64,
    /// What the service confirmed last.
    pub acked: u64,
    /// No number below this one is given again.
    pub next: u64,
    /// While numbers are changed: samples up to this one are done with. See `resume`.
    pub unsent_after: Option<u64>,
    pub lost: Losses,
}

impl Checkpoint {
    /// The newer of the two pages that are good; empty books if none is.
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

    /// Replaces the older page, and waits until the disk has it.
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

    /// `None` for a page that was never written, is damaged, or says what cannot be.
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
    dir.join(NAME)
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
    fn the_most_losses_fit_a_page() {
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
    fn a_write_cut_short_anywhere_leaves_the_page_before() {
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

    #[test]
    fn bytes_that_are_no_books_are_empty_books() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::load(dir.path()).unwrap(), Checkpoint::default());
        for bytes in [&b""[..], b"x", &[0; 9000], &[0xff; 9000]] {
            fs::write(path(dir.path()), bytes).unwrap();
            assert_eq!(Checkpoint::load(dir.path()).unwrap(), Checkpoint::default());
        }
    }
}
