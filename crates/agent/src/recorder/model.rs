//! The numbering promise against a model: random faults of the disk, stalls, crashes and
//! restarts, with a service whose database lags behind what it received.
//!
//! The test drives the real [`Disk`] without its thread. The service is a queue of reports and
//! a table: it stores each number once, in the order of arrival, and a Welcome knows the table
//! alone. The promise is broken if a sample arrives under a number that the table has with
//! another sample.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Instant, UNIX_EPOCH},
};

use proptest::prelude::*;
use prost::Message;
use svc_proto::v1::{Report, Vitals};

use super::{
    disk::Disk,
    last_number,
    shared::{Held, Job, STALL, Shared},
};
use crate::{
    data_dir::DataDir,
    spool::{Fault, LossReason, Spool},
    stamp::Stamp,
};

#[derive(Clone, Debug)]
enum Step {
    Take(u8),
    /// The disk does its jobs.
    Work,
    Fault(Option<u8>),
    /// A job hangs, and later ends.
    Stall,
    /// A session begins with the watermark of the table.
    Connect,
    Send,
    /// The service stores the oldest reports that it has received.
    Commit(u8),
    /// The process is killed. A write that hangs may have reached the disk.
    Crash(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u8..4).prop_map(Step::Take),
        4 => Just(Step::Work),
        2 => prop::option::of(0_u8..2).prop_map(Step::Fault),
        1 => Just(Step::Stall),
        2 => Just(Step::Connect),
        5 => Just(Step::Send),
        3 => (1_u8..4).prop_map(Step::Commit),
        2 => any::<bool>().prop_map(Step::Crash),
    ]
}

