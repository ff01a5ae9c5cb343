//! The vitals agree with what Prometheus' node exporter reads on the same machine.

use std::{
    collections::HashSet,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
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
    metric: String,
    label: String,
    ours: f64,
    near: f64,
}

impl Pair {
    /// Why it is not between the two readings, or near them.
    fn problem(&self, before: &str, after: &str) -> Option<String> {
        let name = format!("{}{{{}}}", self.metric, self.label);
        let read = |metrics| value(metrics, &self.metric, &self.label);
        let (Some(before), Some(after)) = (read(before), read(after)) else {
            return Some(format!("{name} is missing"));
        };
        let range = before.min(after) - self.near..=before.max(after) + self.near;
        (!range.contains(&self.ours)).then(|| format!("{name}: {range:?}, ours {}", self.ours))
    }
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1e3
}

fn pairs(vitals: &Vitals) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut add = |metric: &str, label: &str, ours: f64, near: f64| {
        let (metric, label) = (format!("node_{metric}"), label.to_owned());
        pairs.push(Pair {
            metric,
            label,
            ours,
            near,
        });
    };
    let total = vitals.memory_total_bytes as f64;
    let available = total - vitals.memory_used_bytes as f64;
    add("memory_MemTotal_bytes", "", total, 0.0);
    add("memory_MemAvailable_bytes", "", available, 32.0 * MIB);
    add("load1", "", vitals.load_1m, 0.05);
    if let Some(steal) = vitals.cpu_steal_ms {
        add("cpu_seconds_total", "mode=\"steal\"", seconds(steal), 0.2);
    }
    for disk in &vitals.disks {
        let at = format!("mountpoint=\"{}\"", disk.mount_point);
        let (used, free) = (disk.inodes_used.unwrap_or(0), disk.inodes_free.unwrap_or(0));
        add("filesystem_files", &at, (used + free) as f64, 1000.0);
        add("filesystem_files_free", &at, free as f64, 1000.0);
        let mut bytes = |metric: &str, ours: u64| add(metric, &at, ours as f64, 64.0 * MIB);
        bytes("filesystem_size_bytes", disk.total_bytes);
        bytes("filesystem_free_bytes", disk.total_bytes - disk.used_bytes);
        bytes("filesystem_avail_bytes", disk.available_bytes.unwrap());
    }
    for interface in &vitals.interfaces {
        let of = format!("device=\"{}\"", interface.name);
        let mut exactly = |metric: &str, ours: u64| add(metric, &of, ours as f64, 0.0);
        exactly("network_receive_bytes_total", interface.rx_bytes);
        exactly("network_transmit_bytes_total", interface.tx_bytes);
    }
    for device in &vitals.block_devices {
        let of = format!("device=\"{}\"", device.name);
        let busy = seconds(device.busy_ms);
        add("disk_io_time_seconds_total", &of, busy, 0.001);
        let mut exactly = |metric: &str, ours: u64| add(metric, &of, ours as f64, 0.0);
        exactly("disk_reads_completed_total", device.reads);
        exactly("disk_read_bytes_total", device.read_bytes);
        exactly("disk_writes_completed_total", device.writes);
        exactly("disk_written_bytes_total", device.written_bytes);
    }
    if let Some(pressure) = &vitals.pressure {
        let mut time = |share: &str, ms: Option<u64>| {
            let metric = format!("pressure_{share}_seconds_total");
            ms.into_iter()
                .for_each(|ms| add(&metric, "", seconds(ms), 0.002));
        };
        // The exporter says waiting where the kernel says some, and stalled for full.
        time("cpu_waiting", pressure.cpu_some_ms);
        time("memory_waiting", pressure.memory_some_ms);
        time("memory_stalled", pressure.memory_full_ms);
        time("io_waiting", pressure.io_some_ms);
        time("io_stalled", pressure.io_full_ms);
    }
    pairs
}

/// The vitals list what the machine has, so that nothing agrees because it is not there.
fn assert_complete(vitals: &Vitals) {
    let names = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    let is_used = |disk: &String| {
        let stat = fs::read_to_string(format!("/sys/block/{disk}/stat")).unwrap();
        let has_device = Path::new(&format!("/sys/block/{disk}/device")).exists();
        let is_drive = disk.starts_with("sr") || disk.starts_with("fd");
        has_device && !is_drive && stat.split_whitespace().next() != Some("0")
    };
    let has_disk = names("/sys/block").iter().any(is_used);
    assert_eq!(!vitals.block_devices.is_empty(), has_disk);
    let has_interface = names("/sys/class/net").iter().any(|name| name != "lo");
    assert_eq!(!vitals.interfaces.is_empty(), has_interface);
    let has_pressure = fs::read("/proc/pressure/cpu").is_ok();
    assert_eq!(vitals.pressure.is_some(), has_pressure);
}

#[test]
fn the_vitals_agree_with_the_node_exporter() {
    let exporter = Exporter::start();
    let mut sampler = Sampler::default();
    assert_complete(&sampler.sample());
    let (mut agreed, mut open) = (HashSet::new(), Vec::new());
    for _ in 0..TRIES {
        let before = exporter.metrics();
        let pairs = pairs(&sampler.sample());
        let after = exporter.metrics();
        open.clear();
        for pair in pairs {
            let key = (pair.metric.clone(), pair.label.clone());
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
