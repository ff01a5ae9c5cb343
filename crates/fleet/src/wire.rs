//! What goes over a stream: gRPC's five-byte frames, and reports built from prepared bytes.
//!
//! A report's vitals are encoded once in a process: a message field and a bytes field look the same
//! on the wire, so a report is assembled around them without building or cloning their strings.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost_types::Timestamp;
use svc_proto::v1::{Disk, Vitals};

const PREFIX: usize = 5;
/// The service's largest answer is a Credential; anything near this is not it.
const MOST: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a compressed or oversized message")]
    Frame,
    #[error("not a message of the contract")]
    Message,
}

/// A message as gRPC sends it: not compressed, and its length.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    // It fails only where the buffer is too small, and a `BytesMut` grows.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Messages out of pieces that end anywhere. Whole messages leave nothing behind to keep.
#[derive(Debug, Default)]
pub struct Frames {
    rest: BytesMut,
}

impl Frames {
    pub fn push(&mut self, piece: &Bytes) {
        self.rest.extend_from_slice(piece);
    }

    pub fn pop<M: Message + Default>(&mut self) -> Result<Option<M>, WireError> {
        let Some((head, body)) = self.rest.split_at_checked(PREFIX) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if head[0] != 0 || length > MOST {
            return Err(WireError::Frame);
        }
        let Some(body) = body.get(..length) else {
            return Ok(None);
        };
        let message = M::decode(body).map_err(|_| WireError::Message)?;
        self.rest.advance(PREFIX + length);
        if self.rest.is_empty() {
            self.rest = BytesMut::new();
        }
        Ok(Some(message))
    }
}

/// One sample's number, and when it was taken in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub seq: u64,
    pub at_ms: i64,
}

/// A framed report of `samples`, all with the vitals that were prepared.
pub fn report(vitals: &Bytes, samples: impl Iterator<Item = Taken>) -> Bytes {
    let samples = samples.map(|sample| PreparedSample {
        seq: sample.seq,
        sampled_at: Some(timestamp(sample.at_ms)),
        vitals: vitals.clone(),
    });
    framed(&PreparedRequest {
        report: Some(PreparedReport {
            samples: samples.collect(),
        }),
    })
}

/// The vitals of a machine like many, encoded: a report of one sample is about 300 bytes.
pub fn vitals() -> Bytes {
    let disk = |mount_point: &str, device: &str, used_bytes| Disk {
        mount_point: mount_point.into(),
        device: device.into(),
        fs_type: "ext4".into(),
        total_bytes: 500 << 30,
        used_bytes,
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

/// `HeartbeatRequest`, `Report` and `Sample` of the contract, with vitals that are bytes already.
#[derive(Message)]
struct PreparedRequest {
    #[prost(message, optional, tag = "2")]
    report: Option<PreparedReport>,
}

#[derive(Message)]
struct PreparedReport {
    #[prost(message, repeated, tag = "1")]
    samples: Vec<PreparedSample>,
}

#[derive(Message)]
struct PreparedSample {
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
    use svc_proto::v1::{HeartbeatRequest, heartbeat_request::Message as Say};

    use super::*;

    fn decoded(bytes: &Bytes) -> HeartbeatRequest {
        let mut frames = Frames::default();
        frames.push(bytes);
        frames.pop().unwrap().unwrap()
    }

    #[test]
    fn a_report_of_one_sample_costs_about_300_bytes() {
        let one = [Taken {
            seq: 1_000,
            at_ms: 1_790_000_000_123,
        }];
        let bytes = report(&vitals(), one.into_iter());
        assert!((280..=340).contains(&bytes.len()), "{} bytes", bytes.len());
    }

    proptest! {
        #[test]
        fn a_prepared_report_is_a_report_of_the_contract(
            numbers in prop::collection::vec((1_u64..1 << 40, 0_i64..4_000_000_000_000), 0..20)
        ) {
            let taken = numbers.iter().map(|(seq, at_ms)| Taken { seq: *seq, at_ms: *at_ms });
            let Some(Say::Report(said)) = decoded(&report(&vitals(), taken)).message else {
                return Err(TestCaseError::fail("not a report"));
            };
            let expected = Vitals::decode(vitals()).unwrap();
            prop_assert_eq!(said.samples.len(), numbers.len());
            for (sample, (seq, at_ms)) in said.samples.iter().zip(numbers) {
                prop_assert_eq!(sample.seq, seq);
                prop_assert_eq!(sample.sampled_at.as_ref().map(millis), Some(at_ms));
                prop_assert_eq!(sample.vitals.as_ref(), Some(&expected));
            }
        }

        #[test]
        fn pieces_may_end_anywhere(cut in 0_usize..700) {
            let one = |seq| report(&vitals(), [Taken { seq, at_ms: 1 }].into_iter());
            let both = [one(1), one(2)].concat();
            let (first, second) = both.split_at(cut.min(both.len()));
            let mut frames = Frames::default();
            let mut count = 0;
            for piece in [first, second] {
                frames.push(&Bytes::copy_from_slice(piece));
                while frames.pop::<HeartbeatRequest>().unwrap().is_some() {
                    count += 1;
                }
            }
            prop_assert_eq!(count, 2);
        }
    }
}
