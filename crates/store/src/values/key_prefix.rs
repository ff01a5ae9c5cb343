//! What the fingerprint of a key begins with, as people copy it from `svc-agent status` or from a page.

use std::str::FromStr;

/// Digits of a whole fingerprint, a SHA-256, and the fewest that are looked for.
const DIGITS: usize = 64;
const FEWEST: usize = 8;

/// 8 to 64 hexadecimal digits in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyPrefix(String);

impl FromStr for KeyPrefix {
    type Err = ();

    /// Groups may be separated by spaces or colons.
    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.chars().filter(|letter| !matches!(letter, ' ' | ':'));
        let digits: String = digits.take(DIGITS + 1).collect();
        let fits = (FEWEST..=DIGITS).contains(&digits.len());
        match fits && digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
            true => Ok(Self(digits.to_ascii_lowercase())),
            false => Err(()),
        }
    }
}

impl KeyPrefix {
    /// Whether it is a whole fingerprint.
    pub fn is_whole(&self) -> bool {
        self.0.len() == DIGITS
    }

    /// The first and the last fingerprint that begin so.
    pub(crate) fn range(&self) -> (String, String) {
        let Self(digits) = self;
        (format!("{digits:0<DIGITS$}"), format!("{digits:f<DIGITS$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_people_copy_them() {
        for text in ["3F2A91B0", "3f2a 91b0", "3f:2a:91:b0"] {
            let key: KeyPrefix = text.parse().unwrap();
            let (first, last) = key.range();
            assert!(first.starts_with("3f2a91b00000") && last.starts_with("3f2a91b0ffff"));
            assert_eq!((first.len(), last.len()), (64, 64));
        }
        for text in ["", "3f2a91b", "3f2a91bg", &"a".repeat(65)] {
            assert!(text.parse::<KeyPrefix>().is_err(), "{text}");
        }
        assert!("a".repeat(64).parse::<KeyPrefix>().unwrap().is_whole());
    }
}
