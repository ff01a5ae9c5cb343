//! The vitals of the machine: processor, memory, disks, network, pressure, uptime, processes.
//!
//! They come from /proc, /sys and `statvfs` only. Sampling never fails and waits for a second at most: a
//! value that the kernel does not provide is absent, or zero where the contract has no
//! absence, a file system that does not answer is named as unreadable, and every value is
//! within the service's limits.

mod blocks;
mod cpu;
mod disks;
mod filter;
mod memory;
mod meter;
mod network;
mod pressure;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use svc_proto::{contract::limits::MAX_INTERFACES, v1::Vitals};

pub use self::filter::{Filter, PARTS};
pub(crate) use self::memory::Memory;
use self::{cpu::Times, meter::Meter};
use crate::machine::{Machine, bounded};

/// The kernel counts processor time in steps of 10 ms. Over a few of them the load would be
/// 0 or 100 by chance, so a shorter time keeps the figure before it.
const SHORTEST: Duration = Duration::from_millis(500);

/// Takes samples. It keeps the processor times of the previous one, because the load of the
/// processor is a difference.
#[derive(Debug)]
pub struct Sampler {
    machine: Machine,
    times: Times,
    times_at: Instant,
    cpu_percent: f64,
    meter: Meter,
    filter: Arc<Filter>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::of(Machine::here())
    }
}

impl Sampler {
    /// A first sample that follows too soon covers the time since the boot.
    fn of(machine: Machine) -> Self {
        let times = Times::read(&machine);
        Self {
            machine,
            cpu_percent: times.percent_since(&Times::default()).unwrap_or(0.0),
            times,
            times_at: Instant::now(),
            meter: Meter::default(),
            filter: Arc::default(),
        }
    }

    /// From the next sample on.
    pub fn leave_out(&mut self, filter: Arc<Filter>) {
        self.filter = filter;
    }

    /// `cpu_percent` covers the time since the previous sample.
    pub fn sample(&mut self) -> Vitals {
        if self.times_at.elapsed() >= SHORTEST {
            let times = Times::read(&self.machine);
            let percent = times.percent_since(&self.times);
            self.cpu_percent = percent.unwrap_or(self.cpu_percent);
            (self.times, self.times_at) = (times, Instant::now());
        }
        self.read()
    }

    fn read(&mut self) -> Vitals {
        let (machine, filter) = (&self.machine, &self.filter);
        let memory = Memory::read(machine);
        let mut interfaces = network::interfaces(machine);
        interfaces.retain(|one| filter.interface(one));
        let network_rx_bytes = network::total(&interfaces, |one| one.rx_bytes);
        let network_tx_bytes = network::total(&interfaces, |one| one.tx_bytes);
        let listed = if filter.has("interfaces") {
            MAX_INTERFACES
        } else {
            0
        };
        interfaces.truncate(listed);
        let [load_1m, load_5m, load_15m] = load(&machine.text("/proc/loadavg"));
        let mut mounts = disks::mounts(machine);
        mounts.retain(|mount| filter.mount(mount));
        let measured = self.meter.measure(mounts);
        Vitals {
            cpu_percent: self.cpu_percent,
            load_1m,
            load_5m,
            load_15m,
            memory_used_bytes: memory.used,
            memory_total_bytes: memory.total,
            swap_used_bytes: memory.swap_used,
            swap_total_bytes: memory.swap_total,
            uptime_seconds: uptime(&machine.text("/proc/uptime")),
            process_count: processes(machine),
            network_rx_bytes,
            network_tx_bytes,
            disks: measured.disks,
            unreadable_mounts: measured.unreadable,
            spool_problem: String::new(),
            interfaces,
            block_devices: match filter.has("block_devices") {
                true => blocks::block_devices(machine),
                false => Vec::new(),
            },
            pressure: pressure::read(machine).filter(|_| filter.has("pressure")),
            cpu_steal_ms: (self.times.steal_ms()).filter(|_| filter.has("cpu_steal_ms")),
        }
    }
}

fn load(text: &str) -> [f64; 3] {
    let mut numbers = text.split_whitespace().map(number);
    [(); 3].map(|()| numbers.next().unwrap_or(0.0))
}

fn uptime(text: &str) -> u64 {
    bounded(text.split_whitespace().next().map_or(0.0, number) as u64)
}

/// A value that is not a finite positive number counts as 0.
fn number(text: &str) -> f64 {
    let number = text.parse().unwrap_or(0.0);
    if f64::is_finite(number) {
        number.max(0.0)
    } else {
        0.0
    }
}

