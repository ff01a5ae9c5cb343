//! Every expectation can fail, and only by its own fault.

use svc_testkit::Tables;

use super::*;
use crate::stats::Counts;

fn all_expectations() -> Expectations {
    let second = Some(Duration::from_secs(1));
    Expectations {
        connected_within: second,
        back_within: second,
        ack_p99: second,
        ack_slowest: Some(SLOW * 2),
        enrol_p99: second,
        offline_at_most: Some(0),
        streams_kept: true,
        no_errors: true,
        silent_while_away: true,
        copies_refused: true,
        rejections: Some(false),
        exit_within: second,
        start_within: second,
        backfilled: Some(2),
        statements_at_most: Some(10.0),
        memory_at_most: Some(2.0),
    }
}

pub fn good_run() -> Observations {
    let counts = Counts {
        streams: 5,
        acked: 10,
        copies_refused: 1,
        ..Counts::default()
    };
    let totals = Totals {
        counts,
        ..Totals::default()
    };
    let books = AuditReport {
        agents: 5,
        expected: 5,
        taken: 10,
        acked: 10,
        tables: Some(Tables::default()),
        ..AuditReport::default()
    };
    Observations {
        agents: 5,
        copies: 1,
        statements: 20,
        memory: 150,
        documented_memory: 100,
        totals,
        books,
        ..Observations::default()
    }
}

fn failures(change: impl FnOnce(&mut Observations)) -> Vec<&'static str> {
    let mut observed = good_run();
    change(&mut observed);
    let checks = all_expectations().checks(&observed);
    assert_eq!(
        checks.len(),
        FAULTS.len() + 1,
        "one for each fault, and the books"
    );
    let failed = checks.iter().filter(|check| !check.held());
    failed.map(|check| check.name).collect()
}

const SLOW: Duration = Duration::from_secs(2);

type Fault = fn(&mut Observations);

const FAULTS: [(&str, Fault); 16] = [
    ("all connected", |observed| observed.connected = SLOW),
    ("all back and acknowledged", |observed| {
        observed.slowest_back = SLOW;
    }),
    ("SIGTERM to exit", |observed| observed.slowest_exit = SLOW),
    ("all serve again", |observed| observed.slowest_start = SLOW),
    ("acknowledgement p99", |observed| {
        observed.totals.window.ack.record_duration(SLOW);
    }),
    ("slowest acknowledgement", |observed| {
        let ack = &mut observed.totals.window.ack;
        (0..1000).for_each(|_| ack.record_duration(Duration::ZERO));
        ack.record_duration(SLOW * 3);
    }),
    ("Register to JWT p99", |observed| {
        observed.totals.latencies.enrol.record_duration(SLOW);
    }),
    ("went offline", |observed| observed.offline = 1),
    ("samples rejected", |observed| {
        observed.totals.counts.rejected = 1;
    }),
    ("every stream kept", |observed| {
        observed.totals.counts.streams = 6;
    }),
    ("no errors", |observed| {
        observed.totals.errors.insert("x".into(), 1);
    }),
    ("acknowledged while the database was down", |observed| {
        observed.acked_while_down = 1;
    }),
    ("copies refused", |observed| {
        observed.totals.counts.copies_welcomed = 1;
    }),
    ("statements per sample", |observed| {
        observed.statements = 101;
    }),
    ("memory of an instance", |observed| observed.memory = 201),
    ("backfilled", |observed| observed.totals.counts.acked = 9),
];

#[test]
fn each_fault_fails_exactly_one_expectation() {
    assert_eq!(failures(|_| {}), [""; 0]);
    for (name, fault) in FAULTS {
        assert_eq!(failures(fault), [name]);
    }
}

#[test]
fn the_books_are_always_checked() {
    for fault in [
        |books: &mut AuditReport| books.broken = 1,
        |books: &mut AuditReport| books.agents = 4,
        |books: &mut AuditReport| books.open = 1,
        |books: &mut AuditReport| books.acked = 0,
        |books: &mut AuditReport| books.tables = None,
    ] {
        assert_eq!(
            failures(|observed| fault(&mut observed.books)),
            ["the books balance"]
        );
    }
}
