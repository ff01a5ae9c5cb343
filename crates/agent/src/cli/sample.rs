//! `svc-agent sample`: takes one sample of this machine and prints it.

use std::{process::ExitCode, time::Duration};

use serde_json::{Map, Value, json};
use svc_proto::v1::{BlockDevice, Disk, Interface, Pressure, Vitals};

use super::output::{Output, OutputArgs, bytes, facts, print};
use crate::vitals::Sampler;

/// The time over which the load of the processor is measured.
const CPU_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(args: &OutputArgs) -> anyhow::Result<ExitCode> {
    let mut sampler = Sampler::default();
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
    let mut rows = vec![
        ("cpu", format!("{:.1} %", vitals.cpu_percent)),
        ("load", load.map(|load| format!("{load:.2}")).join(" ")),
        ("memory", memory),
        ("swap", of(vitals.swap_used_bytes, vitals.swap_total_bytes)),
        ("up for", uptime(vitals.uptime_seconds)),
        ("processes", vitals.process_count.to_string()),
    ];
    let steal = vitals.cpu_steal_ms.filter(|steal| *steal > 0);
    rows.extend(steal.map(|steal| ("steal", seconds(steal))));
    rows.extend(vitals.pressure.iter().flat_map(pressure_rows));
    let interfaces = vitals.interfaces.iter();
    rows.extend(interfaces.map(|interface| ("network", interface_row(interface))));
    rows.extend(vitals.disks.iter().map(|disk| ("disk", disk_row(disk))));
    let unreadable = vitals.unreadable_mounts.iter();
    rows.extend(unreadable.map(|mount| ("unreadable", mount.clone())));
    let devices = vitals.block_devices.iter();
    rows.extend(devices.map(|device| ("disk i/o", device_row(device))));
    facts(&rows)
}

fn pressure_rows(pressure: &Pressure) -> Vec<(&'static str, String)> {
    let (some, full) = (pressure.memory_some_ms, pressure.memory_full_ms);
    let rows = [
        ("cpu", pressure.cpu_some_ms, None),
        ("memory", some, full),
        ("i/o", pressure.io_some_ms, pressure.io_full_ms),
    ];
    let row = |(resource, some, full): (&str, Option<u64>, Option<u64>)| {
        let full = full.map(|full| format!(", full {}", seconds(full)));
        let text = format!("{resource}  some {}", seconds(some?));
        Some(("pressure", text + &full.unwrap_or_default()))
    };
    rows.into_iter().filter_map(row).collect()
}

fn interface_row(interface: &Interface) -> String {
    let [received, sent] = [interface.rx_bytes, interface.tx_bytes].map(bytes);
    format!("{}  {received} in, {sent} out", interface.name)
}

fn disk_row(disk: &Disk) -> String {
    let (used, total) = (bytes(disk.used_bytes), bytes(disk.total_bytes));
    let space = share(disk.used_bytes, disk.available_bytes);
    let inodes = share(disk.inodes_used.unwrap_or(0), disk.inodes_free);
    let inodes = inodes.map(|percent| format!(", {percent} % of inodes"));
    let read_only = match disk.read_only {
        Some(true) => ", read-only",
        _ => "",
    };
    format!(
        "{}  {used} of {total}{}{}{read_only}  {} ({})",
        disk.mount_point,
        space.map_or(String::new(), |percent| format!(" ({percent} %)")),
        inodes.unwrap_or_default(),
        disk.device,
        disk.fs_type
    )
}

/// As `df` rounds it: up.
fn share(used: u64, free: Option<u64>) -> Option<u128> {
    let (used, free) = (u128::from(used), u128::from(free?));
    (used + free > 0).then(|| (used * 100).div_ceil(used + free))
}

fn device_row(device: &BlockDevice) -> String {
    let [read, written] = [device.read_bytes, device.written_bytes].map(bytes);
    format!(
        "{}  {} reads ({read}), {} writes ({written}), busy for {}",
        device.name,
        device.reads,
        device.writes,
        seconds(device.busy_ms)
    )
}

fn seconds(milliseconds: u64) -> String {
    format!("{:.1} s", milliseconds as f64 / 1000.0)
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    format!("{days} d {hours} h {minutes} min")
}

/// An object of these fields.
macro_rules! fields {
    ($of:ident, $($name:ident)+) => {{
        let mut object = Map::new();
        $(object.insert(stringify!($name).into(), json!($of.$name));)+
        object
    }};
}

/// The names are those of the protocol. A value that is absent there is null.
fn as_json(vitals: &Vitals) -> Value {
    let mut all = fields!(
        vitals, cpu_percent cpu_steal_ms load_1m load_5m load_15m memory_used_bytes
        memory_total_bytes swap_used_bytes swap_total_bytes uptime_seconds process_count
        network_rx_bytes network_tx_bytes unreadable_mounts
    );
    let interfaces = vitals.interfaces.iter();
    let interfaces = interfaces.map(|one| fields!(one, name rx_bytes tx_bytes));
    let disks = vitals.disks.iter().map(|one| {
        fields!(
            one, mount_point device fs_type total_bytes used_bytes available_bytes inodes_used
            inodes_free read_only
        )
    });
    let devices = vitals.block_devices.iter();
    let devices =
        devices.map(|one| fields!(one, name reads read_bytes writes written_bytes busy_ms));
    let pressure = vitals
        .pressure
        .map(|one| fields!(one, cpu_some_ms memory_some_ms memory_full_ms io_some_ms io_full_ms));
    all.insert("interfaces".into(), interfaces.collect());
    all.insert("disks".into(), disks.collect());
    all.insert("block_devices".into(), devices.collect());
    all.insert("pressure".into(), json!(pressure));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentage_of_a_disk_is_that_of_df() {
        let row = |used_bytes, available_bytes| {
            disk_row(&Disk {
                mount_point: "/".into(),
                total_bytes: 1000,
                used_bytes,
                available_bytes,
                ..Disk::default()
            })
        };
        assert!(row(501, Some(449)).contains("(53 %)"));
        assert!(row(950, Some(0)).contains("(100 %)"));
        assert!(!row(501, None).contains('%'));
        assert!(!row(0, Some(0)).contains('%'));
    }
}
