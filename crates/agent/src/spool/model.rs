//! Tests of the spool against a model: a map from numbers to samples.
//!
//! After every step the test reads the whole spool. Each number above the watermark must
//! occur once; a sample must be the one that was stored under its number; and a sample may
//! be missing only for a reason that the steps so far explain.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use proptest::prelude::*;
use prost::Message;
use svc_proto::v1;

use super::{batch::Bounds, *};

const LIMITS: Limits = Limits {
    bytes: 64 * 1024,
    age: Duration::from_secs(64_000),
};
const INTERVAL: u64 = 30;
const EVERYTHING: usize = usize::MAX / 2;

#[derive(Clone, Debug)]
enum Step {
    Append(u8),
    /// Acknowledges this share of the sent numbers.
    Ack(f64),
    Read(u8, u16),
    Reopen,
    /// The process is killed.
    Crash,
    /// The process is killed during a write, after this share of its bytes.
    Tear(f64),
    /// Flips a bit of a segment.
    Flip(prop::sample::Index, prop::sample::Index),
    FlipCheckpoint(prop::sample::Index),
    /// A Welcome whose watermark differs from the known one by this much.
    Resume(i64),
    Wait(u16),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        6 => (1_u8..40).prop_map(Step::Append),
        2 => (0.0..=1.0).prop_map(Step::Ack),
        2 => (1_u8..80, 1_u16..20_000).prop_map(|(most, bytes)| Step::Read(most, bytes)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        2 => (0.0..1.0).prop_map(Step::Tear),
        1 => any::<(Index, Index)>().prop_map(|(file, bit)| Step::Flip(file, bit)),
        1 => any::<Index>().prop_map(Step::FlipCheckpoint),
        2 => (-60_i64..60).prop_map(Step::Resume),
        1 => (0_u16..2_000).prop_map(Step::Wait),
        1 => Just(Step::Expire),
    ]
}

type Flipped = BTreeSet<(PathBuf, usize)>;

struct Model {
    dir: tempfile::TempDir,
    spool: Option<Spool>,
    /// The samples that must be in the spool, by number: the time of each, which is unique.
    samples: BTreeMap<u64, u64>,
    /// What was read; `None` for a gap.
    reported: BTreeMap<u64, Option<u64>>,
    /// Samples with new numbers. One may occur under two numbers, if the service or the
    /// checkpoint lost the knowledge of the first renumbering.
    renumbered: BTreeSet<u64>,
    sent: u64,
    acked: u64,
    most_acked: u64,
    now: u64,
    /// Frames that may be damaged and are not missed yet.
    damaged: usize,
    /// Up to this number the checkpoint may have lost what it knew.
    forgotten: u64,
    flipped: Flipped,
}

fn vitals(now: u64) -> v1::Vitals {
    let disk = v1::Disk {
        mount_point: "/".repeat((now / INTERVAL % 200) as usize),
        ..Default::default()
    };
    v1::Vitals {
        uptime_seconds: now,
        disks: vec![disk],
        ..Default::default()
    }
}

fn moment(sample: &v1::Sample) -> u64 {
    let now = sample.sampled_at.unwrap().seconds as u64;
    assert_eq!(
        sample.vitals,
        Some(vitals(now)),
        "a sample is never a wrong one"
    );
    now
}

fn newest_file(dir: &Path) -> Option<(PathBuf, u64)> {
    let first = *segment::list(dir).unwrap().last()?;
    let path = segment::path(dir, first);
    let length = fs::metadata(&path).unwrap().len();
    Some((path, length))
}

