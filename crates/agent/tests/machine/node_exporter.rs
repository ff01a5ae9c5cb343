//! The vitals agree with what Prometheus' node exporter reads on the same machine.

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use svc_agent::vitals::Sampler;
use svc_proto::v1::Vitals;

const MIB: f64 = 1024.0 * 1024.0;
/// A tolerance for other tests and builds that run at the same time.
const TRIES: usize = 10;
/// Debian's name for it, and everybody else's.
const PROGRAMS: [&str; 2] = ["prometheus-node-exporter", "node_exporter"];
const COLLECTORS: [&str; 8] = [
    "cpu",
    "diskstats",
    "filesystem",
    "loadavg",
    "meminfo",
    "netdev",
    "pressure",
    "time",
];

/// A running exporter.
struct Exporter {
    process: Child,
    address: SocketAddr,
}

impl Exporter {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
        let start = |program: &&str| {
            let mut command = Command::new(program);
            command.arg(format!("--web.listen-address={address}"));
            command.arg("--collector.disable-defaults");
            command.args(COLLECTORS.map(|name| format!("--collector.{name}")));
            command.arg("--collector.filesystem.mount-points-exclude=^$");
            command.arg("--collector.diskstats.device-exclude=^$");
            command.stderr(Stdio::null()).spawn().ok()
        };
        match PROGRAMS.iter().find_map(start) {
            Some(process) => Self { process, address },
            None => panic!("the node exporter is missing: run `scripts/deps`"),
        }
    }

    /// All metrics, as text, once the exporter answers.
    fn metrics(&self) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match self.get() {
                Ok(text) if text.contains("node_load1 ") => return text,
                _ if Instant::now() > end => panic!("the exporter does not answer"),
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn get(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The sum of a metric over the lines with this label.
fn value(metrics: &str, name: &str, label: &str) -> Option<f64> {
    let lines = metrics.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
    });
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}

/// One of our values, and the metric that it must agree with, in that metric's unit.
struct Pair {
    metric: &'static str,
    label: String,
    ours: f64,
    near: f64,
}

impl Pair {
    fn new(metric: &'static str, label: &str, ours: f64, near: f64) -> Self {
        let label = label.into();
        Self {
            metric,
            label,
            ours,
            near,
        }
    }

    /// Why it is not between the two readings, or near them.
    fn problem(&self, before: &str, after: &str) -> Option<String> {
        let read = |metrics| value(metrics, self.metric, &self.label);
        let (Some(before), Some(after)) = (read(before), read(after)) else {
            return Some(format!("{}{{{}}} is missing", self.metric, self.label));
        };
        let range = before.min(after) - self.near..=before.max(after) + self.near;
        (!range.contains(&self.ours)).then(|| {
            format!(
                "{}{{{}}}: {range:?}, ours {}",
                self.metric, self.label, self.ours
            )
        })
    }
}

fn pairs(vitals: &Vitals) -> Vec<Pair> {
    let mut pairs = vec![
        Pair::new(
            "node_memory_MemTotal_bytes",
            "",
            vitals.memory_total_bytes as f64,
            0.0,
        ),
        Pair::new(
            "node_memory_MemAvailable_bytes",
            "",
            (vitals.memory_total_bytes - vitals.memory_used_bytes) as f64,
            32.0 * MIB,
        ),
        Pair::new("node_load1", "", vitals.load_1m, 0.05),
    ];
    if let Some(steal) = vitals.cpu_steal_ms {
        let steal = steal as f64 / 1e3;
        let label = "mode=\"steal\"";
        pairs.push(Pair::new("node_cpu_seconds_total", label, steal, 0.2));
    }
    pairs.extend(disks(vitals));
    pairs.extend(interfaces(vitals));
    pairs.extend(devices(vitals));
    pairs.extend(pressure(vitals));
    pairs
}

