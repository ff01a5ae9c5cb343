//! Encodes parcels and commit hints as messages of `svc.ingest.queue.v1`, which docs/queue.md describes.
//!
//! A parcel decodes to what was encoded. A message that does not decode comes from another program, or from a later
//! version with an incompatible addition: it becomes a dead letter, and is never interpreted in part.

use jiff::Timestamp;
use prost::Message;
use svc_proto::{
    queue::v1::{
        Committed as WireCommitted, DeadLetter as WireLetter, Missing, MissingKind,
        Range as WireRange, Watermark as WireMark,
    },
    v1::{Disk, Sample, Vitals},
};
use svc_store::{AgentId, DiskRow, GapKind, GapRow, HostId, Range, SampleRow, Watermark};

use super::{Committed, DeadLetter, Origin, Parcel};
use crate::vitals::{add_optional, optional};

/// Why a message does not decode.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("it is not a message of svc.ingest.queue.v1")]
    Encoding(#[from] prost::DecodeError),
    #[error("an id is not a UUID")]
    Id(#[from] uuid::Error),
    #[error("a number does not fit into 64 bits with a sign")]
    Number(#[from] std::num::TryFromIntError),
    #[error("a sample has no vitals or no valid time")]
    Sample,
    #[error("a gap is of an unknown kind")]
    Kind,
}

pub fn encode(parcel: &Parcel) -> Vec<u8> {
    let range = &parcel.range;
    WireRange {
        agent_id: range.agent_id.0.to_string(),
        host_id: range.host_id.0.to_string(),
        first_seq: range.first_seq.cast_unsigned(),
        last_seq: range.last_seq.cast_unsigned(),
        samples: range.samples.iter().map(sample).collect(),
        missing: range.gaps.iter().map(missing).collect(),
        epoch: parcel.origin.epoch,
        instance_id: parcel.origin.instance.to_string(),
    }
    .encode_to_vec()
}

pub fn decode(bytes: &[u8]) -> Result<Parcel, PayloadError> {
    let wire = WireRange::decode(bytes)?;
    let samples = wire.samples.into_iter().map(sample_row);
    let gaps = wire.missing.into_iter().map(gap_row);
    Ok(Parcel {
        range: Range {
            agent_id: AgentId(wire.agent_id.parse()?),
            host_id: HostId(wire.host_id.parse()?),
            first_seq: wire.first_seq.try_into()?,
            last_seq: wire.last_seq.try_into()?,
            samples: samples.collect::<Result<_, _>>()?,
            gaps: gaps.collect::<Result<_, _>>()?,
        },
        origin: Origin {
            epoch: wire.epoch,
            instance: wire.instance_id.parse()?,
        },
    })
}

pub fn encode_committed(committed: &Committed) -> Vec<u8> {
    let watermarks = committed.watermarks.iter().map(|mark| WireMark {
        agent_id: mark.agent_id.0.to_string(),
        acked_seq: mark.acked_seq.cast_unsigned(),
    });
    let dead_letters = committed.dead_letters.iter().map(|letter| WireLetter {
        agent_id: letter.agent_id.0.to_string(),
        seqs: letter.seqs.iter().map(|seq| seq.cast_unsigned()).collect(),
    });
    WireCommitted {
        watermarks: watermarks.collect(),
        dead_letters: dead_letters.collect(),
    }
    .encode_to_vec()
}

pub fn decode_committed(bytes: &[u8]) -> Result<Committed, PayloadError> {
    let wire = WireCommitted::decode(bytes)?;
    let watermarks = wire.watermarks.into_iter().map(watermark);
    let dead_letters = wire.dead_letters.into_iter().map(dead_letter);
    Ok(Committed {
        watermarks: watermarks.collect::<Result<_, _>>()?,
        dead_letters: dead_letters.collect::<Result<_, _>>()?,
    })
}

fn watermark(mark: WireMark) -> Result<Watermark, PayloadError> {
    Ok(Watermark {
        agent_id: AgentId(mark.agent_id.parse()?),
        acked_seq: mark.acked_seq.try_into()?,
    })
}

fn dead_letter(letter: WireLetter) -> Result<DeadLetter, PayloadError> {
    let seqs = letter.seqs.into_iter().map(i64::try_from);
    Ok(DeadLetter {
        agent_id: AgentId(letter.agent_id.parse()?),
        seqs: seqs.collect::<Result<_, _>>()?,
    })
}

fn sample(row: &SampleRow) -> Sample {
    let mut vitals = Vitals {
        cpu_percent: row.cpu_percent,
        load_1m: row.load[0],
        load_5m: row.load[1],
        load_15m: row.load[2],
        memory_used_bytes: row.memory_used_bytes.cast_unsigned(),
        memory_total_bytes: row.memory_total_bytes.cast_unsigned(),
        swap_used_bytes: row.swap_used_bytes.cast_unsigned(),
        swap_total_bytes: row.swap_total_bytes.cast_unsigned(),
        uptime_seconds: row.uptime_seconds.cast_unsigned(),
        process_count: u32::try_from(row.process_count).unwrap_or(u32::MAX),
        network_rx_bytes: row.network_rx_bytes.cast_unsigned(),
        network_tx_bytes: row.network_tx_bytes.cast_unsigned(),
        disks: row.disks.iter().map(disk).collect(),
        ..Vitals::default()
    };
    if let Some(optional) = &row.optional {
        add_optional(&mut vitals, optional);
    }
    Sample {
        seq: row.seq.cast_unsigned(),
        sampled_at: Some(prost_types::Timestamp {
            seconds: row.sampled_at.as_second(),
            nanos: row.sampled_at.subsec_nanosecond(),
        }),
        vitals: Some(vitals),
    }
}

fn disk(row: &DiskRow) -> Disk {
    Disk {
        mount_point: row.mount_point.clone(),
        device: row.device.clone(),
        fs_type: row.fs_type.clone(),
        total_bytes: row.total_bytes.cast_unsigned(),
        used_bytes: row.used_bytes.cast_unsigned(),
        ..Disk::default()
    }
}

fn sample_row(sample: Sample) -> Result<SampleRow, PayloadError> {
    let vitals = sample.vitals.ok_or(PayloadError::Sample)?;
    let at = sample.sampled_at.ok_or(PayloadError::Sample)?;
    let optional = optional(&vitals)?;
    let disks = vitals.disks.into_iter().map(disk_row);
    Ok(SampleRow {
        seq: sample.seq.try_into()?,
        sampled_at: Timestamp::new(at.seconds, at.nanos).map_err(|_| PayloadError::Sample)?,
        cpu_percent: vitals.cpu_percent,
        load: [vitals.load_1m, vitals.load_5m, vitals.load_15m],
        memory_used_bytes: vitals.memory_used_bytes.try_into()?,
        memory_total_bytes: vitals.memory_total_bytes.try_into()?,
        swap_used_bytes: vitals.swap_used_bytes.try_into()?,
        swap_total_bytes: vitals.swap_total_bytes.try_into()?,
        uptime_seconds: vitals.uptime_seconds.try_into()?,
        process_count: vitals.process_count.into(),
        network_rx_bytes: vitals.network_rx_bytes.try_into()?,
        network_tx_bytes: vitals.network_tx_bytes.try_into()?,
        disks: disks.collect::<Result<_, _>>()?,
        optional,
    })
}

fn disk_row(disk: Disk) -> Result<DiskRow, PayloadError> {
    Ok(DiskRow {
        mount_point: disk.mount_point,
        device: disk.device,
        fs_type: disk.fs_type,
        total_bytes: disk.total_bytes.try_into()?,
        used_bytes: disk.used_bytes.try_into()?,
    })
}

fn missing(gap: &GapRow) -> Missing {
    let kind = match gap.kind {
        GapKind::NotSent => MissingKind::NotSent,
        GapKind::Declared => MissingKind::Declared,
        GapKind::Rejected => MissingKind::Rejected,
        GapKind::DeadLetter => MissingKind::DeadLetter,
    };
    Missing {
        first_seq: gap.first_seq.cast_unsigned(),
        last_seq: gap.last_seq.cast_unsigned(),
        kind: kind.into(),
        reason: gap.reason.clone().into_owned(),
    }
}

fn gap_row(missing: Missing) -> Result<GapRow, PayloadError> {
    let kind = match missing.kind() {
        MissingKind::NotSent => GapKind::NotSent,
        MissingKind::Declared => GapKind::Declared,
        MissingKind::Rejected => GapKind::Rejected,
        MissingKind::DeadLetter => GapKind::DeadLetter,
        MissingKind::Unspecified => return Err(PayloadError::Kind),
    };
    Ok(GapRow {
        first_seq: missing.first_seq.try_into()?,
        last_seq: missing.last_seq.try_into()?,
        kind,
        reason: missing.reason.into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use svc_proto::v1::{BlockDevice, Interface, Pressure};
    use svc_store::OptionalVitals;
    use uuid::Uuid;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        "[a-z/ äß]{0,12}"
    }

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![0..10_i64, Just(i64::MAX)]
    }

    prop_compose! {
        fn a_disk()(mount_point in text(), device in text(), fs_type in text(), total_bytes in number(), used_bytes in number()) -> DiskRow {
            DiskRow { mount_point, device, fs_type, total_bytes, used_bytes }
        }
    }

    prop_compose! {
        /// Optional vitals of two disks, as a report has them.
        fn optional_vitals()(numbers in proptest::collection::vec(proptest::option::of(0..i64::MAX.cast_unsigned()), 10),
                             read_only in any::<Option<bool>>(), names in proptest::collection::hash_set(text(), 0..4),
                             mounts in proptest::collection::vec(text(), 0..3), problem in text()) -> (Vec<DiskRow>, Option<Box<OptionalVitals>>) {
            let disk = |number: usize| Disk {
                mount_point: format!("/{number}"), available_bytes: numbers[number], inodes_used: numbers[number + 2], read_only,
                ..Disk::default()
            };
            let interface = |name: &String| Interface { name: name.clone(), rx_bytes: numbers[4].unwrap_or(0), tx_bytes: 7 };
            let device = |name: &String| BlockDevice { name: name.clone(), busy_ms: numbers[5].unwrap_or(0), ..BlockDevice::default() };
            let vitals = Vitals {
                disks: vec![disk(0), disk(1)],
                interfaces: names.iter().map(interface).collect(),
                block_devices: names.iter().map(device).collect(),
                pressure: numbers[6].map(|_| Pressure { cpu_some_ms: numbers[6], io_full_ms: numbers[7], ..Pressure::default() }),
                cpu_steal_ms: numbers[8], unreadable_mounts: mounts, spool_problem: problem,
                ..Vitals::default()
            };
            let parts = optional(&vitals).unwrap();
            (vitals.disks.into_iter().map(|disk| disk_row(disk).unwrap()).collect(), parts)
        }
    }

    prop_compose! {
        fn a_sample()(seq in number(), at in 0..4_000_000_000_i64, nanos in 0..1_000_000_000_i32, cpu_percent in 0.0..100.0,
                      load in any::<[f32; 3]>(), n in proptest::array::uniform7(number()), processes in any::<u32>(),
                      (disks, optional) in prop_oneof![
                          proptest::collection::vec(a_disk(), 0..3).prop_map(|disks| (disks, None)), optional_vitals()]) -> SampleRow {
            SampleRow {
                seq, sampled_at: Timestamp::new(at, nanos).unwrap(), cpu_percent,
                load: load.map(|load| if load.is_finite() { f64::from(load) } else { 0.0 }),
                memory_used_bytes: n[0], memory_total_bytes: n[1], swap_used_bytes: n[2], swap_total_bytes: n[3],
                uptime_seconds: n[4], process_count: processes.into(), network_rx_bytes: n[5], network_tx_bytes: n[6], disks, optional,
            }
        }
    }

    prop_compose! {
        fn a_gap()(first_seq in number(), last_seq in number(), kind in 0..4, reason in text()) -> GapRow {
            let kinds = [GapKind::NotSent, GapKind::Declared, GapKind::Rejected, GapKind::DeadLetter];
            GapRow { first_seq, last_seq, kind: kinds[kind as usize], reason: reason.into() }
        }
    }

    prop_compose! {
        fn a_parcel()(ids in any::<[u128; 3]>(), first_seq in number(), last_seq in number(), epoch in any::<i64>(),
                      samples in proptest::collection::vec(a_sample(), 0..4), gaps in proptest::collection::vec(a_gap(), 0..4)) -> Parcel {
            let [agent, host, instance] = ids.map(Uuid::from_u128);
            let range = Range { agent_id: AgentId(agent), host_id: HostId(host), first_seq, last_seq, samples, gaps };
            Parcel { range, origin: Origin { epoch, instance } }
        }
    }

    proptest! {
        #[test]
        fn a_parcel_decodes_to_what_was_encoded(parcel in a_parcel()) {
            prop_assert_eq!(decode(&encode(&parcel)).unwrap(), parcel);
        }

        #[test]
        fn a_commit_hint_decodes_to_what_was_encoded(marks in proptest::collection::vec((any::<u128>(), number()), 0..4),
                                      seqs in proptest::collection::vec(number(), 0..4)) {
            let agent = |id| AgentId(Uuid::from_u128(id));
            let watermarks = marks.iter().map(|(id, acked_seq)| Watermark { agent_id: agent(*id), acked_seq: *acked_seq });
            let dead_letters = marks.iter().map(|(id, _)| DeadLetter { agent_id: agent(*id), seqs: seqs.clone() });
            let committed = Committed { watermarks: watermarks.collect(), dead_letters: dead_letters.collect() };
            prop_assert_eq!(decode_committed(&encode_committed(&committed)).unwrap(), committed);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(decode(&bytes));
            drop(decode_committed(&bytes));
        }
    }

    #[test]
    fn a_gap_of_an_unknown_kind_is_refused() {
        let range = WireRange {
            agent_id: Uuid::nil().to_string(),
            host_id: Uuid::nil().to_string(),
            instance_id: Uuid::nil().to_string(),
            missing: vec![Missing::default()],
            ..WireRange::default()
        };
        let decoded = decode(&range.encode_to_vec());
        assert!(matches!(decoded, Err(PayloadError::Kind)), "{decoded:?}");
    }
}
