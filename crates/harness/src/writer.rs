//! Samples written as the service's consumer writes them, without the service: for measurements of the
//! database alone.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use svc_store::{
    AgentId, DatabaseUrl, DiskRow, HostId, OptionalVitals, PartKind, PartRow, SampleRow, Store,
    StoreOptions,
};

const AGENTS: &str =
    "SELECT a.id, a.host_id, s.acked_seq FROM agents a JOIN agent_state s ON s.agent_id = a.id
                       WHERE a.status = 'active' ORDER BY a.id";
/// Mount points and devices of the first disks of a host.
const DISKS: [(&str, &str); 4] = [
    ("/", "/dev/nvme0n1p2"),
    ("/var/lib/postgresql", "/dev/mapper/data-postgresql"),
    ("/home", "/dev/nvme0n1p3"),
    ("/var/log", "/dev/mapper/data-log"),
];

/// Writes for all active agents of a database, over one connection.
#[derive(Debug)]
pub struct SampleWriter {
    store: Store,
    agents: Vec<Agent>,
    disks: usize,
    all_vitals: bool,
}

#[derive(Clone, Copy, Debug)]
struct Agent {
    id: AgentId,
    host: HostId,
    acked: i64,
}

impl SampleWriter {
    /// `disks`: how many disks a sample names, at most four.
    pub async fn open(url: &str, disks: usize) -> anyhow::Result<SampleWriter> {
        let rows = svc_sandbox::query(url, AGENTS).await?;
        let agent = |line| Agent::parse(line).with_context(|| format!("not an agent: {line}"));
        let agents = rows
            .lines()
            .map(agent)
            .collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(!agents.is_empty(), "there is no agent to write for");
        let options = StoreOptions::for_commands();
        let store = Store::new(DatabaseUrl::parse(url)?, options)?;
        Ok(SampleWriter {
            store,
            agents,
            disks,
            all_vitals: false,
        })
    }

    /// From now on samples also contain all optional vitals of a machine with one network interface and one block device.
    pub fn write_all_vitals(&mut self) {
        self.all_vitals = true;
    }

    /// How many agents there are.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    pub fn hosts(&self) -> Vec<HostId> {
        self.agents.iter().map(|agent| agent.host).collect()
    }

    /// Makes room for samples of this age, where history needs partitions.
    pub async fn partitions_create(&self, age: Duration) -> anyhow::Result<()> {
        self.store.partitions_create(age).await?;
        Ok(())
    }

    /// Stores one sample of each time for each of these agents, in one transaction. Fails if not all of them
    /// are stored.
    pub async fn append(&mut self, which: Range<usize>, times: &[Timestamp]) -> anyhow::Result<()> {
        let ranges: Vec<svc_store::Range> = which
            .clone()
            .map(|index| self.range(index, times))
            .collect();
        let watermarks = self.store.samples_append(&ranges).await?;
        let acked: HashMap<AgentId, i64> = watermarks
            .iter()
            .map(|one| (one.agent_id, one.acked_seq))
            .collect();
        let moved = ranges
            .iter()
            .filter(|range| acked.get(&range.agent_id) == Some(&range.last_seq));
        ensure!(moved.count() == ranges.len(), "not all samples were stored");
        for agent in &mut self.agents[which] {
            agent.acked += times.len() as i64;
        }
        Ok(())
    }

    fn range(&self, index: usize, times: &[Timestamp]) -> svc_store::Range {
        let agent = self.agents[index];
        let numbered = (agent.acked + 1..).zip(times);
        let sample = |(seq, at): (i64, &Timestamp)| {
            let mut sample = sample(index as u64, seq, *at, self.disks);
            if self.all_vitals {
                sample.optional = Some(Box::new(optional_vitals(index as u64, &sample)));
            }
            sample
        };
        svc_store::Range {
            agent_id: agent.id,
            host_id: agent.host,
            first_seq: agent.acked + 1,
            last_seq: agent.acked + times.len() as i64,
            samples: numbered.map(sample).collect(),
            gaps: vec![],
        }
    }
}

impl Agent {
    fn parse(line: &str) -> Option<Agent> {
        let mut columns = line.split('|');
        Some(Agent {
            id: AgentId(columns.next()?.parse().ok()?),
            host: HostId(columns.next()?.parse().ok()?),
            acked: columns.next()?.parse().ok()?,
        })
    }
}

