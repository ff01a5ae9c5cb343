//! That every line of a `must` can fail.

use super::*;
use crate::{
    run::audit::Tables,
    tally::{Clocks, Counts},
};

fn everything() -> Must {
    let second = Some(Duration::from_secs(1));
    Must {
        connected_within: second,
        back_within: second,
        ack_p99: second,
        enrol_p99: second,
        offline_at_most: Some(0),
        streams_kept: true,
        no_errors: true,
        silent_while_away: true,
        copies_refused: true,
        rejections: Some(false),
        exit_within: second,
        backfilled: Some(2),
        statements_at_most: Some(10.0),
    }
}

fn good() -> Seen {
    let counts = Counts {
        streams: 5,
        acked: 10,
        copies_refused: 1,
        ..Counts::default()
    };
    let totals = Totals {
        counts,
        errors: Default::default(),
        clocks: Clocks::default(),
        window: Clocks::default(),
        cpu_us: 0,
        rss_kib: 0,
        age: Duration::ZERO,
    };
    let books = Books {
        agents: 5,
        expected: 5,
        taken: 10,
        acked: 10,
        tables: Some(Tables::default()),
        ..Books::default()
    };
    Seen {
        agents: 5,
        connected: Duration::ZERO,
        slowest_back: Duration::ZERO,
        slowest_exit: Duration::ZERO,
        acked_while_away: 0,
        copies: 1,
        offline: 0,
        statements: 20,
        totals,
        books,
    }
}

fn failures(change: impl FnOnce(&mut Seen)) -> Vec<&'static str> {
    let mut seen = good();
    change(&mut seen);
    let checks = everything().checks(&seen);
    assert_eq!(checks.len(), everything().lines() + 1);
    let failed = checks.iter().filter(|check| !check.held());
    failed.map(|check| check.name).collect()
}

const SLOW: Duration = Duration::from_secs(2);

type Fault = fn(&mut Seen);

const FAULTS: [(&str, Fault); 13] = [
    ("all connected", |seen| seen.connected = SLOW),
    ("all back and acknowledged", |seen| seen.slowest_back = SLOW),
    ("SIGTERM to exit", |seen| seen.slowest_exit = SLOW),
    ("acknowledgement p99", |seen| {
        seen.totals.window.ack.record_duration(SLOW);
    }),
    ("Register to JWT p99", |seen| {
        seen.totals.clocks.enrol.record_duration(SLOW);
    }),
    ("went offline", |seen| seen.offline = 1),
    ("samples rejected", |seen| seen.totals.counts.rejected = 1),
    ("every stream kept", |seen| seen.totals.counts.streams = 6),
    ("no errors", |seen| {
        seen.totals.errors.insert("x".into(), 1);
    }),
    ("acknowledged while the database was away", |seen| {
        seen.acked_while_away = 1;
    }),
    ("copies refused", |seen| {
        seen.totals.counts.copies_welcomed = 1;
    }),
    ("statements a sample", |seen| seen.statements = 101),
    ("backfilled", |seen| seen.totals.counts.acked = 9),
];

#[test]
fn each_line_fails_by_itself_and_no_other_with_it() {
    assert_eq!(failures(|_| {}), [""; 0]);
    for (name, fault) in FAULTS {
        assert_eq!(failures(fault), [name]);
    }
}

#[test]
fn the_books_are_always_asked_for() {
    for fault in [
        |books: &mut Books| books.broken = 1,
        |books: &mut Books| books.agents = 4,
        |books: &mut Books| books.open = 1,
        |books: &mut Books| books.acked = 0,
        |books: &mut Books| books.tables = None,
    ] {
        assert_eq!(
            failures(|seen| fault(&mut seen.books)),
            ["the books balance"]
        );
    }
}
