//! `svc-agent sample`: takes one sample of this machine and prints it.

use std::{process::ExitCode, time::Duration};

use serde_json::{Value, json};
use svc_proto::v1::{Disk, Vitals};

use super::output::{Output, OutputArgs, bytes, facts, print};
use crate::vitals::Sampler;

/// The time over which the load of the processor is measured.
const CPU_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: &OutputArgs) -> anyhow::Result<ExitCode> {
    let mut sampler = Sampler::new();
    sampler.sample();
    tokio::time::sleep(CPU_INTERVAL).await;
    let vitals = sampler.sample();
    match args.output {
        Output::Table => print(&table(&vitals))?,
        Output::Json => print(&serde_json::to_string_pretty(&as_json(&vitals))?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(vitals: &Vitals) -> String {
    let of = |used, total| format!("{} of {}", bytes(used), bytes(total));
    let load = [vitals.load_1m, vitals.load_5m, vitals.load_15m];
    let memory = of(vitals.memory_used_bytes, vitals.memory_total_bytes);
    let network = [vitals.network_rx_bytes, vitals.network_tx_bytes].map(bytes);
    let mut rows = vec![
        ("cpu", format!("{:.1} %", vitals.cpu_percent)),
        ("load", load.map(|load| format!("{load:.2}")).join(" ")),
        ("memory", memory),
        ("swap", of(vitals.swap_used_bytes, vitals.swap_total_bytes)),
        ("up for", uptime(vitals.uptime_seconds)),
        ("processes", vitals.process_count.to_string()),
        ("network", format!("{} in, {} out", network[0], network[1])),
    ];
    rows.extend(vitals.disks.iter().map(|disk| ("disk", disk_row(disk))));
    let unreadable = vitals.unreadable_mounts.iter();
    rows.extend(unreadable.map(|mount| ("unreadable", mount.clone())));
    facts(&rows)
}

fn disk_row(disk: &Disk) -> String {
    let (used, total) = (bytes(disk.used_bytes), bytes(disk.total_bytes));
    let device = format!("{} ({})", disk.device, disk.fs_type);
    format!("{}  {used} of {total}  {device}", disk.mount_point)
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    format!("{days} d {hours} h {minutes} min")
}

/// The names are those of the protocol.
fn as_json(vitals: &Vitals) -> Value {
    let disk = |disk: &Disk| {
        json!({
            "mount_point": disk.mount_point, "device": disk.device, "fs_type": disk.fs_type,
            "total_bytes": disk.total_bytes, "used_bytes": disk.used_bytes,
        })
    };
    json!({
        "cpu_percent": vitals.cpu_percent,
        "load_1m": vitals.load_1m, "load_5m": vitals.load_5m, "load_15m": vitals.load_15m,
        "memory_used_bytes": vitals.memory_used_bytes, "memory_total_bytes": vitals.memory_total_bytes,
        "swap_used_bytes": vitals.swap_used_bytes, "swap_total_bytes": vitals.swap_total_bytes,
        "uptime_seconds": vitals.uptime_seconds, "process_count": vitals.process_count,
        "network_rx_bytes": vitals.network_rx_bytes, "network_tx_bytes": vitals.network_tx_bytes,
        "disks": vitals.disks.iter().map(disk).collect::<Vec<_>>(),
        "unreadable_mounts": vitals.unreadable_mounts,
    })
}
