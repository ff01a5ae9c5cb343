//! CPU, memory, threads and open files of this process, read at each scrape. The names are those of all Prometheus
//! client libraries.

use std::{fs, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        counter::ConstCounter,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

/// How long a count of open files is used.
const COUNT_LIFE: Duration = Duration::from_secs(5);

/// The number of open files. Counting them reads a directory entry for each, which takes as long as the rest of a
/// scrape at 1,000 connections and grows with them. So they are counted on a blocking thread, at most once in
/// [`COUNT_LIFE`]; scrapes that come meanwhile wait for the same count.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    count: Gauge,
    counted: Mutex<Option<Instant>>,
}

impl OpenFiles {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("process_open_fds", "Open files", self.count.clone());
    }

    pub(super) async fn refresh(&self) {
        let mut counted = self.counted.lock().await;
        if counted.is_some_and(|at| at.elapsed() < COUNT_LIFE) {
            return;
        }
        let files = spawn_blocking(|| fs::read_dir("/proc/self/fd").map(Iterator::count));
        if let Ok(Ok(files)) = files.await {
            self.count.set(i64::try_from(files).unwrap_or(i64::MAX));
            *counted = Some(Instant::now());
        }
    }
}

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(stat) = ProcessUse::read() {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            let (name, kind) = ("process_cpu_seconds", cpu.metric_type());
            cpu.encode(encoder.encode_descriptor(name, "CPU time used", None, kind)?)?;
            let (name, help) = ("process_resident_memory_bytes", "Resident memory");
            gauge(&mut encoder, name, help, stat.resident_bytes)?;
            gauge(&mut encoder, "process_threads", "Threads", stat.threads)?;
            if let Some(booted) = booted_at() {
                let (name, help) = (
                    "process_start_time_seconds",
                    "When the process started, since 1970",
                );
                gauge(&mut encoder, name, help, booted + stat.started_seconds)?;
            }
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(f64::INFINITY, |limit| limit as f64);
        let (name, help) = ("process_max_fds", "The limit of open files");
        gauge(&mut encoder, name, help, limit)
    }
}

/// What this process uses.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUse {
    pub cpu_seconds: f64,
    pub resident_bytes: f64,
    threads: f64,
    /// After the boot of the machine.
    started_seconds: f64,
}

/// When the machine booted, in seconds since 1970.
fn booted_at() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "));
    line?.trim().parse().ok()
}

impl ProcessUse {
    /// Reads `/proc/self/stat`. The command name in it may contain spaces, so fields are counted from the bracket that
    /// closes it, which ends field 2.
    pub fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            started_seconds: field(22)? / ticks,
            threads: field(20)?,
            resident_bytes: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> Result<(), std::fmt::Error> {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}
