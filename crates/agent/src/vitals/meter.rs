//! Measures file systems on a thread of its own, because `statvfs` hangs with its device.
//!
//! One thread measures all file systems of a sample and ends. If one of them does not answer,
//! the thread is left behind with it, and a second thread measures the rest. While a thread
//! is left behind, its file system is not asked again. So there is at most one such thread for
//! each file system, and never more than [`MOST_STUCK`]; beyond that, the remaining file systems
//! count as unreadable without being asked.

use std::{
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::io::Errno;
use svc_proto::{contract::limits::MAX_DISKS, v1::Disk};

use super::disks::{self, Mount};

/// How long one file system may take. It is waited for once: while it hangs, it is left out.
const PATIENCE: Duration = Duration::from_millis(500);
const MOST_STUCK: usize = 4;

type Answer = Result<Option<Disk>, Errno>;

#[derive(Debug)]
pub(super) struct Meter {
    measure: fn(&Mount) -> Answer,
    /// The file systems that do not answer, with the threads that wait for them.
    stuck: Vec<(Mount, JoinHandle<()>)>,
}

#[derive(Debug, Default)]
pub(super) struct Measured {
    pub disks: Vec<Disk>,
    /// Mount points.
    pub unreadable: Vec<String>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::with(disks::measure)
    }
}

impl Meter {
    fn with(measure: fn(&Mount) -> Answer) -> Self {
        Self {
            measure,
            stuck: Vec::new(),
        }
    }

    /// Beyond the limit, the file systems that were mounted last are left out.
    pub fn measure(&mut self, mounts: Vec<Mount>) -> Measured {
        self.stuck.retain(|(_, thread)| !thread.is_finished());
        let mut measured = Measured::default();
        let is_stuck = |mount: &Mount| self.stuck.iter().any(|(stuck, _)| stuck.is_same(mount));
        let (unreadable, mut rest): (Vec<Mount>, Vec<Mount>) =
            mounts.into_iter().take(MAX_DISKS).partition(is_stuck);
        measured
            .unreadable
            .extend(unreadable.iter().map(Mount::place));
        while !rest.is_empty() {
            rest = self.measure_some(rest, &mut measured);
        }
        measured
    }

    /// Measures until one does not answer; returns those that follow it.
    fn measure_some(&mut self, mut mounts: Vec<Mount>, measured: &mut Measured) -> Vec<Mount> {
        let started = match self.stuck.len() < MOST_STUCK {
            true => self.start(mounts.clone()),
            false => None,
        };
        let Some((thread, answers)) = started else {
            measured.unreadable.extend(mounts.iter().map(Mount::place));
            return Vec::new();
        };
        for index in 0..mounts.len() {
            match answers.recv_timeout(PATIENCE) {
                Ok(Ok(disk)) => measured.disks.extend(disk),
                Ok(Err(_)) => measured.unreadable.push(mounts[index].place()),
                Err(_) => {
                    let rest = mounts.split_off(index + 1);
                    measured.unreadable.push(mounts[index].place());
                    self.stuck.push((mounts.swap_remove(index), thread));
                    return rest;
                }
            }
        }
        Vec::new()
    }

    fn start(&self, mounts: Vec<Mount>) -> Option<(JoinHandle<()>, Receiver<Answer>)> {
        let (answer, answers) = mpsc::channel();
        let measure = self.measure;
        let measuring = move || {
            for mount in mounts {
                if answer.send(measure(&mount)).is_err() {
                    return; // Nobody waits any more.
                }
            }
        };
        let thread = thread::Builder::new().name("statvfs".into());
        Some((thread.spawn(measuring).ok()?, answers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;

    fn mounts(points: &[&str]) -> Vec<Mount> {
        let line = |(index, point): (usize, &&str)| {
            format!("{index} 0 8:{index} / {point} rw - ext4 /dev/sd{index} rw\n")
        };
        let text: String = points.iter().enumerate().map(line).collect();
        let (_dir, machine) = machine(&[("/proc/self/mountinfo", &text)]);
        disks::mounts(&machine)
    }

    /// Hangs for a while, refuses, or answers, as the name of the mount point says.
    fn measure(mount: &Mount) -> Answer {
        let place = mount.place();
        if place.contains("hangs") {
            thread::sleep(Duration::from_secs(3));
        }
        match place.contains("refused") {
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

    #[test]
    fn a_file_system_that_hangs_costs_one_thread_and_is_asked_again_when_it_answers() {
        let mut meter = Meter::with(measure);
        let all = mounts(&["/", "/hangs", "/refused", "/home"]);
        for _ in 0..3 {
            let measured = meter.measure(all.clone());
            assert_eq!(points(&measured), ["/", "/home"]);
            let mut unreadable = measured.unreadable;
            unreadable.sort();
            assert_eq!(unreadable, ["/hangs", "/refused"]);
            assert_eq!(meter.stuck.len(), 1, "one thread waits");
        }
        let (_, thread) = meter.stuck.pop().unwrap();
        thread.join().unwrap();
        meter.measure(all);
        assert_eq!(meter.stuck.len(), 1, "it was asked again");
    }

    #[test]
    fn the_number_of_threads_that_wait_is_bounded() {
        let mut meter = Meter::with(measure);
        let names: Vec<String> = (0..7).map(|number| format!("/hangs{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let measured = meter.measure(mounts(&names));
        assert_eq!(
            (measured.unreadable.len(), meter.stuck.len()),
            (7, MOST_STUCK)
        );
    }
}
