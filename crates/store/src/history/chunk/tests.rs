use super::*;

/// A sample of agent 1 without parts, this many seconds after the epoch.
pub(crate) fn row(second: i64, seq: i64) -> LooseSample {
    LooseSample {
        agent_no: 1,
        shape: Uuid::nil(),
        at_micros: second * 1_000_000,
        seq,
        reals: [1.5, 0.25, 0.5, 1.0],
        memory_used_bytes: 100,
        memory_total_bytes: 200,
        swap_used_bytes: 10,
        swap_total_bytes: 20,
        uptime_seconds: 1000 + second,
        process_count: 7,
        network_rx_bytes: 10 * second,
        network_tx_bytes: second,
        parts: vec![],
    }
}

fn with(parts: &[i64], row: LooseSample) -> LooseSample {
    let parts = parts.to_vec();
    LooseSample { parts, ..row }
}

fn only(rows: Vec<LooseSample>) -> Chunk {
    let all = chunks(rows).unwrap();
    assert_eq!(all.len(), 1);
    all.into_values().next().unwrap()
}

#[test]
fn columns_are_in_the_order_of_the_numbers() {
    let rows = [(1800, 2, [3, MOST]), (0, 3, [5, 0]), (3599, 1, [7, 1])];
    let rows = rows.map(|(second, seq, parts)| with(&parts, row(second, seq)));
    let chunk = only(rows.to_vec());
    assert_eq!(chunk.seq, [1, 2, 3]);
    assert_eq!(chunk.at, [1_799_000_000, 0, -1_800_000_000]);
    assert_eq!(chunk.uptime_seconds, [4599, 2800, 1000]);
    assert_eq!(chunk.reals, [[1.5; 3], [0.25; 3], [0.5; 3], [1.0; 3]]);
    assert_eq!(chunk.parts, [[7, 3, 5], [1, MOST, 0]]);
    let times = chunk.at.iter().map(|at| at_micros(0, *at));
    assert!(times.eq([3_599_000_000, 1_800_000_000, 0]));
    assert_eq!(newest(&chunk.at), Some(0));
    assert_eq!(newest(&[3, 9, -5, 9, 8]), Some(3), "the higher number");
}

#[test]
fn a_number_that_is_there_twice_is_kept_once() {
    let rows = |seqs: &[i64]| seqs.iter().map(|seq| row(seq * 2, *seq)).collect();
    let expected = only(rows(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(only(rows(&[3, 1, 2, 3, 6, 5, 6, 4, 1])), expected);
    for (mine, theirs) in [
        (&[1, 2, 3][..], &[4, 5, 6][..]),
        (&[4, 5, 6], &[1, 2, 3]),
        (&[1, 3, 5], &[2, 3, 4, 6]),
        (&[2, 6], &[1, 2, 3, 4, 5]),
        (&[1, 2, 3, 4, 5, 6], &[1, 6]),
    ] {
        assert_eq!(only(rows(mine)).merge(&only(rows(theirs))), expected);
    }
    let (known, again) = (only(vec![row(5, 1)]), only(vec![row(9, 1)]));
    assert_eq!(known.clone().merge(&again), known, "what is stored stays");
}

#[test]
fn consecutive_numbers_are_stored_as_the_first_alone() {
    for (seq, stored) in [
        (vec![5], None),
        (vec![5, 6, 7], None),
        (vec![5, 6, 8], Some(vec![0, 1, 3])),
        (vec![1, i64::MAX], Some(vec![0, i64::MAX - 1])),
        (vec![i64::MAX - 1, i64::MAX], None),
    ] {
        assert_eq!(seqs(seq[0], stored.clone(), seq.len()), seq);
        let chunk = Chunk {
            seq,
            ..Chunk::default()
        };
        assert_eq!(chunk.stored_seqs(), (chunk.seq[0], stored));
    }
}

#[test]
fn uptime_is_stored_without_the_seconds_of_the_hour() {
    let at = [-1_800_000_000, -1_999_999, 0, 999_999, 1_799_999_999];
    for uptime_seconds in [0, 1, 5000, MOST - 1, MOST] {
        let chunk = Chunk {
            at: at.to_vec(),
            uptime_seconds: vec![uptime_seconds; 5],
            ..Chunk::default()
        };
        let stored = chunk.stored_uptime();
        let expected = [1800, 1, 0, 0, -1799].map(|less| uptime_seconds + less);
        assert_eq!(stored, expected);
        let absolute = stored.into_iter().zip(at);
        let absolute = absolute.map(|(stored, at)| uptime(stored, at));
        assert!(absolute.eq([uptime_seconds; 5]));
    }
}

#[test]
fn what_no_chunk_can_be_is_damaged() {
    for parts in [&[][..], &[1, 2], &[-1], &[MOST + 1]] {
        let rows = vec![with(&[MOST], row(1, 1)), with(parts, row(2, 2))];
        assert!(chunks(rows).is_err());
    }
    let good = only(vec![row(1, 1), row(2, 2)]);
    assert_eq!(good.validate(0), Ok(()));
    assert!(good.validate(1).is_err());
    let damages: [fn(&mut Chunk); 7] = [
        |chunk| *chunk = Chunk::default(),
        |chunk| chunk.at.truncate(1),
        |chunk| chunk.reals[3].push(0.0),
        |chunk| chunk.process_count.clear(),
        |chunk| chunk.parts.push(vec![1]),
        |chunk| chunk.seq.swap(0, 1),
        |chunk| chunk.at[0] = 1_800_000_000,
    ];
    for damage in damages {
        let mut bad = good.clone();
        damage(&mut bad);
        assert!(bad.validate(bad.parts.len()).is_err(), "{bad:?}");
    }
}
