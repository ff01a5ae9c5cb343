//! A day of CPU use as a small drawing. Missing hours interrupt the line.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;
use jiff::Timestamp;

const WIDTH: usize = 24;
const HEIGHT: f64 = 20.0;
/// In seconds.
const HOUR: i64 = 3600;

/// Percentages by the hour, oldest first.
#[derive(Clone, Debug)]
pub struct Spark(pub Vec<Option<f64>>);

impl Spark {
    pub fn empty() -> Self {
        Self(vec![None; WIDTH])
    }

    /// The first of the hours until now.
    pub fn begins() -> Timestamp {
        let this_hour = Timestamp::now().as_second().div_euclid(HOUR) * HOUR;
        let first = this_hour - (WIDTH as i64 - 1) * HOUR;
        Timestamp::from_second(first).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub fn set(&mut self, position: i32, percent: f64) {
        let slot = usize::try_from(position).ok();
        if let Some(value) = slot.and_then(|position| self.0.get_mut(position)) {
            *value = Some(percent);
        }
    }

    /// `M x y L x y …` for each unbroken run of hours. A single hour is a short stroke.
    fn path(&self) -> String {
        let mut path = String::new();
        let mut pen_down = false;
        for (position, value) in self.0.iter().enumerate() {
            let Some(percent) = value else {
                pen_down = false;
                continue;
            };
            let y = HEIGHT - 1.0 - percent.clamp(0.0, 100.0) / 100.0 * (HEIGHT - 2.0);
            let x = position * 4;
            let _ = match pen_down {
                true => write!(path, "L{x} {y:.1}"),
                false => write!(path, "M{x} {y:.1}h2"),
            };
            pen_down = true;
        }
        path
    }
}

impl HtmlSafe for Spark {}

impl fmt::Display for Spark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<svg class=\"spark\" viewBox=\"0 0 96 20\" aria-hidden=\"true\"><path d=\"{}\"/></svg>",
            self.path()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_hours_interrupt_the_line() {
        let spark = Spark(vec![Some(0.0), Some(100.0), None, Some(50.0)]);
        assert_eq!(spark.path(), "M0 19.0h2L4 1.0M12 10.0h2");
    }
}
