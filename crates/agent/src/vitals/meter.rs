//! Measures file systems on threads of their own, because `statvfs` hangs with its device.
//!
//! One thread takes the file systems of a sample one after another. Whenever none of them has answered for a moment, a further
//! thread takes the next one, so no file system waits behind another that hangs. A sample waits for a second in all. Those
//! that have not answered by then are named, and each keeps its thread. While it does, it is not asked again.
//!
//! So there is one thread for each file system that hangs, and never more than [`MOST_THREADS`]: mounts come and go, and each
//! may leave a thread behind. Beyond that, those that are left are named without being asked.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;
use svc_proto::{contract::limits::MAX_DISKS, v1::Disk};

use super::disks::{self, Mount};
use crate::sync::locked;

/// How long all file systems of a sample may take together.
const BUDGET: Duration = Duration::from_secs(1);
/// After so long without an answer a further thread takes the next file system. All of them get their turn within the budget.
const MOMENT: Duration = Duration::from_millis(10);
const MOST_THREADS: usize = MAX_DISKS;
const _: () = assert!(MOMENT.as_millis() * (MAX_DISKS as u128) < BUDGET.as_millis());
/// A thread makes one system call and no more.
const STACK: usize = 64 * 1024;

pub(super) type Answer = Result<Option<Disk>, Errno>;
type Queue = Arc<Mutex<VecDeque<Mount>>>;

#[derive(Debug)]
pub(super) struct Meter {
    measure: fn(&Mount) -> Answer,
    budget: Duration,
    /// Asked and not answered yet. A thread waits for each of them.
    hung: Vec<Mount>,
    answer: Sender<(Mount, Answer)>,
    /// Also of earlier samples. It holds one answer of each thread at most, besides those of the sample at hand.
    answers: Receiver<(Mount, Answer)>,
}

#[derive(Debug, Default)]
pub(super) struct Measured {
    pub disks: Vec<Disk>,
    /// Mount points.
    pub unreadable: Vec<String>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::with(disks::measure, BUDGET)
    }
}

impl Meter {
    pub fn with(measure: fn(&Mount) -> Answer, budget: Duration) -> Self {
        let (answer, answers) = mpsc::channel();
        Self {
            measure,
            budget,
            hung: Vec::new(),
            answer,
            answers,
        }
    }

    /// Beyond the limit, the file systems that were mounted last are left out.
    pub fn measure(&mut self, mut mounts: Vec<Mount>) -> Measured {
        mounts.truncate(MAX_DISKS);
        while let Ok((mount, _)) = self.answers.try_recv() {
            remove(&mut self.hung, &mount);
        }
        let is_hung = |mount: &Mount| self.hung.iter().any(|hung| hung.is_same(mount));
        let waiting = mounts.iter().filter(|mount| !is_hung(mount));
        let answers = self.ask(waiting.cloned().collect());
        let mut measured = Measured::default();
        for mount in mounts {
            match answers
                .iter()
                .find(|(answered, _)| answered.is_same(&mount))
            {
                Some((_, Ok(disk))) => measured.disks.extend(disk.clone()),
                Some((_, Err(_))) | None => measured.unreadable.push(mount.place()),
            }
        }
        measured
    }

    /// Asks all of these, and returns the answers within the budget. Late answers to an earlier sample may be among them.
    fn ask(&mut self, mut waiting: Vec<Mount>) -> Vec<(Mount, Answer)> {
        let deadline = Instant::now() + self.budget;
        let queue = Arc::new(Mutex::new(VecDeque::from(waiting.clone())));
        let mut answers = Vec::new();
        self.start(&queue);
        while !waiting.is_empty() && Instant::now() < deadline {
            match self.answers.recv_timeout(MOMENT) {
                Ok((mount, answer)) => {
                    remove(&mut waiting, &mount);
                    remove(&mut self.hung, &mount);
                    answers.push((mount, answer));
                }
                Err(_) => self.start(&queue),
            }
        }
        let unasked = std::mem::take(&mut *locked(&queue));
        waiting.retain(|mount| !unasked.iter().any(|one| one.is_same(mount)));
        self.hung.extend(waiting);
        answers
    }

    /// Starts a thread that asks until the queue is empty. Without the thread, what is in the queue stays unasked.
    fn start(&self, queue: &Queue) {
        // Each thread of this sample holds the queue, as we do.
        let threads = self.hung.len() + Arc::strong_count(queue) - 1;
        if locked(queue).is_empty() || threads >= MOST_THREADS {
            return;
        }
        let (queue, answer, measure) = (queue.clone(), self.answer.clone(), self.measure);
        let measuring = move || {
            loop {
                let next = locked(&queue).pop_front();
                let Some(mount) = next else { return };
                let answered = measure(&mount);
                drop(answer.send((mount, answered))); // The meter may be gone.
            }
        };
        let thread = thread::Builder::new().name("statvfs".into());
        drop(thread.stack_size(STACK).spawn(measuring));
    }
}

