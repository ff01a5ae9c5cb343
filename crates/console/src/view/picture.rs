//! Pictures of the whole fleet, drawn as SVG: a distribution, a day of presence, a share. Texts inside are our own.
//!
//! A picture is stretched to its place, so it has no letters; what it says stands beside it as text. Colours are in the style sheet.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;
use svc_store::BIN_PERCENT;

use super::{count, plural};

const HEIGHT: f64 = 60.0;
/// Few hosts of many are still seen.
const LEAST: f64 = 1.5;

/// A distribution: a column for each bin of hosts.
#[derive(Clone, Debug)]
pub struct Columns {
    pub bins: Vec<i64>,
    /// What it shows, for those who do not see it.
    pub title: String,
}

impl HtmlSafe for Columns {}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: usize = 10;
        let most = self.bins.iter().copied().max().unwrap_or(0).max(1) as f64;
        let (width, title) = (WIDTH * self.bins.len(), &self.title);
        write!(
            f,
            "<svg class=\"picture\" viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">"
        )?;
        for (place, hosts) in self
            .bins
            .iter()
            .enumerate()
            .filter(|(_, hosts)| **hosts > 0)
        {
            let from = place * BIN_PERCENT;
            let level = match from {
                90.. => "high",
                75.. => "raised",
                _ => "normal",
            };
            let height = (*hosts as f64 / most * HEIGHT).max(LEAST);
            let (x, y, column) = (place * WIDTH, HEIGHT - height, WIDTH - 1);
            write!(
                f,
                "<rect class=\"{level}\" x=\"{x}\" y=\"{y:.1}\" width=\"{column}\" height=\"{height:.1}\"><title>{}</title></rect>",
                bin_text(place, *hosts)
            )?;
        }
        f.write_str("</svg>")
    }
}

/// `85 to 90 %: 12 hosts`
fn bin_text(place: usize, hosts: i64) -> String {
    let (from, hosts_shown) = (place * BIN_PERCENT, count(&hosts));
    let to = from + BIN_PERCENT;
    format!(
        "{from} to {to} %: {hosts_shown} {}",
        plural(&hosts, "host", "hosts")
    )
}

/// How many agents were online and offline, from the left to the right. A place without counts is a hole.
#[derive(Clone, Debug)]
pub struct Presence {
    pub counts: Vec<Option<(i32, i32)>>,
    pub title: String,
}

impl Presence {
    /// The outline under the values, for each unbroken run of counts.
    fn area(&self, value: impl Fn((i32, i32)) -> i32) -> String {
        let totals = self.counts.iter().flatten();
        let most = totals.map(|(online, offline)| online + offline).max();
        let most = f64::from(most.unwrap_or(0).max(1));
        let mut path = String::new();
        let mut pen_down = false;
        for (x, counts) in self.counts.iter().enumerate() {
            let _ = match counts {
                Some(counts) => {
                    if !pen_down {
                        let _ = write!(path, "M{x} {HEIGHT}");
                    }
                    let y = HEIGHT * (1.0 - f64::from(value(*counts)) / most);
                    write!(path, "V{y:.1}h1")
                }
                None if pen_down => write!(path, "V{HEIGHT}z"),
                None => Ok(()),
            };
            pen_down = counts.is_some();
        }
        if pen_down {
            let _ = write!(path, "V{HEIGHT}z");
        }
        path
    }
}

impl HtmlSafe for Presence {}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (width, title) = (self.counts.len(), &self.title);
        let (all, online) = (
            self.area(|(online, offline)| online + offline),
            self.area(|(online, _)| online),
        );
        write!(
            f,
            "<svg class=\"picture presence\" viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">\
             <path class=\"offline\" d=\"{all}\"/><path class=\"online\" d=\"{online}\"/></svg>"
        )
    }
}

/// A part of a whole, of which more is not worse.
#[derive(Clone, Copy, Debug)]
pub struct Share(pub f64);

impl HtmlSafe for Share {}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = (self.0 * 100.0).clamp(0.0, 100.0);
        write!(
            f,
            "<svg aria-hidden=\"true\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\">\
             <rect class=\"track\" width=\"100\" height=\"6\"/><rect class=\"fill\" width=\"{width:.1}\" height=\"6\"/></svg>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_counts_is_a_hole_in_the_picture() {
        let counts = vec![Some((1, 1)), Some((2, 0)), None, Some((0, 2))];
        let title = String::new();
        let presence = Presence { counts, title };
        let online = presence.area(|(online, _)| online);
        assert_eq!(online, "M0 60V30.0h1V0.0h1V60zM3 60V60.0h1V60z");
    }

    #[test]
    fn one_host_of_many_has_a_column_that_is_seen() {
        let mut bins = vec![0; 20];
        (bins[1], bins[19]) = (200_000, 1);
        let title = "CPU".into();
        let drawn = Columns { bins, title }.to_string();
        assert_eq!(drawn.matches("<rect").count(), 2);
        let high = "<rect class=\"high\" x=\"190\" y=\"58.5\" width=\"9\" height=\"1.5\"><title>95 to 100 %: 1 host</title>";
        assert!(drawn.contains(high), "{drawn}");
    }
}
