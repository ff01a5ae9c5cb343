//! Pressure stall information, from /proc/pressure.
//!
//! `full` of the processor is not reported: for a whole machine it is always 0. A kernel that does not
//! measure pressure has no such files, or they cannot be read.

use svc_proto::v1::Pressure;

use crate::machine::{Machine, bounded};

/// `None` if the kernel measures none of it.
pub(super) fn read(machine: &Machine) -> Option<Pressure> {
    let text = |resource: &str| machine.text(&format!("/proc/pressure/{resource}"));
    let (cpu, memory, io) = (text("cpu"), text("memory"), text("io"));
    let pressure = Pressure {
        cpu_some_ms: total_ms(&cpu, "some"),
        memory_some_ms: total_ms(&memory, "some"),
        memory_full_ms: total_ms(&memory, "full"),
        io_some_ms: total_ms(&io, "some"),
        io_full_ms: total_ms(&io, "full"),
    };
    (pressure != Pressure::default()).then_some(pressure)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds.
fn total_ms(text: &str, share: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut line = lines.find_map(|mut words| (words.next()? == share).then_some(words))?;
    let total = line.find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(|total: u64| bounded(total / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    const IO: &str = "some avg10=0.00 avg60=1.00 avg300=0.00 total=5660392825
full avg10=0.00 avg60=0.00 avg300=0.00 total=999
";

    #[test]
    fn totals_are_milliseconds_and_what_is_missing_stays_absent() {
        let (_dir, machine) = machine(&[
            ("/proc/pressure/io", IO),
            ("/proc/pressure/cpu", "some avg10=0.00 total=x\n"),
        ]);
        let expected = Pressure {
            io_some_ms: Some(5_660_392),
            io_full_ms: Some(0),
            ..Pressure::default()
        };
        assert_eq!(read(&machine), Some(expected));
    }
}
