//! How a chunk keeps the values of its parts.
//!
//! The values of one part, sample by sample, are a series. Most series stay as they are or move by small steps, so a
//! chunk keeps five numbers of each series and, in as few bytes as the widest needs, its steps: the differences of
//! neighbours.
//!
//! - `series`: the first value of each series, then the last value of each, their units, their least steps in units, their
//!   widths.
//! - `steps`: series by series, the lowest byte of each step, then the second byte of each, and so on.
//!
//! A step is stored as step / unit - least. The unit is the greatest common divisor of the steps: a file system is used
//! in blocks, a device is written in sectors. The width is the number of bytes of a step, 1 to 8. A series that never
//! changes has unit, least step and width 0, and no bytes. The bytes of one place lie side by side, because they
//! resemble each other and compress best so. The last value and the least step could be computed, but they answer
//! without unpacking where a series ends and whether it ever falls.
//!
//! Arithmetic wraps: a stored step of 8 bytes is a number without sign, and is 2^63 if a series of 0, 2^62, 0 also
//! has a step of 1.

use super::{MOST, Result, ensure};

/// The parts of a chunk, packed. Both are empty if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) series: Vec<i64>,
    pub(crate) steps: Vec<u8>,
}

/// What `Packed::series` has of one series: the first and the last value, the unit, the least step and the width.
type Series = [i64; 5];

/// Packs the values of all parts: a series of each, all of the same length.
pub(crate) fn pack(parts: &[Vec<i64>]) -> Packed {
    let all: Vec<Series> = parts.iter().map(|values| measure(values)).collect();
    let mut packed = Packed::default();
    packed.series.reserve(5 * all.len());
    for number in 0..5 {
        packed
            .series
            .extend(all.iter().map(|series| series[number]));
    }
    let steps = parts.first().map_or(0, |values| values.len().max(1) - 1);
    let bytes = |series: &Series| series[4] as usize * steps;
    packed.steps.resize(all.iter().map(bytes).sum(), 0);
    let mut rest = packed.steps.as_mut_slice();
    for (series, values) in all.iter().zip(parts) {
        let (these, others) = rest.split_at_mut(bytes(series));
        write(series, values, these);
        rest = others;
    }
    packed
}

fn steps(values: &[i64]) -> impl Iterator<Item = i64> {
    let pairs = values.iter().zip(values.iter().skip(1));
    pairs.map(|(before, value)| value.wrapping_sub(*before))
}

fn measure(values: &[i64]) -> Series {
    let (mut least, mut greatest, mut unit) = (i64::MAX, i64::MIN, 0);
    for step in steps(values) {
        least = least.min(step);
        greatest = greatest.max(step);
        unit = greatest_divisor(unit, step.unsigned_abs());
    }
    let first = values.first().copied().unwrap_or_default();
    let last = values.last().copied().unwrap_or_default();
    if unit == 0 {
        return [first, last, 0, 0, 0];
    }
    let unit = unit.cast_signed();
    let range = (greatest / unit).wrapping_sub(least / unit);
    let bits = u64::BITS - range.cast_unsigned().leading_zeros();
    [
        first,
        last,
        unit,
        least / unit,
        bits.div_ceil(8).max(1).into(),
    ]
}

/// Writes the steps in the place for them.
fn write(series: &Series, values: &[i64], to: &mut [u8]) {
    let [_, _, unit, least, width] = *series;
    if width == 0 {
        return;
    }
    let width = width as usize;
    let count = to.len() / width;
    for (place, step) in steps(values).enumerate() {
        let bytes = (step / unit).wrapping_sub(least).to_le_bytes();
        for (position, byte) in bytes[..width].iter().enumerate() {
            to[position * count + place] = *byte;
        }
    }
}

/// The values: the first and one for each step.
fn read(series: &Series, steps: &[u8], samples: usize) -> Result<Vec<i64>> {
    let [first, last, unit, least, width] = *series;
    if width == 0 {
        let constant = unit == 0 && least == 0 && first == last;
        ensure(constant && is_value(first), "a constant part")?;
        return Ok(vec![first; samples]);
    }
    ensure(unit > 0, "a unit")?;
    let mut values = vec![0; samples];
    for (place, bytes) in steps.chunks(samples.max(2) - 1).enumerate() {
        for (value, byte) in values[1..].iter_mut().zip(bytes) {
            *value |= i64::from(*byte) << (8 * place);
        }
    }
    values[0] = first;
    let (mut value, mut valid) = (first, is_value(first));
    for stored in &mut values[1..] {
        value = value.wrapping_add(unit.wrapping_mul(least.wrapping_add(*stored)));
        valid &= is_value(value);
        *stored = value;
    }
    ensure(valid && value == last, "the steps of a part")?;
    Ok(values)
}

fn is_value(value: i64) -> bool {
    (0..=MOST).contains(&value)
}

fn greatest_divisor(mut a: u64, mut b: u64) -> u64 {
    if a == 1 {
        return 1;
    }
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The values of all parts. Nothing that is stored makes it panic, or take more memory than `samples` values of each part.
pub(crate) fn unpack(packed: &Packed, samples: usize) -> Result<Vec<Vec<i64>>> {
    let all = series(packed, samples)?;
    let mut rest = packed.steps.as_slice();
    let mut parts = Vec::with_capacity(all.len());
    for series in all {
        let (these, others) = rest.split_at(series[4] as usize * (samples - 1));
        parts.push(read(&series, these, samples)?);
        rest = others;
    }
    Ok(parts)
}

/// The value of each part in the sample at this place. The last one needs no unpacking.
pub(crate) fn unpack_one(packed: &Packed, samples: usize, place: usize) -> Result<Vec<i64>> {
    if place + 1 < samples {
        let parts = unpack(packed, samples)?;
        return Ok(parts.iter().map(|values| values[place]).collect());
    }
    let all = series(packed, samples)?;
    let lasts: Vec<i64> = all.iter().map(|series| series[1]).collect();
    ensure(lasts.iter().all(|last| is_value(*last)), "a last value")?;
    Ok(lasts)
}

/// The series, if their widths are valid and there are as many bytes of steps as they need.
fn series(packed: &Packed, samples: usize) -> Result<Vec<Series>> {
    let count = packed.series.len() / 5;
    ensure(packed.series.len() == 5 * count, "the number of series")?;
    ensure(samples > 0 || count == 0, "parts without samples")?;
    let of_part = |part: usize| [0, 1, 2, 3, 4].map(|n| packed.series[n * count + part]);
    let all: Vec<Series> = (0..count).map(of_part).collect();
    let mut widths = all.iter().map(|series| series[4]);
    ensure(
        widths.clone().all(|width| (0..=8).contains(&width)),
        "a width",
    )?;
    let bytes = widths.try_fold(0_usize, |bytes, width| {
        bytes.checked_add(samples.saturating_sub(1).checked_mul(width as usize)?)
    });
    ensure(bytes == Some(packed.steps.len()), "the length of the steps")?;
    Ok(all)
}

#[cfg(test)]
mod tests;