fn disks(vitals: &Vitals) -> Vec<Pair> {
    let pairs = vitals.disks.iter().flat_map(|disk| {
        let at = format!("mountpoint=\"{}\"", disk.mount_point);
        let bytes = |name, ours: u64| Pair::new(name, &at, ours as f64, 64.0 * MIB);
        let inodes = |name, ours: u64| Pair::new(name, &at, ours as f64, 1000.0);
        let (used, free) = (disk.inodes_used.unwrap_or(0), disk.inodes_free.unwrap_or(0));
        [
            bytes("node_filesystem_size_bytes", disk.total_bytes),
            bytes(
                "node_filesystem_free_bytes",
                disk.total_bytes - disk.used_bytes,
            ),
            bytes("node_filesystem_avail_bytes", disk.available_bytes.unwrap()),
            inodes("node_filesystem_files", used + free),
            inodes("node_filesystem_files_free", free),
        ]
    });
    pairs.collect()
}

fn interfaces(vitals: &Vitals) -> Vec<Pair> {
    let pairs = vitals.interfaces.iter().flat_map(|interface| {
        let of = format!("device=\"{}\"", interface.name);
        let pair = |name, ours: u64| Pair::new(name, &of, ours as f64, 0.0);
        [
            pair("node_network_receive_bytes_total", interface.rx_bytes),
            pair("node_network_transmit_bytes_total", interface.tx_bytes),
        ]
    });
    pairs.collect()
}

fn devices(vitals: &Vitals) -> Vec<Pair> {
    let pairs = vitals.block_devices.iter().flat_map(|device| {
        let of = format!("device=\"{}\"", device.name);
        let pair = |name, ours: u64| Pair::new(name, &of, ours as f64, 0.0);
        let busy = device.busy_ms as f64 / 1e3;
        [
            pair("node_disk_reads_completed_total", device.reads),
            pair("node_disk_read_bytes_total", device.read_bytes),
            pair("node_disk_writes_completed_total", device.writes),
            pair("node_disk_written_bytes_total", device.written_bytes),
            Pair::new("node_disk_io_time_seconds_total", &of, busy, 0.001),
        ]
    });
    pairs.collect()
}

/// The exporter says waiting where the kernel says some, and stalled for full.
fn pressure(vitals: &Vitals) -> Vec<Pair> {
    let Some(pressure) = vitals.pressure else {
        return Vec::new();
    };
    let pairs = [
        (
            "node_pressure_cpu_waiting_seconds_total",
            pressure.cpu_some_ms,
        ),
        (
            "node_pressure_memory_waiting_seconds_total",
            pressure.memory_some_ms,
        ),
        (
            "node_pressure_memory_stalled_seconds_total",
            pressure.memory_full_ms,
        ),
        (
            "node_pressure_io_waiting_seconds_total",
            pressure.io_some_ms,
        ),
        (
            "node_pressure_io_stalled_seconds_total",
            pressure.io_full_ms,
        ),
    ];
    let pair = |(name, ms): (_, Option<u64>)| Some(Pair::new(name, "", ms? as f64 / 1e3, 0.002));
    pairs.into_iter().filter_map(pair).collect()
}

#[test]
fn the_vitals_agree_with_the_node_exporter() {
    let exporter = Exporter::start();
    let mut sampler = Sampler::new();
    let (mut agreed, mut open) = (HashSet::new(), Vec::new());
    for _ in 0..TRIES {
        let before = exporter.metrics();
        let pairs = pairs(&sampler.sample());
        let after = exporter.metrics();
        open.clear();
        for pair in pairs {
            let key = (pair.metric, pair.label.clone());
            match pair.problem(&before, &after) {
                None => drop(agreed.insert(key)),
                Some(_) if agreed.contains(&key) => {}
                Some(problem) => open.push(problem),
            }
        }
        if open.is_empty() {
            return;
        }
    }
    panic!("the vitals never agreed: {open:#?}");
}