/// Flips each bit at most once: a second flip would repair it, and the model does not expect
/// a lost sample to return.
fn flip(path: &Path, bit: prop::sample::Index, flipped: &mut Flipped) -> bool {
    let mut bytes = fs::read(path).unwrap();
    if bytes.is_empty() {
        return false;
    }
    let bit = bit.index(bytes.len() * 8);
    if !flipped.insert((path.into(), bit)) {
        return false;
    }
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
    true
}

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spool = Some(Spool::open(dir.path(), LIMITS).unwrap());
        Self {
            dir,
            spool,
            samples: BTreeMap::new(),
            reported: BTreeMap::new(),
            renumbered: BTreeSet::new(),
            sent: 0,
            acked: 0,
            most_acked: 0,
            now: 1_800_000_000,
            damaged: 0,
            forgotten: 0,
            flipped: Flipped::new(),
        }
    }

    fn spool(&mut self) -> &mut Spool {
        self.spool.as_mut().unwrap()
    }

    fn append(&mut self) {
        self.now += INTERVAL;
        let (now, seq) = (self.now, self.spool().next_seq());
        let at = nanos(UNIX_EPOCH + Duration::from_secs(now));
        let vitals = vitals(now).encode_to_vec();
        self.spool().put(seq, at, &vitals).unwrap();
        assert!(
            !self.reported.contains_key(&seq),
            "a reported number is never used again"
        );
        self.samples.insert(seq, now);
    }

    /// The former process may have sent everything on disk, unless it ended while it
    /// renumbered samples.
    fn open(&mut self) {
        let next = self.samples.last_key_value().map_or(1, |(seq, _)| seq + 1);
        let spool = Spool::open(self.dir.path(), LIMITS).unwrap();
        assert!(spool.next_seq() >= next.min(self.acked + 1));
        self.acked = spool.acked_seq();
        let midway = spool.checkpoint.unsent_after;
        self.sent = midway.unwrap_or(spool.next_seq() - 1);
        self.spool = Some(spool);
    }

    /// Drops the spool without the checkpoint that a clean stop writes.
    fn abandon(&mut self) {
        self.spool().checkpoint_stale = false;
        self.spool = None;
    }

    fn crash(&mut self) {
        self.abandon();
        self.open();
    }

    /// The process is killed while it writes, so the last append never returns.
    fn tear(&mut self, share: f64) {
        let before = newest_file(self.dir.path());
        self.append();
        self.abandon();
        self.samples.pop_last();
        let (path, length) = newest_file(self.dir.path()).unwrap();
        let start = before
            .filter(|(file, _)| *file == path)
            .map_or(0, |(_, length)| length);
        let kept = start + ((length - start) as f64 * share) as u64;
        fs::OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(kept)
            .unwrap();
        self.open();
    }

    fn read(&mut self, most: usize, bytes: usize) {
        if self.spool().checkpoint.unsent_after.is_some() {
            self.resume(0); // The protocol begins with Welcome.
        }
        let mut next = self.acked + 1;
        let report = self.spool().read(0, most, bytes).unwrap();
        assert!(report.samples.len() <= most.max(1) && report.gaps.len() <= most.max(1));
        let mut reported: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        reported.extend(
            report
                .samples
                .iter()
                .map(|sample| (sample.seq, Some(moment(sample)))),
        );
        for gap in &report.gaps {
            reported.extend((gap.first_seq..=gap.last_seq).map(|seq| (seq, None)));
        }
        for (seq, sample) in reported {
            assert_eq!(seq, next, "a report has no hole");
            let before = self.reported.insert(seq, sample).unwrap_or(sample);
            assert!(
                sample.is_none() || before == sample,
                "a reported answer does not change"
            );
            next += 1;
        }
        assert!(
            next > self.acked + 1 || next == self.spool().next_seq(),
            "reading makes progress"
        );
        self.sent = self.sent.max(next - 1);
    }

    fn ack(&mut self, share: f64) {
        let up_to = self.acked + ((self.sent.saturating_sub(self.acked)) as f64 * share) as u64;
        self.spool().acked(up_to);
        self.acked = self.acked.max(up_to);
        self.most_acked = self.most_acked.max(self.acked);
    }

    fn resume(&mut self, more: i64) {
        let acked = self.acked.saturating_add_signed(more);
        let was_sent = self.sent;
        self.spool().resume(acked, 0).unwrap();
        assert!(self.spool().next_seq() > acked);
        assert_eq!(self.spool().acked_seq(), acked);
        if acked > was_sent {
            self.find_again(was_sent, acked);
            self.sent = acked;
        }
        self.acked = acked;
        self.most_acked = self.most_acked.max(acked);
    }

    /// Looks up the new numbers of the samples; none may be missing.
    fn find_again(&mut self, sent: u64, acked: u64) {
        let taken: BTreeMap<u64, u64> = self
            .samples
            .extract_if(sent + 1..=acked, |_, _| true)
            .collect();
        let last = self.spool().next_seq() - 1;
        let all = Bounds {
            entries: EVERYTHING,
            bytes: EVERYTHING,
            last,
        };
        let found = self.spool().collect(acked, all).unwrap().report.samples;
        let new: BTreeMap<u64, u64> = found.iter().map(|s| (moment(s), s.seq)).collect();
        self.renumbered.extend(taken.values());
        for moment in taken.into_values() {
            match new.get(&moment) {
                Some(seq) => drop(self.samples.insert(*seq, moment)),
                None => self.damaged = self.damaged.checked_sub(1).expect("a sample is lost"),
            }
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Append(count) => (0..count).for_each(|_| self.append()),
            Step::Ack(share) => self.ack(share),
            Step::Read(most, bytes) => self.read(most.into(), bytes.into()),
            Step::Reopen => {
                self.spool = None;
                self.open();
            }
            Step::Crash => self.crash(),
            Step::Tear(share) => self.tear(share),
            Step::Flip(file, bit) => {
                let files = segment::list(self.dir.path()).unwrap();
                if !files.is_empty() {
                    let path = segment::path(self.dir.path(), files[file.index(files.len())]);
                    self.damaged += usize::from(flip(&path, bit, &mut self.flipped));
                    self.crash();
                }
            }
            Step::FlipCheckpoint(bit) => {
                flip(&self.dir.path().join("books"), bit, &mut self.flipped);
                self.crash();
                self.forgotten = self.most_acked;
                let next = self.spool().next_seq();
                self.reported.split_off(&next);
            }
            Step::Resume(more) => self.resume(more),
            Step::Wait(intervals) => self.now += INTERVAL * u64::from(intervals),
            Step::Expire => {
                let now = UNIX_EPOCH + Duration::from_secs(self.now);
                self.spool().expire(Some(now));
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let (acked, last) = (self.spool().acked_seq(), self.spool().next_seq() - 1);
        let all = Bounds {
            entries: EVERYTHING,
            bytes: EVERYTHING,
            last,
        };
        let report = self.spool().collect(acked, all).unwrap().report;
        let usage = self.spool().usage();
        assert!(usage.bytes <= LIMITS.bytes, "{usage:?}");
        assert_eq!(usage.samples, report.samples.len() as u64);
        assert_eq!(usage.samples + usage.given_up, last - acked);
        let mut answered = 0;
        for sample in &report.samples {
            let (found, expected) = (moment(sample), self.samples.get(&sample.seq));
            let is_copy = expected.is_none() && self.renumbered.contains(&found);
            assert!(is_copy || expected == Some(&found), "{}", sample.seq);
            answered += 1;
        }
        for gap in &report.gaps {
            answered += gap.last_seq - gap.first_seq + 1;
            self.check_gap(gap, &usage);
        }
        assert_eq!(answered, last - acked, "every number has one answer");
    }

    /// A sample may be missing only for a reason that the steps so far explain.
    fn check_gap(&mut self, gap: &v1::Gap, usage: &Usage) {
        let missing: Vec<u64> = self
            .samples
            .range(gap.first_seq..=gap.last_seq)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in missing {
            let taken = self.samples.remove(&seq).unwrap();
            let segment = LIMITS.segment_bytes();
            let allowed = match gap.reason.as_str() {
                "spool full" => usage.bytes + 3 * segment > LIMITS.bytes,
                "too old" => taken + LIMITS.age.as_secs() < self.now,
                "acknowledged before and no longer kept" => seq <= self.most_acked,
                "spool damaged" if seq <= self.forgotten => true,
                "spool damaged" if self.damaged > 0 => {
                    self.damaged -= 1;
                    true
                }
                _ => false,
            };
            assert!(allowed, "{seq} is missing: {gap:?}, {usage:?}");
        }
    }
}

proptest! {
    #[test]
    fn every_number_is_a_sample_or_an_explained_gap(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
    }

    /// Whatever the folder contains, the spool opens, answers for every number, and works.
    #[test]
    fn the_spool_works_whatever_is_on_disk(
        files in prop::collection::vec((1_u64..200, content()), 0..6),
        checkpoint in content(),
        acked in 0_u64..300,
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("books"), checkpoint).unwrap();
        for (first, bytes) in files {
            fs::write(segment::path(dir.path(), first), bytes).unwrap();
        }
        let mut spool = Spool::open(dir.path(), LIMITS).unwrap();
        spool.resume(acked, 0).unwrap();
        let seq = spool.next_seq();
        spool.put(seq, 0, &vitals(7).encode_to_vec()).unwrap();
        let (mut next, mut last) = (spool.acked_seq() + 1, None);
        while next <= seq {
            let report = spool.read(next - 1, 50, 10_000).unwrap();
            let count = report.gaps.iter().map(|gap| gap.last_seq - gap.first_seq + 1).sum::<u64>();
            next += count + report.samples.len() as u64;
            last = report.samples.last().cloned().or(last);
        }
        prop_assert_eq!(last.map(|sample| (sample.seq, sample.vitals)), Some((seq, Some(vitals(7)))));
        spool.expire(Some(UNIX_EPOCH + LIMITS.age * 2));
        prop_assert_eq!(spool.usage().samples, 0);
    }
}

/// Random bytes, also between valid frames.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let noise = || prop::collection::vec(any::<u8>(), 0..300);
    let good = (1_u64..250, 0_i64..1_000)
        .prop_map(|(seq, at)| frame::encode(seq, at, &vitals(seq).encode_to_vec()).unwrap());
    let pieces = prop::collection::vec(prop_oneof![2 => good, 1 => noise()], 0..12);
    prop_oneof![2 => pieces.prop_map(|pieces| pieces.concat()), 1 => noise()]
}
