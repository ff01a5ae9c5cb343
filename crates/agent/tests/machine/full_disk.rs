//! A limit on the size of files, which counts as a full disk. `it/disks.rs` fills a real one.

use svc_agent::spool::Spool;

use crate::spool_writer::{LIMITS, command, waiting};

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
