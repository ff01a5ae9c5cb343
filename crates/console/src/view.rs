//! How values are shown: times, sizes, bars, sparklines, presence. Each writes HTML of its own and
//! escapes nothing that comes from outside, because numbers and times are all it takes; texts stay with
//! the templates, which escape them.

mod picture;
mod query;
mod rollout;
mod spark;

use std::fmt;

use askama::filters::HtmlSafe;
use jiff::Timestamp;
use svc_store::{InstanceLoad, InstanceRecord, Labels};

pub use picture::{Columns, Presence, Share};
pub use query::{address_query, label_query, sort, version_query};
pub use rollout::{approved, package_line, stage_progress, update_class};
pub use spark::Spark;

/// A point in time: relative or exact in the page, exact to the second on hover. A script shows it in the
/// reader's zone.
#[derive(Clone, Copy, Debug)]
pub struct Time(Timestamp, Form);

#[derive(Clone, Copy, Debug)]
enum Form {
    /// `3 d ago`
    Ago,
    /// `for 3 d`: how long something has lasted.
    Lasting,
    /// For lists of events.
    Exact,
}

impl HtmlSafe for Time {}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(at, form) = self;
        let exact = at.strftime("%Y-%m-%dT%H:%M:%SZ");
        let shown = at.strftime("%Y-%m-%d %H:%M:%S");
        let seconds = Timestamp::now().as_second() - at.as_second();
        let (data, text) = match form {
            Form::Ago => ("data-ago", ago(seconds)),
            Form::Lasting => {
                let length = span(seconds.max(0).unsigned_abs());
                ("data-for data-ago", format!("for {length}"))
            }
            Form::Exact => ("data-exact", shown.to_string()),
        };
        write!(
            f,
            "<time datetime=\"{exact}\" title=\"{shown} UTC\" {data}>{text}</time>"
        )
    }
}

/// Arguments of these functions are references, as templates pass them.
pub fn when(at: &Timestamp) -> Time {
    Time(*at, Form::Ago)
}

pub fn lasting_since(at: &Timestamp) -> Time {
    Time(*at, Form::Lasting)
}

pub fn exact(at: &Timestamp) -> Time {
    Time(*at, Form::Exact)
}

pub fn ago(seconds: i64) -> String {
    let (past, length) = (seconds >= 0, span(seconds.unsigned_abs()));
    match past {
        _ if seconds.abs() < 2 => "now".into(),
        true => format!("{length} ago"),
        false => format!("in {length}"),
    }
}

/// A length of time in one unit.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        172_800..63_072_000 => format!("{} d", seconds / 86_400),
        _ => format!("{} y", seconds / 31_536_000),
    }
}

/// A size in binary units, with three digits.
pub fn bytes(size: &i64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = *size as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match (unit, value) {
        (0, _) | (_, 100.0..) => 0,
        (_, 10.0..) => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count with groups of three digits.
pub fn count<N: Copy + Into<i64>>(number: &N) -> String {
    let number: i64 = (*number).into();
    let digits = number.unsigned_abs().to_string();
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    match number < 0 {
        true => format!("−{grouped}"),
        false => grouped,
    }
}

/// A percentage as bar and number. Without a value, a dash.
#[derive(Clone, Copy, Debug)]
pub struct Bar(pub Option<f64>);

impl Bar {
    /// A part of a whole.
    pub fn of(part: f64, whole: f64) -> Self {
        Self((whole > 0.0).then(|| 100.0 * part / whole))
    }
}

pub fn bar(percent: &Option<f64>) -> Bar {
    Bar(*percent)
}

impl HtmlSafe for Bar {}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(percent) = self.0 else {
            return f.write_str("<span class=\"none\">–</span>");
        };
        let percent = percent.clamp(0.0, 100.0);
        let level = match percent {
            90.0.. => "high",
            75.0.. => "raised",
            _ => "normal",
        };
        write!(
            f,
            "<span class=\"bar {level}\"><svg aria-hidden=\"true\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\">\
             <rect class=\"track\" width=\"100\" height=\"6\"/><rect class=\"fill\" width=\"{percent:.1}\" height=\"6\"/></svg>\
             <span class=\"num\">{percent:.0} %</span></span>"
        )
    }
}

pub fn share(part: &i64, whole: &i64) -> Bar {
    Bar::of(*part as f64, *whole as f64)
}

pub fn share_of(part: &Option<i64>, whole: &i64) -> Bar {
    part.map_or(Bar(None), |part| share(&part, whole))
}

/// A percentage without a bar.
pub fn percent(value: &Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.1} %"))
}

/// A whole percentage as a bar.
pub fn small_bar(percent: &Option<i16>) -> Bar {
    Bar(percent.map(f64::from))
}

/// A length of time that is a number of seconds.
pub fn lasting(seconds: &f64) -> String {
    span(seconds.max(0.0) as u64)
}

/// Labels in the order of their keys.
pub fn labels(labels: &Labels) -> Vec<(&str, &str)> {
    labels.iter().collect()
}

/// When the certificate that an instance shows to agents expires.
pub fn certificate_expiry(instance: &InstanceRecord) -> Option<Timestamp> {
    instance.load()?.certificate_expires_at
}

/// `host` or `hosts`.
pub fn plural<'a>(number: &i64, one: &'a str, many: &'a str) -> &'a str {
    match *number {
        1 => one,
        _ => many,
    }
}

/// The name of a system as people say it.
pub fn system(name: &str) -> &str {
    name.strip_suffix(" GNU/Linux").unwrap_or(name)
}

/// The load of an instance, while it runs.
pub fn live_load(instance: &InstanceRecord) -> Option<InstanceLoad> {
    instance.load().filter(|_| instance.live)
}

/// Who did it. Tokens act by their ids, which are long.
pub fn actor(name: &str) -> String {
    match name.strip_prefix("token ") {
        Some(id) if id.len() == 36 => format!("token {}", short(&id)),
        _ => name.to_owned(),
    }
}

/// The first letters of a long identifier.
pub fn short(text: &dyn fmt::Display) -> String {
    text.to_string().chars().take(8).collect()
}

/// A fingerprint in groups of four, to compare by eye.
pub fn fingerprint(hex: &str) -> String {
    let letters: Vec<char> = hex.chars().collect();
    let groups = letters
        .chunks(4)
        .map(|group| group.iter().collect::<String>());
    groups.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes(&0), "0 B");
        assert_eq!(bytes(&1536), "1.50 KiB");
        assert_eq!(bytes(&(16 << 30)), "16.0 GiB");
        assert_eq!(count(&1_234_567_i64), "1\u{202f}234\u{202f}567");
        assert_eq!(count(&-12_i64), "−12");
        assert_eq!(ago(1), "now");
        assert_eq!(ago(90), "90 s ago");
        assert_eq!(ago(-7200), "in 2 h");
        assert_eq!(span(2 * 365 * 86_400), "2 y");
        assert_eq!(plural(&1, "host", "hosts"), "host");
        assert_eq!(
            actor("token 813cbadc-0ec2-4fa4-a778-72d9360221b4"),
            "token 813cbadc"
        );
        assert_eq!(actor("token"), "token");
        assert_eq!(fingerprint("0123456789"), "0123 4567 89");
    }
}
