//! A full disk: samples become gaps that survive a crash, and the spool continues when there is
//! room.

use std::{fs, path::Path, process::Command};

use svc_agent::spool::{Limits, Spool, SpoolError};

use crate::spool_writer::{LIMITS, append, command, waiting};

/// A small file system, unmounted at the end of the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        disk.mounted(&["-t", "tmpfs", "-o", "size=96k", "tmpfs"]);
        disk
    }

    fn mounted(&self, options: &[&str]) {
        let mut mount = Command::new("mount");
        let status = mount.args(options).arg(self.path()).status();
        assert!(status.unwrap().success(), "mount {options:?}");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// A moment with the largest sample: it does not fit once another one did not.
const LARGE: u64 = 96;

/// Appends until the disk is full.
fn fill(spool: &mut Spool) -> u64 {
    for _ in 0..10_000 {
        match append(spool, LARGE) {
            Ok(seq) => assert_eq!(seq, spool.next_seq() - 1),
            Err(SpoolError::DiskFull(_)) => return spool.next_seq() - 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("the disk is never full");
}

#[test]
#[ignore = "needs root: run by make test-root"]
fn a_full_disk_makes_gaps_that_survive_a_crash_and_end_when_there_is_room() {
    let disk = SmallDisk::mount();
    let dir = disk.path().join("spool");
    let mut spool = Spool::open(&dir, Limits::default()).unwrap();
    let first_lost = fill(&mut spool);
    for _ in 0..5 {
        assert!(matches!(
            append(&mut spool, LARGE),
            Err(SpoolError::DiskFull(_))
        ));
    }
    let gaps = spool.read(first_lost - 1, 10, 9_999).unwrap().gaps;
    let expected = (first_lost, first_lost + 5, "disk full".to_owned());
    assert_eq!(
        (gaps[0].first_seq, gaps[0].last_seq, gaps[0].reason.clone()),
        expected
    );

    std::mem::forget(spool); // a crash
    let mut spool = Spool::open(&dir, Limits::default()).unwrap();
    assert_eq!(
        spool.next_seq(),
        first_lost + 6,
        "the gap was kept on the full disk"
    );
    assert_eq!(spool.read(first_lost - 1, 10, 9_999).unwrap().gaps, gaps);
    assert_eq!(waiting(&spool).len() as u64, first_lost + 5);
    assert_eq!(spool.usage().given_up, 6);

    disk.mounted(&["-o", "remount,size=1m"]);
    assert_eq!(append(&mut spool, 77).unwrap(), first_lost + 6);
    assert_eq!(waiting(&spool).last(), Some(&(first_lost + 6, Some(77))));
}

#[test]
#[ignore = "needs root: run by make test-root"]
fn a_spool_opens_on_a_full_disk() {
    let disk = SmallDisk::mount();
    let dir = disk.path().join("spool");
    fs::create_dir(&dir).unwrap();
    let ballast = disk.path().join("ballast");
    assert!(
        fs::write(&ballast, vec![1; 200 * 1024]).is_err(),
        "the disk is full now"
    );
    let mut spool = Spool::open(&dir, LIMITS).unwrap();
    assert!(matches!(
        append(&mut spool, 1),
        Err(SpoolError::DiskFull(_))
    ));
    assert_eq!(waiting(&spool), [(1, None)]);
    fs::remove_file(ballast).unwrap();
    assert_eq!(append(&mut spool, 2).unwrap(), 2);
    assert_eq!(waiting(&spool), [(1, None), (2, Some(2))]);
}

/// Needs no root. With SIGXFSZ ignored, the limit is an error of the write.
#[test]
fn a_file_size_limit_counts_as_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"trap '' XFSZ; exec prlimit --fsize=9000 "$@""#;
    let process = command(&["sh", "-c", script, "sh"], dir.path(), 300, LIMITS).output();
    let process = process.unwrap();
    let output = String::from_utf8(process.stdout).unwrap();
    assert!(process.status.success(), "the process failed: {output}");
    assert!(
        output.contains("failed ") && output.contains("the disk is full"),
        "{output}"
    );
    let spool = Spool::open(dir.path(), LIMITS).unwrap();
    assert_eq!(
        spool.next_seq(),
        301,
        "a number is used up whether or not it is stored"
    );
    let missing = waiting(&spool)
        .iter()
        .filter(|(_, moment)| moment.is_none())
        .count();
    assert_eq!(spool.usage().given_up, missing as u64);
    assert!(missing > 0);
}