struct Model {
    folder: tempfile::TempDir,
    dir: Arc<DataDir>,
    disk: Option<Disk>,
    /// A job that hangs.
    hanging: Option<Job>,
    fault: Option<Fault>,
    /// The last number that was sent in this session.
    session: Option<u64>,
    /// Reports that wait for their acknowledgement.
    in_flight: usize,
    received: VecDeque<Report>,
    /// What the table has; `None` for a gap.
    table: BTreeMap<u64, Option<u64>>,
    samples: u64,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = Arc::new(DataDir::open(folder.path()).unwrap());
        let mut model = Self {
            folder,
            dir,
            disk: None,
            hanging: None,
            fault: None,
            session: None,
            in_flight: 0,
            received: VecDeque::new(),
            table: BTreeMap::new(),
            samples: 0,
        };
        model.start();
        model
    }

    fn start(&mut self) {
        let spool = Spool::open(&self.folder.path().join("spool"), Default::default()).unwrap();
        let shared = Arc::new(Shared::new(&spool));
        let mut disk = Disk::new(shared, spool, self.dir.clone());
        disk.spool.fault = self.fault;
        self.disk = Some(disk);
        (self.session, self.in_flight, self.hanging) = (None, 0, None);
    }

    fn disk(&mut self) -> &mut Disk {
        self.disk.as_mut().unwrap()
    }

    fn shared(&self) -> Arc<Shared> {
        self.disk.as_ref().unwrap().shared.clone()
    }

    fn watermark(&self) -> u64 {
        self.table.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    fn take(&mut self) {
        self.samples += 1;
        let vitals = Vitals {
            uptime_seconds: self.samples,
            ..Vitals::default()
        };
        self.shared().change(|inner| {
            let at = Stamp::time(UNIX_EPOCH);
            let reason = LossReason::NotStored;
            inner.numbers.take(at, vitals.encode_to_vec(), reason);
            inner.is_resting = false;
        });
    }

    fn next_job(&mut self) -> Option<Job> {
        let acked = self.disk().spool.acked_seq();
        self.shared().inner().next_job(acked)
    }

    fn work(&mut self) {
        if let Some(job) = self.hanging.take() {
            self.disk().work(job);
        }
        self.shared().inner().busy_since = None;
        while let Some(job) = self.next_job() {
            self.disk().work(job);
        }
    }

    fn stall(&mut self) {
        if self.hanging.is_none()
            && let Some(job) = self.next_job()
        {
            self.hanging = Some(job);
            self.shared().inner().busy_since = Instant::now().checked_sub(2 * STALL);
        }
    }

    /// The session waits for a disk that hangs, if it needs it.
    fn connect(&mut self) {
        let acked = self.watermark();
        let only_acknowledges = self.shared().inner().numbers.welcomed(acked);
        if !only_acknowledges {
            self.work();
            self.disk().resume(acked).unwrap();
        }
        (self.session, self.in_flight) = (Some(acked), 0);
    }

    fn send(&mut self) {
        let Some(sent) = self.session.filter(|_| self.in_flight < 2) else {
            return;
        };
        let report = match self.shared().held(sent) {
            Held::Nothing => return,
            Held::Report(report) => report,
            Held::OnDisk if self.hanging.is_some() => return,
            Held::OnDisk => self.disk().spool.read(sent, 500, 200_000).unwrap(),
        };
        if let Some(last) = last_number(&report) {
            self.shared().handed(last);
            self.session = Some(last);
            self.in_flight += 1;
            self.received.push_back(report);
        }
    }

    fn commit(&mut self) {
        let Some(report) = self.received.pop_front() else {
            return;
        };
        let mut entries: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        for gap in &report.gaps {
            entries.extend((gap.first_seq..=gap.last_seq).map(|seq| (seq, None)));
        }
        for sample in &report.samples {
            let id = sample.vitals.as_ref().unwrap().uptime_seconds;
            entries.insert(sample.seq, Some(id));
        }
        for (seq, sample) in entries {
            match self.table.get(&seq) {
                Some(Some(known)) if sample.is_some_and(|id| id != *known) => {
                    panic!("{seq} names sample {known} and sample {sample:?}");
                }
                Some(_) => {}
                None => {
                    assert_eq!(seq, self.watermark() + 1, "a number was skipped");
                    self.table.insert(seq, sample);
                }
            }
        }
        if self.session.is_some() && self.in_flight > 0 {
            self.in_flight -= 1;
            let acked = self.watermark();
            self.shared().change(|inner| inner.numbers.acked(acked));
        }
    }

    fn crash(&mut self, has_landed: bool) {
        let Some(mut disk) = self.disk.take() else {
            return;
        };
        if let (true, Some(Job::Store(entry))) = (has_landed, &self.hanging) {
            let _ = disk.spool.put(entry.seq, entry.at.raw(), &entry.vitals);
        }
        std::mem::forget(disk.spool); // No checkpoint is written.
        self.start();
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Take(count) => (0..count).for_each(|_| self.take()),
            Step::Work => self.work(),
            Step::Fault(fault) => {
                let kinds = [Fault::Frames, Fault::Writes];
                self.fault = fault.map(|kind| kinds[usize::from(kind)]);
                self.disk().spool.fault = self.fault;
            }
            Step::Stall => self.stall(),
            Step::Connect => self.connect(),
            Step::Send => self.send(),
            Step::Commit(count) => (0..count).for_each(|_| self.commit()),
            Step::Crash(has_landed) => self.crash(has_landed),
        }
    }

    /// With a disk that works and a session, everything arrives.
    fn settle(&mut self) {
        self.run(Step::Fault(None));
        while !self.received.is_empty() {
            self.commit();
        }
        self.take();
        self.work();
        self.connect();
        for _ in 0..50 {
            self.work();
            self.send();
            self.commit();
        }
        let last = self.table.last_key_value().and_then(|(_, sample)| *sample);
        assert_eq!(
            last,
            Some(self.samples),
            "the newest sample has not arrived"
        );
    }
}

proptest! {
    #[test]
    fn no_number_names_two_samples(steps in prop::collection::vec(step(), 1..80)) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.settle();
    }
}

/// The gap that leaves a trace must end above a number whose write has begun and does not answer.
#[test]
fn a_write_that_lands_late_does_not_hide_the_gap() {
    use Step::{Commit, Connect, Crash, Send, Stall, Take, Work};
    let before = [Connect, Take(1), Stall, Send, Commit(1), Send];
    let after = [Crash(true), Connect, Take(1), Work, Send];
    let mut model = Model::new();
    for step in before.into_iter().chain(after) {
        model.run(step);
    }
    model.settle();
}
