use proptest::prelude::*;

use super::*;

fn packed(series: &[i64], steps: &[u8]) -> Packed {
    Packed {
        series: series.to_vec(),
        steps: steps.to_vec(),
    }
}

/// Packs and unpacks.
#[track_caller]
fn round(parts: &[Vec<i64>]) -> Packed {
    let packed = pack(parts);
    let samples = parts.first().map_or(0, Vec::len);
    assert_eq!(unpack(&packed, samples).as_deref(), Ok(parts));
    for place in [0, samples / 2, samples.max(1) - 1] {
        let values = parts.iter().map(|values| values[place]).collect();
        assert_eq!(unpack_one(&packed, samples, place), Ok(values));
    }
    packed
}

#[test]
fn steps_are_stored_in_units_above_the_least_one() {
    let blocks = [5, 5, 255, 10, 300].map(|blocks| blocks * 4096).to_vec();
    let expected = packed(&[5 * 4096, 300 * 4096, 5 * 4096, -49, 1], &[49, 99, 0, 107]);
    assert_eq!(round(&[blocks]), expected);
}

#[test]
fn bytes_of_one_place_lie_side_by_side_part_by_part() {
    let (wide, constant, narrow) = (vec![0, 1, 0x203, 0x203], vec![7; 4], vec![9, 8, 8, 8]);
    let series = [0, 7, 9, 0x203, 7, 8, 1, 0, 1, 0, 0, -1, 2, 0, 1];
    let expected = packed(&series, &[1, 2, 0, 0, 2, 0, 0, 1, 1]);
    assert_eq!(round(&[wide, constant, narrow]), expected);
}

#[test]
fn only_a_series_that_never_changes_takes_no_bytes() {
    assert_eq!(round(&[vec![4; 3]]), packed(&[4, 4, 0, 0, 0], &[]));
    let even = packed(&[4, 16, 6, 1, 1], &[0, 0]);
    assert_eq!(round(&[vec![4, 10, 16]]), even);
}

#[test]
fn a_step_takes_as_many_bytes_as_the_widest_needs() {
    let width_of = |values: [i64; 4]| round(&[values.to_vec()]).series[4];
    for width in 1..8 {
        let most = (1 << (8 * width)) - 1;
        assert_eq!(width_of([0, most, most, most]), 1, "in units");
        assert_eq!(width_of([0, most, most, most + 1]), width);
        if most < MOST {
            assert_eq!(width_of([0, most + 1, most + 1, most]), width + 1);
        }
    }
    assert_eq!(width_of([0, MOST, 0, 1]), 8);
}

#[test]
fn values_at_their_limits_are_packed() {
    round(&[]);
    for extremes in [[0, MOST], [MOST, 0], [1, MOST - 1], [MOST - 1, MOST]] {
        for samples in [1, 2, 3, 4, 120, 7200] {
            let values: Vec<i64> = extremes.iter().copied().cycle().take(samples).collect();
            round(&[values.clone(), vec![extremes[0]; samples], values]);
        }
    }
    round(&(0..838).map(|n| vec![n; 3]).collect::<Vec<_>>());
}

#[test]
fn what_was_not_packed_here_is_damaged() {
    let good = pack(&[vec![4, 10, 17], vec![5; 3]]);
    assert!(unpack(&good, 3).is_ok());
    for samples in [0, 1, 2, 4, usize::MAX] {
        assert!(unpack(&good, samples).is_err(), "{samples} samples");
    }
    let steps = [good.steps.clone(), vec![0]].concat();
    let series = good.series.clone();
    assert!(unpack(&Packed { series, steps }, 3).is_err(), "a byte more");
    for place in 0..good.series.len() {
        for number in [i64::MIN, -1, 0, 3, 9, MOST + 1, i64::MAX] {
            let mut bad = good.clone();
            if bad.series[place] != number {
                bad.series[place] = number;
                assert!(unpack(&bad, 3).is_err(), "{number} at {place}");
            }
        }
    }
    let below_0 = packed(&[0, 0, 1, -1, 1], &[0, 2]);
    assert!(unpack(&below_0, 3).is_err());
    let lasts = packed(&[0, -1, 0, 0, 0], &[]);
    assert!(unpack_one(&lasts, 9, 8).is_err());
}

/// Numbers near the limits as often as others, in series of several tempers.
fn values(samples: usize) -> impl Strategy<Value = Vec<i64>> {
    let any = prop_oneof![0..=MOST, 0..9_i64, MOST - 9..=MOST, Just(0), Just(MOST)];
    let rising = (0..1_i64 << 40, 0..1_i64 << 20);
    prop_oneof![
        prop::collection::vec(any, samples),
        rising.prop_map(move |(from, by)| (0..samples as i64).map(|i| from + by * i).collect()),
        (0..=MOST).prop_map(move |value| vec![value; samples]),
        prop::collection::vec(0..1000_i64, samples)
            .prop_map(|blocks| blocks.iter().map(|block| block * 4096).collect()),
    ]
}

fn parts() -> impl Strategy<Value = Vec<Vec<i64>>> {
    (1..40_usize).prop_flat_map(|samples| prop::collection::vec(values(samples), 0..6))
}

/// One value at a time, by 128-bit arithmetic, as the layout is described.
fn unpacked_simply(packed: &Packed, samples: usize) -> Vec<Vec<i64>> {
    let count = packed.series.len() / 5;
    let mut place = 0;
    let mut parts = Vec::new();
    for part in 0..count {
        let number = |which: usize| i128::from(packed.series[which * count + part]);
        let mut values = vec![number(0)];
        for step in 0..samples - 1 {
            let mut stored = 0;
            for byte in 0..number(4) as usize {
                let byte_of_step = packed.steps[place + byte * (samples - 1) + step];
                stored += i128::from(byte_of_step) * 256_i128.pow(byte as u32);
            }
            values.push(values[step] + number(2) * (number(3) + stored));
        }
        place += (samples - 1) * number(4) as usize;
        assert_eq!(values[samples - 1], number(1), "the last value");
        parts.push(values.iter().map(|value| *value as i64).collect());
    }
    assert_eq!(place, packed.steps.len());
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_parts_are_unpacked_as_they_were(parts in parts()) {
        let packed = round(&parts);
        let samples = parts.first().map_or(1, Vec::len);
        prop_assert_eq!(unpacked_simply(&packed, samples), parts);
    }

    #[test]
    fn damage_is_an_error_or_other_values_within_the_bounds(
        parts in parts(), place: prop::sample::Index, number: i64, byte: u8, samples in 0..50_usize,
    ) {
        let mut packed = pack(&parts);
        if !packed.series.is_empty() {
            let place = place.index(packed.series.len());
            packed.series[place] = number;
        }
        if !packed.steps.is_empty() {
            let place = place.index(packed.steps.len());
            packed.steps[place] = byte;
        }
        for samples in [samples, parts.first().map_or(0, Vec::len)] {
            for values in unpack(&packed, samples).unwrap_or_default() {
                prop_assert!(values.len() == samples && values.iter().all(|value| is_value(*value)));
            }
        }
    }
}
