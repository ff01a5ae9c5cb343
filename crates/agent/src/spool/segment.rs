//! One file of frames, named by the first number that may stand in it.
//!
//! A segment owns the numbers from its name to that of the next. Records are only
//! ever appended to the newest, and a segment is only ever deleted as a whole, so
//! that the usual write is one small one and nothing is written twice.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    ops::RangeInclusive,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    MAX_SEQ,
    frame::{HEADER_BYTES, MAX_BODY_BYTES, Scan, Tail},
};

/// Some two thousand samples of a machine with one disk. A file that is longer was not written by us, and
/// is read no further than this and one frame.
pub(super) const MAX_BYTES: u64 = 256 * 1024;
const MAX_READ: u64 = MAX_BYTES + (HEADER_BYTES + MAX_BODY_BYTES) as u64;
/// The digit is the format's version.
const EXTENSION: &str = "samples1";

/// What is remembered of a segment; its frames stay on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u64,
    /// How many whole frames it has.
    pub samples: u64,
    pub bytes: u64,
    /// Times of the first and the latest sample, in nanoseconds since 1970.
    pub began: i64,
    pub newest: i64,
}

/// How the newest segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The number after the last that can have stood in it.
    pub next: u64,
    /// Where to go on writing, if the rest can be cut off.
    pub offset: Option<u64>,
}

/// The open end of the newest segment.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    end: u64,
    /// Something went wrong that leaves the file's end unknown: start another.
    pub broken: bool,
}

/// When a frame must be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMode {
    Now,
    /// The caller syncs many at once.
    Later,
}

impl Segment {
    pub fn empty(first: u64) -> Self {
        Self {
            first,
            samples: 0,
            bytes: 0,
            began: i64::MAX,
            newest: i64::MIN,
        }
    }

    /// Looks at every frame.
    pub fn inspect(dir: &Path, numbers: RangeInclusive<u64>) -> io::Result<(Self, End)> {
        let (first, bytes) = (*numbers.start(), load(dir, *numbers.start())?);
        let mut scan = Scan::new(&bytes, numbers);
        let (mut segment, mut next) = (Self::empty(first), first);
        for frame in scan.by_ref() {
            next = frame.seq + 1;
            if frame.is_whole() {
                segment.note(frame.at);
            }
        }
        segment.bytes = length(dir, first)?;
        let unread = segment.bytes.saturating_sub(bytes.len() as u64);
        let end = match scan.tail() {
            Tail::Torn if unread == 0 => End {
                next,
                offset: Some(scan.end() as u64),
            },
            tail => End {
                next: past(next, tail, unread),
                offset: None,
            },
        };
        Ok((segment, end))
    }

    /// Counts a sample.
    pub fn note(&mut self, at: i64) {
        self.samples += 1;
        self.began = self.began.min(at);
        self.newest = self.newest.max(at);
    }
}

impl Writer {
    /// The file's name is on disk before its first frame.
    pub fn create(dir: &Path, first: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let file = file.open(path(dir, first))?;
        File::open(dir)?.sync_all()?;
        Ok(Self {
            file,
            end: 0,
            broken: false,
        })
    }

    /// Goes on at `end`; what lies behind it is cut off.
    pub fn reopen(dir: &Path, first: u64, end: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path(dir, first))?;
        file.set_len(end)?;
        Ok(Self {
            file,
            end,
            broken: false,
        })
    }

    /// A frame that could not be written is cut off again. Whether a file can be
    /// trusted whose sync failed, nobody knows.
    pub fn append(&mut self, frame: &[u8], sync: SyncMode) -> io::Result<()> {
        let written = self.file.write_all_at(frame, self.end);
        let synced = match sync {
            SyncMode::Now if written.is_ok() => self.sync(),
            _ => Ok(()),
        };
        self.broken |= synced.is_err();
        if written.is_err() || synced.is_err() {
            self.broken |= self.file.set_len(self.end).is_err();
        } else {
            self.end += frame.len() as u64;
        }
        written.and(synced)
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The first numbers of the segments in a folder, in order. Other files are let be.
pub(super) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.extend(entry?.file_name().to_str().and_then(parse));
    }
    found.sort_unstable();
    Ok(found)
}

/// The bytes of a segment: none if it is gone or its disk cannot read it, because
/// then its samples are lost and waiting brings nothing back.
pub(super) fn load(dir: &Path, first: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path(dir, first)).and_then(|file| {
        bytes.reserve_exact(usize::try_from(file.metadata()?.len().min(MAX_READ)).unwrap_or(0));
        file.take(MAX_READ).read_to_end(&mut bytes)
    });
    match read {
        Err(error) if !is_lost(&error) => Err(error),
        _ => Ok(bytes),
    }
}

pub(super) fn remove(dir: &Path, first: u64) -> io::Result<()> {
    fs::remove_file(path(dir, first))
}

fn length(dir: &Path, first: u64) -> io::Result<u64> {
    match fs::metadata(path(dir, first)) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if is_lost(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

fn is_lost(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || code == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Past every number that a damaged tail has room for: one that may have been sent
/// is not given again.
fn past(next: u64, tail: Tail, unread: u64) -> u64 {
    let damaged = match tail {
        Tail::Torn => 0,
        Tail::Damaged { bytes } => bytes as u64,
    };
    let room = (damaged + unread).div_ceil(HEADER_BYTES as u64);
    next.saturating_add(room).min(MAX_SEQ + 1)
}

pub(super) fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.{EXTENSION}"))
}

fn parse(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    let well_formed = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let first = digits.parse().ok().filter(|_| well_formed)?;
    (1..=MAX_SEQ).contains(&first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_we_give_are_segments() {
        let name = path(Path::new(""), 42);
        assert_eq!(parse(name.to_str().unwrap()), Some(42));
        for name in [
            "books",
            "42.samples1",
            "00000000000000000000.samples1",
            "99999999999999999999.samples1",
            "+0000000000000000042.samples1",
            "00000000000000000042.samples2",
            "00000000000000000042samples1",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
