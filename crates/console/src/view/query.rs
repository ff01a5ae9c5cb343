//! The search box: words that mean conditions; and queries of addresses.
//!
//! `web nyc` finds names with both parts, or an address; `label:env=prod`, `os:debian`, `version:0.2`,
//! `is:online`, `is:offline`, `is:retired`, `is:skewed`, `has:gaps`, `disk:90`, `token:<id>`. Quotes keep
//! spaces inside a word: `label:team="web ops"`.

use svc_store::{HostSearch, HostSort};
use url::form_urlencoded;
use uuid::Uuid;

const MAX_BYTES: usize = 256;
const MAX_WORDS: usize = 12;

/// A search as a person wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    pub text: String,
    pub search: HostSearch,
    /// Words that mean nothing here, or are too many. The page names them, and nothing is changed by such a search.
    pub unknown: Vec<String>,
}

impl Search {
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
        let Some((key, value)) = word.split_once(':') else {
            search.texts.push(word.to_owned());
            return true;
        };
        match (key, value) {
            (_, "") => return false,
            ("label", pair) => {
                let Some((name, value)) = pair.split_once('=') else {
                    return false;
                };
                search.labels.insert(name.into(), value.into());
            }
            ("os", os) => search.os = Some(os.into()),
            ("version", version) => search.version = Some(version.into()),
            ("is", "online") => search.online = Some(true),
            ("is", "offline") => search.online = Some(false),
            ("is", "retired") => search.retired = true,
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
            // An IPv6 address has colons too.
            _ if word.parse::<std::net::Ipv6Addr>().is_ok() => {
                search.texts.push(word.to_owned());
            }
            _ => return false,
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// The words of a search, with their quotes.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let between = move |letter: char| {
        quoted ^= letter == '"';
        letter.is_whitespace() && !quoted
    };
    text.split(between).filter(|word| !word.is_empty())
}

/// The search for the hosts with a label.
pub fn label_query(name: &str, value: &str) -> String {
    match value.contains(char::is_whitespace) || name.contains(char::is_whitespace) {
        true => format!("label:\"{name}={value}\""),
        false => format!("label:{name}={value}"),
    }
}

/// The query of an address: the fields that have a value.
pub fn address_query(fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

/// The order that a page asks for. Hosts that are online have none by the length of their absence.
pub fn sort(name: &str, search: &HostSearch) -> HostSort {
    match name {
        "disk" => HostSort::Disk,
        "offline" if search.online != Some(true) => HostSort::Offline,
        _ => HostSort::Name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_conditions() {
        let parsed =
            Search::parse("web label:env=prod os:debian is:offline disk:90 fe80::1 nonsense:x is:");
        assert_eq!(parsed.search.texts, ["web", "fe80::1"]);
        assert_eq!(
            parsed.search.labels.get("env").map(String::as_str),
            Some("prod")
        );
        assert_eq!(parsed.search.os.as_deref(), Some("debian"));
        assert_eq!(parsed.search.online, Some(false));
        assert_eq!(parsed.search.disk_at_least, Some(90));
        assert_eq!(parsed.unknown, ["nonsense:x", "is:"]);
    }

    #[test]
    fn the_link_of_a_label_finds_it_though_it_has_spaces() {
        for value in ["prod", "web ops", "a=b"] {
            let parsed = Search::parse(&label_query("team", value));
            let found = parsed.search.labels.get("team").map(String::as_str);
            assert_eq!((found, parsed.unknown.len()), (Some(value), 0));
        }
    }

    #[test]
    fn what_is_left_out_of_a_search_is_named() {
        let parsed = Search::parse(&"é".repeat(500));
        assert!(parsed.text.len() <= MAX_BYTES && !parsed.text.is_empty());
        assert_eq!(parsed.unknown.len(), 1);
        let many = Search::parse(&"a ".repeat(MAX_WORDS + 2));
        assert_eq!(many.search.texts.len(), MAX_WORDS);
        assert_eq!(many.unknown, ["a", "a"]);
    }
}
