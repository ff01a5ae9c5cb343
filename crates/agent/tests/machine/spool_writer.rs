//! A process that fills a spool and that a test can kill or limit.
//!
//! It is this test binary. It prints each number that the spool has stored, and each number before
//! it could have been reported to the service.

use std::{
    env,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use prost::Message;
use svc_agent::spool::{Limits, LossReason, Spool, SpoolError};
use svc_proto::v1;

pub const LIMITS: Limits = Limits {
    bytes: 256 * 1024,
    age: Duration::from_hours(24),
};
/// Small segments, so that a hundred samples fill some.
pub const SMALL: Limits = Limits {
    bytes: 64 * 1024,
    ..LIMITS
};
const FOLDER: &str = "SVC_TEST_SPOOL";
const COUNT: &str = "SVC_TEST_COUNT";
const BYTES: &str = "SVC_TEST_BYTES";

/// Different for each moment.
pub fn vitals(moment: u64) -> v1::Vitals {
    let disk = v1::Disk {
        mount_point: "/".repeat((moment % 97) as usize),
        ..Default::default()
    };
    v1::Vitals {
        uptime_seconds: moment,
        disks: vec![disk],
        ..Default::default()
    }
}

/// Stores a sample under the next number. If that fails, the number becomes a gap.
pub fn append(spool: &mut Spool, moment: u64) -> Result<u64, SpoolError> {
    let (seq, at) = (spool.next_seq(), i64::try_from(moment * 1000).unwrap());
    let stored = spool.put(seq, at, &vitals(moment).encode_to_vec());
    if stored.is_err() {
        spool.lose(seq, seq, LossReason::DiskFull);
    }
    stored.map(|()| seq)
}

/// All unacknowledged numbers, with their moment, or `None` for a gap.
pub fn waiting(spool: &Spool) -> Vec<(u64, Option<u64>)> {
    let (mut all, mut after) = (Vec::new(), spool.acked_seq());
    while after + 1 < spool.next_seq() {
        let report = spool.read(after, 100, 64 * 1024).unwrap();
        let gaps = report
            .gaps
            .iter()
            .flat_map(|gap| gap.first_seq..=gap.last_seq);
        let mut reported: Vec<(u64, Option<u64>)> = gaps.map(|seq| (seq, None)).collect();
        reported.extend(report.samples.iter().map(|sample| {
            let found = sample.vitals.clone().unwrap();
            assert_eq!(found, vitals(found.uptime_seconds), "never a wrong sample");
            (sample.seq, Some(found.uptime_seconds))
        }));
        reported.sort_unstable();
        for (seq, _) in &reported {
            after += 1;
            assert_eq!(*seq, after, "every number has one answer");
        }
        all.extend(reported);
    }
    all
}

/// The command of the process, after `prefix` such as `prlimit --fsize=9000`.
pub fn command(prefix: &[&str], dir: &Path, count: u64, limits: Limits) -> Command {
    let binary = env::current_exe().unwrap().display().to_string();
    let words = [
        prefix,
        &[
            &binary,
            "--exact",
            "spool_writer::fill",
            "--ignored",
            "--nocapture",
        ],
    ]
    .concat();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env(FOLDER, dir)
        .env(COUNT, count.to_string())
        .env(BYTES, limits.bytes.to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Prints `stored <seq> <moment>`, `reported <seq> <moment>`, and `reported <seq> -` for a gap.
#[test]
#[ignore = "the other tests run it as a process of its own"]
fn fill() {
    let dir = env::var_os(FOLDER).expect("run by another test");
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (count, bytes) = (number(COUNT), number(BYTES));
    let mut spool = Spool::open(Path::new(&dir), Limits { bytes, ..LIMITS }).unwrap();
    let mut out = io::stdout().lock();
    for round in 0..count {
        let moment = spool.next_seq() * 1_000_000 + u64::from(std::process::id());
        match append(&mut spool, moment) {
            Ok(seq) => writeln!(out, "stored {seq} {moment}").unwrap(),
            Err(error) => writeln!(out, "failed {} {error}", spool.next_seq() - 1).unwrap(),
        }
        if round % 7 == 3 {
            print_reported(&spool, &mut out);
        }
        if round % 50 == 49 {
            spool.acked(spool.next_seq() - 20);
        }
    }
}

/// Prints before the spool is read, because a number counts as reported from then on.
fn print_reported(spool: &Spool, out: &mut impl Write) {
    for (seq, moment) in waiting(spool) {
        let moment = moment.map_or("-".into(), |moment| moment.to_string());
        writeln!(out, "reported {seq} {moment}").unwrap();
    }
    out.flush().unwrap();
}
