//! A frame: one sample as bytes in a segment. And [`Scan`], which finds frames among bytes
//! that may be damaged.
//!
//! ```text
//! offset  0       4       12      20            24              28
//!         length  number  time    body checksum header checksum body: the encoded vitals
//! ```
//!
//! The header has a checksum of its own. So a damaged body costs one frame, because its
//! length is still known; and after a damaged header, the scan finds the next frame by trying
//! every offset for a header with a valid checksum. A length is trusted only if that checksum
//! is valid, and never beyond the end of the bytes.

use std::ops::RangeInclusive;

use prost::Message;
use svc_proto::v1;

use super::checksum::checksum;
use crate::stamp::from_nanos;

pub(super) const HEADER_BYTES: usize = 28;
/// More than the largest vitals that the service accepts: 64 disks of three texts each.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;

/// A frame with a valid header and a complete body, which may still be damaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub seq: u64,
    /// Nanoseconds since 1970.
    pub at: i64,
    body: &'a [u8],
    sum: u32,
}

/// What follows the last frame of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing, or an unfinished write. Its `put` did not return, so its number was
    /// never sent.
    Torn,
    /// Bytes that were frames once: as many as they have room for.
    Damaged { bytes: usize },
}

/// Iterates over the frames in `bytes` whose numbers are ascending and within `numbers`.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    numbers: RangeInclusive<u64>,
    offset: usize,
    end: usize,
    torn: bool,
}

struct Header {
    length: usize,
    seq: u64,
    at: i64,
    sum: u32,
}

impl Frame<'_> {
    pub fn is_whole(&self) -> bool {
        checksum(self.body) == self.sum
    }

    /// `None`: the body is damaged.
    pub fn sample(&self) -> Option<v1::Sample> {
        let vitals = self.is_whole().then(|| v1::Vitals::decode(self.body))?;
        Some(v1::Sample {
            seq: self.seq,
            sampled_at: Some(from_nanos(self.at).into()),
            vitals: Some(vitals.ok()?),
        })
    }
}

/// The bytes of a frame; `None`: the body, encoded vitals, is too long.
pub(super) fn encode(seq: u64, at: i64, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok()?;
    if body.len() > MAX_BODY_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(length.to_le_bytes());
    bytes.extend(seq.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend(checksum(body).to_le_bytes());
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes.extend(body);
    Some(bytes)
}

impl<'a> Scan<'a> {
    pub fn new(bytes: &'a [u8], numbers: RangeInclusive<u64>) -> Self {
        Self {
            bytes,
            numbers,
            offset: 0,
            end: 0,
            torn: false,
        }
    }

    /// The end of the last frame.
    pub fn end(&self) -> usize {
        self.end
    }

    /// What follows the last frame; valid once the iterator is exhausted.
    ///
    /// A tail counts as torn if a header promises more bytes than there are, if it is
    /// shorter than a header, or if it is all zeros: file systems extend a file before they
    /// write its data.
    pub fn tail(&self) -> Tail {
        let rest = &self.bytes[self.end..];
        if self.torn || rest.len() < HEADER_BYTES || rest.iter().all(|byte| *byte == 0) {
            return Tail::Torn;
        }
        Tail::Damaged { bytes: rest.len() }
    }

    /// The header at the current offset, if there is a valid one.
    fn header(&self) -> Option<Header> {
        let bytes = self
            .bytes
            .get(self.offset..)?
            .first_chunk::<HEADER_BYTES>()?;
        let (fields, sum) = bytes.split_last_chunk::<4>()?;
        if checksum(fields) != u32::from_le_bytes(*sum) {
            return None;
        }
        let (length, fields) = fields.split_first_chunk()?;
        let (seq, fields) = fields.split_first_chunk()?;
        let (at, fields) = fields.split_first_chunk()?;
        let header = Header {
            length: usize::try_from(u32::from_le_bytes(*length)).ok()?,
            seq: u64::from_le_bytes(*seq),
            at: i64::from_le_bytes(*at),
            sum: u32::from_le_bytes(*fields.first_chunk()?),
        };
        (header.length <= MAX_BODY_BYTES && self.numbers.contains(&header.seq)).then_some(header)
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        while self.offset + HEADER_BYTES <= self.bytes.len() {
            let Some(header) = self.header() else {
                self.offset += 1;
                continue;
            };
            let start = self.offset + HEADER_BYTES;
            let Some(body) = self.bytes.get(start..start + header.length) else {
                self.torn = true;
                break;
            };
            self.offset = start + header.length;
            self.end = self.offset;
            self.numbers = header.seq.saturating_add(1)..=*self.numbers.end();
            return Some(Frame {
                seq: header.seq,
                at: header.at,
                body,
                sum: header.sum,
            });
        }
        self.offset = self.bytes.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(seq: u64) -> Vec<u8> {
        let vitals = v1::Vitals {
            uptime_seconds: seq,
            process_count: 7,
            ..Default::default()
        };
        encode(seq, 5, &vitals.encode_to_vec()).unwrap()
    }

    fn frames(last: u64) -> Vec<u8> {
        (1..=last).flat_map(frame).collect()
    }

    fn whole(bytes: &[u8]) -> Vec<u64> {
        let samples = Scan::new(bytes, 1..=100).filter_map(|frame| frame.sample());
        samples
            .inspect(|sample| {
                assert_eq!(sample.vitals.as_ref().unwrap().uptime_seconds, sample.seq);
            })
            .map(|sample| sample.seq)
            .collect()
    }

    fn tail(bytes: &[u8]) -> (usize, Tail) {
        let mut scan = Scan::new(bytes, 1..=100);
        scan.by_ref().for_each(drop);
        (scan.end(), scan.tail())
    }

    #[test]
    fn a_write_that_is_cut_off_anywhere_is_a_torn_tail() {
        let (good, next) = (frames(2), frame(3));
        for cut in 0..next.len() {
            let bytes = [&good, &next[..cut]].concat();
            assert_eq!(whole(&bytes), [1, 2]);
            assert_eq!(tail(&bytes), (good.len(), Tail::Torn), "cut at {cut}");
            let zeros = [&good[..], &vec![0; cut]].concat();
            assert_eq!(tail(&zeros), (good.len(), Tail::Torn), "{cut} zeros");
        }
    }

    #[test]
    fn a_damaged_header_of_the_last_frame_is_not_a_torn_write() {
        let mut bytes = frames(2);
        let second = bytes.len() / 2;
        bytes[second] ^= 0x80;
        assert_eq!(tail(&bytes), (second, Tail::Damaged { bytes: second }));
    }

    #[test]
    fn numbers_out_of_order_or_out_of_range_are_not_frames() {
        let bytes = [frame(5), frame(4), frame(5), frame(101), frame(6)].concat();
        assert_eq!(whole(&bytes), [5, 6]);
    }
}
