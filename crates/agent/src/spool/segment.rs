//! A segment: one file of frames, named after the first number that it may contain.
//!
//! A segment owns the numbers from its name to the name of the next segment. Frames are only
//! appended, and only to the newest segment; segments are only deleted as a whole. So the
//! usual write is a single small one, and no data is ever written twice.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    ops::RangeInclusive,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use svc_proto::contract::limits::MAX_SEQ;

use super::frame::{HEADER_BYTES, MAX_BODY_BYTES, Scan, Tail};

/// About two thousand samples of a machine with one disk. The agent writes no longer file,
/// and reads a longer one only up to this size and one frame.
pub(super) const MAX_BYTES: u64 = 256 * 1024;
const MAX_READ: u64 = MAX_BYTES + (HEADER_BYTES + MAX_BODY_BYTES) as u64;
/// The digit is the version of the format.
const EXTENSION: &str = "samples1";

/// What memory holds of a segment. Its frames stay on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u64,
    /// The number of intact frames.
    pub samples: u64,
    pub bytes: u64,
    /// The earliest sample time, in nanoseconds since 1970.
    pub began: i64,
    /// The latest sample time.
    pub newest: i64,
}

/// The end of the newest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// One above the highest number that the segment can have contained.
    pub next: u64,
    /// Where to continue writing; `None` if a damaged rest must not be overwritten.
    pub offset: Option<u64>,
}

/// The open end of the newest segment.
#[derive(Debug)]
pub(super) struct Writer {
    file: File,
    end: u64,
    /// An error left the end of the file unknown: the next frame needs a new segment.
    pub broken: bool,
}

/// When a frame is synced to disk.
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

    /// Reads every frame.
    pub fn inspect(dir: &Path, numbers: RangeInclusive<u64>) -> io::Result<(Self, End)> {
        let (first, bytes) = (*numbers.start(), load(dir, *numbers.start())?);
        let mut scan = Scan::new(&bytes, numbers);
        let (mut segment, mut next) = (Self::empty(first), first);
        for frame in scan.by_ref() {
            next = frame.seq + 1;
            if frame.is_whole() {
                segment.count_sample(frame.at);
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
                next: skip_damaged(next, tail, unread),
                offset: None,
            },
        };
        Ok((segment, end))
    }

    pub fn count_sample(&mut self, at: i64) {
        self.samples += 1;
        self.began = self.began.min(at);
        self.newest = self.newest.max(at);
    }
}

impl Writer {
    /// The directory is synced first, so that the file's name is on disk before its first
    /// frame.
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

    /// Continues at `end` and cuts off the rest.
    pub fn reopen(dir: &Path, first: u64, end: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path(dir, first))?;
        file.set_len(end)?;
        Ok(Self {
            file,
            end,
            broken: false,
        })
    }

    /// Appends a frame, or leaves the file as it was. After a failed sync the content of the
    /// file is unknown (Linux may drop the dirty pages and report the next sync as
    /// successful), so the segment is not used again.
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

/// The first numbers of the segments in a folder, in order. Other files are ignored.
pub(super) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.extend(entry?.file_name().to_str().and_then(parse));
    }
    found.sort_unstable();
    Ok(found)
}

/// The bytes of a segment. A missing file and an unreadable disk block count as an empty
/// segment: its samples are lost, and a retry would not bring them back.
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

/// The first number that a damaged tail cannot have contained. The tail may have been frames
/// that were sent, so as many numbers are skipped as the shortest frames would need.
fn skip_damaged(next: u64, tail: Tail, unread: u64) -> u64 {
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
    fn only_file_names_of_the_exact_form_are_segments() {
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
