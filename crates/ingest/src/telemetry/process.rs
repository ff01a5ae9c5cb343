//! CPU, memory, threads and open files of this process, read at each scrape.

use std::fs;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Uses the same names as all Prometheus client libraries.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(stat) = Stat::read() {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            let (name, kind) = ("process_cpu_seconds", cpu.metric_type());
            cpu.encode(encoder.encode_descriptor(name, "CPU time used", None, kind)?)?;
            let (name, help) = ("process_resident_memory_bytes", "Resident memory");
            gauge(&mut encoder, name, help, stat.resident_bytes)?;
            gauge(&mut encoder, "process_threads", "Threads", stat.threads)?;
        }
        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            let count = files.count() as f64;
            gauge(&mut encoder, "process_open_fds", "Open files", count)?;
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(f64::INFINITY, |limit| limit as f64);
        let (name, help) = ("process_max_fds", "The limit of open files");
        gauge(&mut encoder, name, help, limit)
    }
}

struct Stat {
    cpu_seconds: f64,
    resident_bytes: f64,
    threads: f64,
}

impl Stat {
    /// Reads `/proc/self/stat`. The command name in it may contain spaces, so fields are counted from the bracket that
    /// closes it, which ends field 2.
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / rustix::param::clock_ticks_per_second() as f64,
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
