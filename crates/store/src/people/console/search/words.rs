//! A search as people write it: words that mean conditions.
//!
//! `web nyc` finds names with both parts, or an address; `label:env=prod`, `os:debian`, `version:0.2`,
//! `is:online`, `is:offline`, `offline:1d` (for longer than a day; also in `h` and `m`), `is:retired`, `is:skewed`, `has:gaps`,
//! `disk:90`, `token:<id>`, `key:<fingerprint>`. Quotes keep spaces inside a word: `label:team="web ops"`.

use std::time::Duration;

use super::{HostSearch, Retired};
use crate::{
    prelude::*,
    values::{key_prefix::KeyPrefix, labels::Labels},
};

const MAX_BYTES: usize = 256;
const MAX_WORDS: usize = 12;
/// In minutes.
const LONGEST_ABSENCE: u64 = 3660 * 24 * 60;

/// A search as a person wrote it, on a page or on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenSearch {
    pub text: String,
    pub search: HostSearch,
    /// Words that mean nothing here, or are too many. The reader is told, and nothing is changed by such a search.
    pub unknown: Vec<String>,
}

impl WrittenSearch {
    pub fn parse(text: &str) -> Self {
        let end = (0..=MAX_BYTES.min(text.len())).rev();
        let end = end.into_iter().find(|end| text.is_char_boundary(*end));
        let (text, rest) = text.split_at(end.unwrap_or(0));
        let mut parsed = Self {
            text: text.trim().to_owned(),
            ..Self::default()
        };
        for (place, word) in words(text).enumerate() {
            if place >= MAX_WORDS || !parsed.word(&word.replace('"', "")) {
                parsed.unknown.push(word.to_owned());
            }
        }
        parsed.unknown.extend(words(rest).next().map(str::to_owned));
        parsed
    }

    /// Whether the word means something.
    fn word(&mut self, word: &str) -> bool {
        let search = &mut self.search;
        if let Some(key) = whole_key(word) {
            search.key = Some(key);
            return true;
        }
        let Some((key, value)) = word.split_once(':') else {
            search.texts.push(word.to_owned());
            return true;
        };
        match (key, value) {
            (_, "") => return false,
            ("label", pair) if pair.contains('=') => {
                let label = pair.parse::<Labels>();
                match label.and_then(|label| Labels::joined([search.labels.clone(), label])) {
                    Ok(labels) => search.labels = labels,
                    Err(_) => return false,
                }
            }
            ("os", os) => search.os = Some(os.into()),
            ("version", version) => search.version = Some(version.into()),
            ("is", "online") => search.online = Some(true),
            ("is", "offline") => search.online = Some(false),
            ("offline", length) => match duration(length) {
                Some(length) => search.offline_for = Some(length),
                None => return false,
            },
            ("is", "retired") => search.retired = Retired::Only,
            ("is", "skewed") => search.skewed = true,
            ("has", "gaps") => search.gaps = true,
            ("disk", percent) => match percent.trim_start_matches('>').parse() {
                Ok(percent) => search.disk_at_least = Some(percent),
                Err(_) => return false,
            },
            ("token", id) => match Uuid::parse_str(id) {
                Ok(id) => search.token = Some(id),
                Err(_) => return false,
            },
            ("key", digits) => match digits.parse() {
                Ok(digits) => search.key = Some(digits),
                Err(()) => return false,
            },
            // An IPv6 address has colons too.
            _ if word.parse::<std::net::Ipv6Addr>().is_ok() => {
                search.texts.push(word.to_owned());
            }
            _ => return false,
        }
        true
    }

    /// Its words, with their quotes.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        words(&self.text)
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// `90m`, `12h` or `30d`, up to ten years.
fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let minutes = match unit {
        "m" => 1,
        "h" => 60,
        "d" => 24 * 60,
        _ => return None,
    };
    let minutes = number.parse::<u64>().ok()?.checked_mul(minutes)?;
    (minutes <= LONGEST_ABSENCE).then(|| Duration::from_secs(60 * minutes))
}

/// A whole fingerprint, which is no part of a name or an address.
fn whole_key(word: &str) -> Option<KeyPrefix> {
    word.parse().ok().filter(KeyPrefix::is_whole)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let between = move |letter: char| {
        quoted ^= letter == '"';
        letter.is_whitespace() && !quoted
    };
    text.split(between).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_conditions() {
        let parsed = WrittenSearch::parse(
            "web label:env=prod os:debian is:offline disk:90 fe80::1 nonsense:x is: label:env=dev label:,",
        );
        assert_eq!(parsed.search.texts, ["web", "fe80::1"]);
        assert_eq!(parsed.search.labels.to_string(), "env=prod");
        assert_eq!(parsed.search.os.as_deref(), Some("debian"));
        assert_eq!(parsed.search.online, Some(false));
        assert_eq!(parsed.search.disk_at_least, Some(90));
        let unknown = ["nonsense:x", "is:", "label:env=dev", "label:,"];
        assert_eq!(parsed.unknown, unknown);
    }

    #[test]
    fn an_absence_is_a_number_of_minutes_hours_or_days() {
        for (word, seconds) in [
            ("offline:90m", Some(5400)),
            ("offline:12h", Some(43_200)),
            ("offline:1d", Some(86_400)),
            ("offline:0d", Some(0)),
            ("offline:1", None),
            ("offline:d", None),
            ("offline:1w", None),
            ("offline:-1d", None),
            ("offline:99999d", None),
            ("offline:99999999999999999999d", None),
            ("offline:1é", None),
        ] {
            let parsed = WrittenSearch::parse(word);
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(parsed.search.offline_for, expected, "{word}");
            assert_eq!(parsed.unknown.is_empty(), seconds.is_some(), "{word}");
        }
    }

    #[test]
    fn a_fingerprint_is_found_as_the_agent_prints_it() {
        let whole = "3f2a91b0".repeat(8);
        for text in [whole.as_str(), "key:3f2a91b0", "key:\"3f2a 91b0\""] {
            let parsed = WrittenSearch::parse(text);
            assert!(parsed.search.key.is_some() && parsed.unknown.is_empty());
        }
        assert_eq!(WrittenSearch::parse("key:web").unknown, ["key:web"]);
        assert_eq!(WrittenSearch::parse("3f2a91b0").search.texts, ["3f2a91b0"]);
    }

    #[test]
    fn what_is_left_out_of_a_search_is_named() {
        let parsed = WrittenSearch::parse(&"é".repeat(500));
        assert!(parsed.text.len() <= MAX_BYTES && !parsed.text.is_empty());
        assert_eq!(parsed.unknown.len(), 1);
        let many = WrittenSearch::parse(&"a ".repeat(MAX_WORDS + 2));
        assert_eq!(many.search.texts.len(), MAX_WORDS);
        assert_eq!(many.unknown, ["a", "a"]);
    }
}