/// Processes, not threads: the entries of /proc that are numbers.
fn processes(machine: &Machine) -> u32 {
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    u32::try_from(machine.names("/proc").filter(is_number).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

    use svc_proto::contract::limits::MAX_NUMBER;

    use super::*;
    use crate::machine::tests::machine;

    /// Whether the file system of [`waiting_sampler`] is asked, and whether somebody has seen it.
    pub(crate) static IS_ASKED: AtomicBool = AtomicBool::new(false);
    pub(crate) static IS_SEEN: AtomicBool = AtomicBool::new(false);

    /// A sampler of a machine whose file system answers when somebody has seen that it is asked.
    pub(crate) fn waiting_sampler() -> (tempfile::TempDir, Sampler) {
        let mountinfo = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let (dir, machine) = machine(&[("/proc/self/mountinfo", mountinfo)]);
        let measure = |_: &disks::Mount| {
            IS_ASKED.store(true, Relaxed);
            while !IS_SEEN.load(Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(None)
        };
        let mut sampler = Sampler::of(machine);
        sampler.meter = Meter::with(measure, Duration::from_secs(20));
        (dir, sampler)
    }

    #[test]
    fn a_machine_without_any_files_has_zeros_and_nothing_optional() {
        let (_dir, machine) = machine(&[]);
        let mut sampler = Sampler::of(machine);
        assert_eq!(sampler.sample(), Vitals::default());
    }

    #[test]
    fn what_is_left_out_is_missing_also_in_sums() {
        let net = "h\nh\n eth0: 10 0 0 0 0 0 0 0 1\n veth1: 20 0 0 0 0 0 0 0 2\n";
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 0 8:2 / /mnt/a rw - xfs /dev/sda2 rw\n";
        let (_dir, machine) = machine(&[
            ("/sys/class/net/eth0/type", "1"),
            ("/sys/class/net/veth1/type", "1"),
            ("/proc/net/dev", net),
            ("/proc/self/mountinfo", mounts),
            ("/proc/stat", "cpu 10 0 10 80 0 0 0 7\n"),
        ]);
        let mut sampler = Sampler::of(machine);
        let measure = |mount: &disks::Mount| {
            let mount_point = mount.place();
            let disk = svc_proto::v1::Disk {
                mount_point,
                ..Default::default()
            };
            Ok(Some(disk))
        };
        sampler.meter = Meter::with(measure, Duration::from_secs(20));
        let all = sampler.sample();
        assert_eq!((all.interfaces.len(), all.disks.len()), (2, 2));
        assert_eq!((all.network_rx_bytes, all.network_tx_bytes), (30, 3));
        assert!(all.cpu_steal_ms.is_some());

        sampler.leave_out(Arc::new(Filter {
            parts: vec!["cpu_steal_ms".into()],
            mounts: vec!["/mnt/*".into()],
            file_systems: vec![],
            interfaces: vec!["veth*".into()],
        }));
        let some = sampler.sample();
        assert_eq!((some.network_rx_bytes, some.network_tx_bytes), (10, 1));
        assert_eq!(some.interfaces[0].name, "eth0");
        assert_eq!((some.interfaces.len(), some.disks.len()), (1, 1));
        assert_eq!(some.cpu_steal_ms, None);

        sampler.leave_out(Arc::new(Filter {
            parts: vec!["disks".into(), "interfaces".into()],
            file_systems: vec!["xfs".into()],
            ..Filter::default()
        }));
        let few = sampler.sample();
        assert_eq!((few.interfaces.len(), few.disks.len()), (0, 0));
        assert_eq!(few.network_rx_bytes, 30, "the sum needs no list");
    }

    #[test]
    fn a_sample_right_after_the_start_has_the_load_since_the_boot() {
        let (_dir, machine) = machine(&[("/proc/stat", "cpu 10 0 10 80\n")]);
        let mut sampler = Sampler::of(machine.clone());
        std::fs::write(machine.path("/proc/stat"), "cpu 11 0 10 80\n").unwrap();
        assert_eq!(sampler.sample().cpu_percent, 20.0);
        sampler.times_at -= SHORTEST;
        assert_eq!(sampler.sample().cpu_percent, 100.0);
    }

    #[test]
    fn load_and_uptime_are_valid_numbers_whatever_is_read() {
        assert_eq!(load("0.52 1.04 12.00 3/512 9999\n"), [0.52, 1.04, 12.0]);
        assert_eq!(load("nan inf -3"), [0.0; 3]);
        assert_eq!(load("1.5"), [1.5, 0.0, 0.0]);
        assert_eq!(uptime("350735.47 234388.90\n"), 350_735);
        assert_eq!(uptime("1e300"), MAX_NUMBER);
        assert_eq!(uptime("NaN"), 0);
    }

    #[test]
    fn processes_are_the_entries_of_proc_that_are_numbers() {
        let files = [
            "/proc/1/stat",
            "/proc/42/stat",
            "/proc/self/stat",
            "/proc/stat",
        ];
        let (_dir, machine) = machine(&files.map(|path| (path, "")));
        assert_eq!(processes(&machine), 2);
    }
}
