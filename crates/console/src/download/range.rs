//! The part of a file that a request asks for (RFC 9110, section 14).

use axum::http::{HeaderMap, header};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// The first byte and the last.
    Of(u64, u64),
    /// Behind the end.
    Nowhere,
}

/// Several ranges, or what is no range, are answered with the whole file, as the standard allows. So is a range of another file,
/// which `If-Range` names.
pub fn wanted(headers: &HeaderMap, length: u64, tag: &str) -> Part {
    let other = headers
        .get(header::IF_RANGE)
        .is_some_and(|known| known != tag);
    let range = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok());
    let range = range.filter(|_| !other);
    range
        .and_then(|range| parse(range, length))
        .unwrap_or(Part::Whole)
}

fn parse(range: &str, length: u64) -> Option<Part> {
    let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
    let (from, to) = match (number(first)?, number(last)?) {
        (None, None) => return None,
        (None, Some(most)) => (length.saturating_sub(most), u64::MAX),
        (Some(from), None) => (from, u64::MAX),
        (Some(from), Some(to)) if to < from => return None,
        (Some(from), Some(to)) => (from, to),
    };
    Some(match from < length {
        true => Part::Of(from, to.min(length - 1)),
        false => Part::Nowhere,
    })
}

/// The outer `None`: it is no number. The inner one: nothing is there.
fn number(text: &str) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.bytes().all(|letter| letter.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_part_of_the_file_or_all_of_it() {
        for (range, part) in [
            ("bytes=0-0", Part::Of(0, 0)),
            ("bytes=4-", Part::Of(4, 9)),
            ("bytes=-3", Part::Of(7, 9)),
            ("bytes=-30", Part::Of(0, 9)),
            ("bytes=2-99", Part::Of(2, 9)),
            ("bytes=10-", Part::Nowhere),
            ("bytes=-0", Part::Nowhere),
            ("bytes=5-4", Part::Whole),
            ("bytes=0-1,4-5", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes=99999999999999999999-", Part::Whole),
            ("lines=1-2", Part::Whole),
        ] {
            let headers = HeaderMap::from_iter([(header::RANGE, range.parse().unwrap())]);
            assert_eq!(wanted(&headers, 10, "\"a\""), part, "{range}");
        }
    }

    #[test]
    fn a_part_of_another_file_is_not_served() {
        for (tag, part) in [("\"a\"", Part::Of(4, 9)), ("\"b\"", Part::Whole)] {
            let headers = HeaderMap::from_iter([
                (header::RANGE, "bytes=4-".parse().unwrap()),
                (header::IF_RANGE, tag.parse().unwrap()),
            ]);
            assert_eq!(wanted(&headers, 10, "\"a\""), part);
        }
    }
}
