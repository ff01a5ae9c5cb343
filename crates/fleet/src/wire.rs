//! Encoding and decoding of gRPC messages, with reports built around vitals that are encoded once.
//!
//! All virtual agents report the same vitals. In protobuf a message field and a bytes field have the same
//! encoding, so [`report`] puts the encoded vitals into its samples as bytes: a report costs the fleet no
//! strings and no encoding of vitals, and the CPU of the machine goes to the service under test.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderValue;
use prost::Message;
use prost_types::Timestamp;
use svc_harness::Taken;
use svc_proto::{
    contract::limits::MAX_RESPONSE_BYTES,
    v1::{Disk, Vitals},
};

/// A gRPC frame: a compression flag, four bytes of length, the message.
const PREFIX: usize = 5;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a compressed or oversized message")]
    Frame,
    #[error("a malformed message")]
    Message,
}

/// An `authorization` header, marked as sensitive so that HTTP/2 keeps it out of its header tables.
pub fn bearer(text: &str) -> Option<HeaderValue> {
    let mut bearer = HeaderValue::try_from(text).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

/// A message as a gRPC frame, not compressed.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    // Encoding fails only if the buffer is too small, and a `BytesMut` grows.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Assembles messages from chunks that may end anywhere. It frees its buffer when no part of a message
/// remains, so an idle agent holds none.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    pub fn push(&mut self, chunk: &Bytes) {
        self.buffer.extend_from_slice(chunk);
    }

    pub fn pop<M: Message + Default>(&mut self) -> Result<Option<M>, WireError> {
        let Some((head, body)) = self.buffer.split_at_checked(PREFIX) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if head[0] != 0 || length > MAX_RESPONSE_BYTES {
            return Err(WireError::Frame);
        }
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let message = M::decode(body).map_err(|_| WireError::Message)?;
        self.buffer.advance(PREFIX + length);
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
        Ok(Some(message))
    }
}

/// A framed report of `samples`, all with the same encoded vitals.
pub fn report(vitals: &Bytes, samples: impl Iterator<Item = Taken>) -> Bytes {
    let samples = samples.map(|sample| EncodedSample {
        seq: sample.seq,
        sampled_at: Some(timestamp(sample.at_ms)),
        vitals: vitals.clone(),
    });
    framed(&EncodedRequest {
        report: Some(EncodedReport {
            samples: samples.collect(),
        }),
    })
}

/// The encoded vitals of a typical machine: a report of one sample has about 300 bytes.
pub fn vitals() -> Bytes {
    let disk = |mount_point: &str, device: &str, used_bytes| Disk {
        mount_point: mount_point.into(),
        device: device.into(),
        fs_type: "ext4".into(),
        total_bytes: 500 << 30,
        used_bytes,
        ..Disk::default()
    };
    let vitals = Vitals {
        cpu_percent: 12.5,
        load_1m: 0.42,
        load_5m: 0.37,
        load_15m: 0.3,
        memory_used_bytes: 3 << 30,
        memory_total_bytes: 8 << 30,
        swap_used_bytes: 1 << 20,
        swap_total_bytes: 2 << 30,
        uptime_seconds: 1_234_567,
        process_count: 312,
        network_rx_bytes: 98_765_432_109,
        network_tx_bytes: 12_345_678_901,
        disks: vec![
            disk("/", "/dev/nvme0n1p2", 120 << 30),
            disk(
                "/var/lib/postgresql",
                "/dev/mapper/data-postgresql",
                300 << 30,
            ),
            disk("/home", "/dev/nvme0n1p3", 80 << 30),
            disk("/var/log", "/dev/mapper/data-log", 9 << 30),
        ],
        ..Vitals::default()
    };
    vitals.encode_to_vec().into()
}

pub fn timestamp(at_ms: i64) -> Timestamp {
    Timestamp {
        seconds: at_ms.div_euclid(1000),
        nanos: at_ms.rem_euclid(1000) as i32 * 1_000_000,
    }
}

pub fn millis(at: &Timestamp) -> i64 {
    at.seconds * 1000 + i64::from(at.nanos / 1_000_000)
}

/// `HeartbeatRequest`, `Report` and `Sample` of the contract, with vitals as encoded bytes.
#[derive(Message)]
struct EncodedRequest {
    #[prost(message, optional, tag = "2")]
    report: Option<EncodedReport>,
}

#[derive(Message)]
struct EncodedReport {
    #[prost(message, repeated, tag = "1")]
    samples: Vec<EncodedSample>,
}

#[derive(Message)]
struct EncodedSample {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(message, optional, tag = "2")]
    sampled_at: Option<Timestamp>,
    #[prost(bytes = "bytes", tag = "3")]
    vitals: Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use svc_proto::{ClientMessage, v1::HeartbeatRequest};

    use super::*;

    fn decoded(bytes: &Bytes) -> HeartbeatRequest {
        let mut frames = Frames::default();
        frames.push(bytes);
        frames.pop().unwrap().unwrap()
    }

    #[test]
    fn a_report_of_one_sample_has_about_300_bytes() {
        let one = [Taken {
            seq: 1_000,
            at_ms: 1_790_000_000_123,
        }];
        let bytes = report(&vitals(), one.into_iter());
        assert!((280..=340).contains(&bytes.len()), "{} bytes", bytes.len());
    }

    proptest! {
        #[test]
        fn a_report_around_encoded_vitals_decodes_as_the_contract_s_report(
            numbers in prop::collection::vec((1_u64..1 << 40, 0_i64..4_000_000_000_000), 0..20)
        ) {
            let taken = numbers.iter().map(|(seq, at_ms)| Taken { seq: *seq, at_ms: *at_ms });
            let Some(ClientMessage::Report(decoded)) = decoded(&report(&vitals(), taken)).message else {
                return Err(TestCaseError::fail("not a report"));
            };
            let expected = Vitals::decode(vitals()).unwrap();
            prop_assert_eq!(decoded.samples.len(), numbers.len());
            for (sample, (seq, at_ms)) in decoded.samples.iter().zip(numbers) {
                prop_assert_eq!(sample.seq, seq);
                prop_assert_eq!(sample.sampled_at.as_ref().map(millis), Some(at_ms));
                prop_assert_eq!(sample.vitals.as_ref(), Some(&expected));
            }
        }

        #[test]
        fn chunks_may_end_anywhere(cut in 0_usize..700) {
            let one = |seq| report(&vitals(), [Taken { seq, at_ms: 1 }].into_iter());
            let both = [one(1), one(2)].concat();
            let (first, second) = both.split_at(cut.min(both.len()));
            let mut frames = Frames::default();
            let mut count = 0;
            for chunk in [first, second] {
                frames.push(&Bytes::copy_from_slice(chunk));
                while frames.pop::<HeartbeatRequest>().unwrap().is_some() {
                    count += 1;
                }
            }
            prop_assert_eq!(count, 2);
        }
    }
}
