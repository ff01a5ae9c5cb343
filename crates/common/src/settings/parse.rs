//! Parsers of values that more than one program has. An error continues a sentence: the reader puts the
//! variable's name and value in front of it.

use std::{net::IpAddr, time::Duration};

use jiff::{Span, SpanRelativeTo};
use url::Url;

use crate::networks::Networks;

pub type Parsed<T> = Result<T, String>;

pub fn port(text: &str) -> Parsed<u16> {
    match text.parse() {
        Ok(0) | Err(_) => Err("is not a port: use a number from 1 to 65535".into()),
        Ok(port) => Ok(port),
    }
}

pub fn ip(text: &str) -> Parsed<IpAddr> {
    text.parse()
        .map_err(|_| "is not an IP address, such as 0.0.0.0 or ::1".into())
}

pub fn networks(text: &str) -> Parsed<Networks> {
    Networks::parse(text)
        .ok_or_else(|| "is not a list of networks such as 10.0.0.0/8, separated by commas".into())
}

pub fn boolean(text: &str) -> Parsed<bool> {
    text.parse().map_err(|_| "is neither true nor false".into())
}

/// Every part of a program that uses the database needs a connection of its own.
pub fn pool_size(text: &str) -> Parsed<usize> {
    bounded(text, 4, 1000)
}

pub fn bounded(text: &str, least: usize, most: usize) -> Parsed<usize> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("is not a number from {least} to {most}")),
    }
}

pub fn duration(text: &str, least: Duration, most: Duration) -> Parsed<Duration> {
    let parsed = text.parse::<Span>().ok().and_then(|span| {
        let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Duration::try_from(signed).ok()
    });
    match parsed {
        Some(duration) if (least..=most).contains(&duration) => Ok(duration),
        Some(_) => Err(format!(
            "is not between {} and {}",
            human(least),
            human(most)
        )),
        None => Err("is not a duration, such as 30s, 15m, 12h or 7d".into()),
    }
}

fn human(duration: Duration) -> String {
    match duration.as_secs() {
        0 => "0s".into(),
        seconds if seconds % 86_400 == 0 => format!("{}d", seconds / 86_400),
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// Credentials in it would reach logs, pages and agents.
pub fn http_url(text: &str) -> Parsed<Url> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("is not an http:// or https:// URL".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("carries credentials".into());
    }
    Ok(url)
}
