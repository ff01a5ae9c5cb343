//! SIGKILL at any time, and before every system call.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::Child,
    thread,
    time::Duration,
};

use svc_agent::spool::Spool;

use crate::spool_writer::{LIMITS, SMALL, append, command, waiting};

const ROUNDS: u64 = 30;

#[derive(Default)]
struct Ledger {
    stored: BTreeMap<u64, u64>,
    reported: BTreeMap<u64, Option<u64>>,
}

impl Ledger {
    /// Ignores an incomplete line.
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, seq, moment] = words[..] else {
            return;
        };
        let (Ok(seq), moment) = (seq.parse(), moment.parse().ok()) else {
            return;
        };
        match (what, moment) {
            ("stored", Some(moment)) => {
                let before = self.stored.insert(seq, moment);
                assert_eq!(before, None, "number {seq} was given twice");
            }
            ("reported", moment) => {
                let before = *self.reported.entry(seq).or_insert(moment);
                assert_eq!(before, moment, "what was reported about {seq} stays true");
            }
            _ => {}
        }
    }

    fn listen(&mut self, child: &mut Child) {
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> = out.lines().map_while(Result::ok).collect();
        // The last line may be incomplete.
        lines.iter().for_each(|line| self.note(line));
    }

    /// Checks that the spool has everything that was stored and not acknowledged.
    fn check(&self, spool: &Spool) {
        let found: BTreeMap<u64, Option<u64>> = waiting(spool).into_iter().collect();
        for (seq, moment) in self.stored.range(spool.acked_seq() + 1..) {
            assert_eq!(found.get(seq), Some(&Some(*moment)), "sample {seq}");
        }
        for (seq, reported) in self.reported.range(spool.acked_seq() + 1..) {
            assert_eq!(
                found.get(seq),
                Some(reported),
                "what was reported about {seq} stays true"
            );
        }
        let last = self.stored.last_key_value().map_or(0, |(seq, _)| *seq);
        assert!(spool.next_seq() > last);
    }
}

#[test]
fn a_killed_process_loses_nothing_that_the_spool_has_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::default();
    for round in 0..ROUNDS {
        let mut child = command(&["env"], dir.path(), u64::MAX, LIMITS)
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20 + round * 7 % 60));
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        });
        ledger.listen(&mut child);
        killer.join().unwrap().unwrap();
        assert!(!child.wait().unwrap().success());
        let spool = Spool::open(dir.path(), LIMITS).unwrap();
        ledger.check(&spool);
    }
    assert!(
        ledger.stored.len() > 100,
        "{} were stored",
        ledger.stored.len()
    );
}

/// strace kills it before its first such call, its second, and so on.
#[test]
#[ignore = "takes minutes and strace: make fuzz-agent"]
fn a_process_killed_before_any_system_call_loses_nothing() {
    let mut kills = 0;
    for call in [
        "pwrite64",
        "fdatasync",
        "fsync",
        "ftruncate",
        "unlink",
        "openat",
    ] {
        let mut when = 1;
        while is_killed_at(call, when) {
            when += 1;
        }
        eprintln!("{call}: killed at each of {} calls", when - 1);
        kills += when - 1;
    }
    assert!(kills > 300, "{kills} kills");
}

/// Whether the child made that many calls.
fn is_killed_at(call: &str, when: u64) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("spool");
    let inject = format!("--inject={call}:signal=KILL:when={when}");
    let trace = [
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        &format!("trace={call}"),
        &inject,
    ];
    let mut ledger = Ledger::default();
    let mut before = Spool::open(&folder, SMALL).unwrap();
    for moment in 1..=10 {
        let seq = append(&mut before, moment).unwrap();
        ledger.stored.insert(seq, moment);
    }
    drop(before);
    let mut child = command(&trace, &folder, 210, SMALL).spawn().unwrap();
    ledger.listen(&mut child);
    let killed = !child.wait().unwrap().success();
    let spool = Spool::open(&folder, SMALL).unwrap();
    ledger.check(&spool);
    killed
}