/// Values that change from sample to sample as a machine's do: some by chance, some slowly, counters steadily,
/// totals never. Constant values would compress too well, random ones too badly.
fn sample(host: u64, seq: i64, sampled_at: Timestamp, disks: usize) -> SampleRow {
    let chance = |what: u64, every: i64| chance(host, what, seq / every);
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    let pages = |most: f64, what: u64| (chance(what, 1) * most) as i64 * 4096;
    let disk = |(number, (mount_point, device)): (usize, &(&str, &str))| DiskRow {
        mount_point: (*mount_point).into(),
        device: (*device).into(),
        fs_type: "ext4".into(),
        total_bytes: 500 << 30,
        used_bytes: (120 << 30) + seq * 8192 * number as i64 + pages(20.0, 10 + number as u64),
    };
    SampleRow {
        seq,
        sampled_at,
        cpu_percent: 4.0 + (chance(1, 1) * 240.0).round() / 12.0,
        load: [
            hundredths(0.2 + chance(2, 1)),
            hundredths(0.3 + chance(3, 5) / 2.0),
            hundredths(0.4 + chance(4, 15) / 4.0),
        ],
        memory_used_bytes: (3 << 30) + pages(5_000.0, 5),
        memory_total_bytes: 8 << 30,
        swap_used_bytes: 1 << 20,
        swap_total_bytes: 2 << 30,
        uptime_seconds: 86_400 + seq * 30,
        process_count: 240 + (chance(6, 2) * 8.0) as i64,
        network_rx_bytes: seq * 90_000 + (chance(7, 1) * 80_000.0) as i64,
        network_tx_bytes: seq * 40_000 + (chance(8, 1) * 30_000.0) as i64,
        disks: DISKS.iter().take(disks).enumerate().map(disk).collect(),
        optional: None,
    }
}

/// As [`sample`]: a machine that writes a little all the time, reads now and then, and seldom waits for memory.
fn optional_vitals(host: u64, sample: &SampleRow) -> OptionalVitals {
    let seq = sample.seq;
    // Grows by up to `most` with every step of `every` samples.
    let counter = |what: u64, every: i64, most: i64| {
        let step = seq / every;
        step * most + (chance(host, what, step) * most as f64) as i64
    };
    let part = |kind, name: &Arc<str>, value| PartRow {
        kind,
        name: name.clone(),
        value,
    };
    let mut parts = Vec::new();
    for (number, disk) in (0..).zip(&sample.disks) {
        let (mount_point, inodes) = (disk.mount_point.as_str().into(), counter(20 + number, 4, 3));
        parts.extend([
            part(
                PartKind::DiskAvailable,
                &mount_point,
                (475 << 30) - disk.used_bytes,
            ),
            part(PartKind::DiskInodesUsed, &mount_point, 400_000 + inodes),
            part(PartKind::DiskInodesFree, &mount_point, 32_000_000 - inodes),
            part(PartKind::DiskReadOnly, &mount_point, 0),
        ]);
    }
    let (interface, device, nothing) = ("eth0".into(), "nvme0n1".into(), "".into());
    let (reads, writes) = (counter(30, 10, 40), counter(31, 1, 300));
    parts.extend([
        part(PartKind::InterfaceRx, &interface, sample.network_rx_bytes),
        part(PartKind::InterfaceTx, &interface, sample.network_tx_bytes),
        part(PartKind::DeviceReads, &device, reads),
        part(PartKind::DeviceReadBytes, &device, reads * 16_384),
        part(PartKind::DeviceWrites, &device, writes),
        part(PartKind::DeviceWrittenBytes, &device, writes * 12_288),
        part(PartKind::DeviceBusy, &device, counter(32, 1, 400)),
        part(PartKind::PressureCpuSome, &nothing, counter(33, 1, 200)),
        part(PartKind::PressureMemorySome, &nothing, counter(34, 100, 5)),
        part(PartKind::PressureMemoryFull, &nothing, counter(35, 100, 4)),
        part(PartKind::PressureIoSome, &nothing, counter(36, 1, 90)),
        part(PartKind::PressureIoFull, &nothing, counter(37, 1, 70)),
        part(PartKind::CpuSteal, &nothing, counter(38, 2, 20)),
    ]);
    OptionalVitals {
        parts,
        ..OptionalVitals::default()
    }
}

/// A number from 0 to 1 that looks random and is the same in every run (SplitMix64).
fn chance(host: u64, what: u64, step: i64) -> f64 {
    let mut z = (host << 40) ^ (what << 32) ^ step.unsigned_abs();
    for factor in [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
    ] {
        z = (z ^ (z >> 30)).wrapping_mul(factor);
    }
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use svc_store::Measure;

    use super::*;

    /// The rollups of counters, and the size of history, depend on it.
    #[test]
    fn counters_grow_and_totals_stay() {
        let now = Timestamp::now();
        let samples = (1..500).map(|seq| sample(7, seq, now, 2));
        let samples: Vec<SampleRow> = samples.collect();
        for pair in samples.windows(2) {
            assert!(pair[0].network_rx_bytes < pair[1].network_rx_bytes);
            assert!(pair[0].network_tx_bytes < pair[1].network_tx_bytes);
            assert_eq!(pair[0].memory_total_bytes, pair[1].memory_total_bytes);
        }
        assert!(samples.iter().all(|one| one.cpu_percent <= 100.0));
    }

    #[test]
    fn all_vitals_are_every_kind_of_part_and_counters_do_not_fall() {
        let parts = |seq| optional_vitals(7, &sample(7, seq, Timestamp::now(), 2)).parts;
        let disks = [PartKind::DiskUsed, PartKind::DiskTotal];
        let missing = PartKind::ALL.iter().filter(|kind| {
            !disks.contains(kind) && !parts(1).iter().any(|part| part.kind == **kind)
        });
        assert_eq!(missing.count(), 0);
        for seq in 1..500 {
            for (before, after) in parts(seq).iter().zip(&parts(seq + 1)) {
                let falls = after.value < before.value;
                assert!(!falls || before.kind.measure() == Measure::Gauge);
            }
        }
    }
}