fn remove(mounts: &mut Vec<Mount>, mount: &Mount) {
    mounts.retain(|one| !one.is_same(mount));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    fn mounts(points: &[String]) -> Vec<Mount> {
        let line = |(index, point): (usize, &String)| {
            format!("{index} 0 8:{index} / {point} rw - ext4 /dev/sd{index} rw\n")
        };
        let text: String = points.iter().enumerate().map(line).collect();
        let (_dir, machine) = machine(&[("/proc/self/mountinfo", &text)]);
        disks::mounts(&machine)
    }

    fn many(name: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{name}{number}")).collect()
    }

    /// Hangs for longer than the test, or for a while, refuses, or answers, as the name of the mount point says.
    fn measure(mount: &Mount) -> Answer {
        let place = mount.place();
        let hangs = [("/hangs", 3_600_000), ("/pauses", 3000), ("/slow", 400)];
        for (_, millis) in hangs.iter().filter(|(name, _)| place.starts_with(name)) {
            thread::sleep(Duration::from_millis(*millis));
        }
        match place.starts_with("/refused") {
            true => Err(Errno::ACCESS),
            false => Ok(Some(Disk {
                mount_point: place,
                ..Disk::default()
            })),
        }
    }

    fn points(measured: &Measured) -> Vec<&str> {
        let disks = measured.disks.iter();
        disks.map(|disk| disk.mount_point.as_str()).collect()
    }

    /// Looks until a look is as expected: a busy machine may need more than one.
    fn becomes(meter: &mut Meter, all: &[Mount], expected: impl Fn(&Measured) -> bool) {
        let look = |_| {
            thread::sleep(Duration::from_millis(50));
            expected(&meter.measure(all.to_vec()))
        };
        assert!((0..1000).any(look), "not within 1000 looks");
    }

    #[test]
    fn hung_file_systems_are_named_and_all_others_are_measured() {
        let mut meter = Meter::with(measure, BUDGET);
        let hung = many("/hangs", 12);
        let others = ["/", "/home", "/refused"].map(String::from);
        let all = mounts(&[&hung[..], &others].concat());
        let named = [&hung[..], &others[2..]].concat();
        becomes(&mut meter, &all, |measured| {
            points(measured) == ["/", "/home"] && measured.unreadable == named
        });
        becomes(&mut meter, &all, |measured| {
            points(measured) == ["/", "/home"]
        });
        assert_eq!(meter.hung.len(), hung.len(), "one thread waits for each");
    }

    #[test]
    fn a_file_system_that_hung_is_measured_when_it_answers_again() {
        let mut meter = Meter::with(measure, Duration::from_millis(100));
        let all = mounts(&["/".into(), "/pauses".into()]);
        assert_eq!(meter.measure(all.clone()).unreadable, ["/pauses"]);
        assert_eq!(meter.hung.len(), 1);
        meter.budget = Duration::from_secs(60);
        becomes(&mut meter, &all, |measured| {
            points(measured) == ["/", "/pauses"]
        });
        assert!(meter.hung.is_empty());
    }

    /// One after another they would take 25 s.
    fn slow_file_systems_take_at_most(limit: Duration) {
        let mut meter = Meter::with(measure, BUDGET);
        let all = mounts(&many("/slow", MAX_DISKS));
        let began = Instant::now();
        let measured = meter.measure(all);
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
        let seen = measured.disks.len() + measured.unreadable.len();
        assert_eq!(seen, MAX_DISKS, "each is measured or named");
    }

    #[test]
    fn slow_file_systems_do_not_add_up() {
        slow_file_systems_take_at_most(10 * BUDGET);
    }

    #[test]
    #[ignore = "strict: run by make chaos"]
    fn slow_file_systems_take_a_second() {
        slow_file_systems_take_at_most(Duration::from_millis(1500));
    }

    #[test]
    fn the_number_of_threads_is_bounded_while_mounts_come_and_go() {
        let mut meter = Meter::with(measure, BUDGET);
        let all = mounts(&many("/hangs", 2 * MAX_DISKS));
        for some in all.chunks(MAX_DISKS) {
            let measured = meter.measure(some.to_vec());
            assert_eq!(measured.unreadable.len(), MAX_DISKS);
        }
        assert!(meter.hung.len() <= MOST_THREADS, "{}", meter.hung.len());
    }
}
