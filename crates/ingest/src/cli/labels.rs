//! Labels on the command line: `key=value`, repeated or separated by commas.

use std::{collections::BTreeMap, str::FromStr};

use super::Usage;

const LONGEST_KEY: usize = 63;
const LONGEST_VALUE: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    key: String,
    value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or("a label has the form key=value, such as site=berlin")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if key.is_empty() || key.len() > LONGEST_KEY || !key.chars().all(allowed) {
            return Err(format!(
                "a label's key has 1 to {LONGEST_KEY} letters, digits, or any of . _ - /"
            ));
        }
        if value.len() > LONGEST_VALUE || value.contains(|c: char| c == ',' || c.is_control()) {
            return Err(format!(
                "a label's value has at most {LONGEST_VALUE} bytes, no comma and no control character"
            ));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// The labels by key. One key with two values is a usage error.
pub fn by_key(labels: Vec<Label>) -> Result<BTreeMap<String, String>, Usage> {
    let mut known = BTreeMap::new();
    for Label { key, value } in labels {
        if known.get(&key).is_some_and(|before| *before != value) {
            return Err(Usage(format!(
                "the label {key} is given two values: choose one"
            )));
        }
        known.insert(key, value);
    }
    Ok(known)
}

/// As text: `a=1, b=2`.
pub fn shown(labels: &serde_json::Value) -> String {
    let text = |(key, value): (&String, &serde_json::Value)| match value.as_str() {
        Some(text) => format!("{key}={text}"),
        None => format!("{key}={value}"),
    };
    let pairs = labels.as_object().into_iter().flatten();
    pairs.map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_labels_are_refused() {
        for text in [
            "",
            "site",
            "=berlin",
            "si te=x",
            "site=a,b",
            "site=a\nb",
            "sité=x",
        ] {
            assert!(text.parse::<Label>().is_err(), "{text:?}");
        }
        assert!(format!("{}=x", "k".repeat(64)).parse::<Label>().is_err());
        assert!(format!("k={}", "x".repeat(256)).parse::<Label>().is_err());
    }

    #[test]
    fn a_key_with_two_values_is_refused() {
        let labels =
            |texts: &[&str]| by_key(texts.iter().map(|text| text.parse().unwrap()).collect());
        assert_eq!(labels(&["a=1", "b=", "a=1"]).unwrap().len(), 2);
        assert!(labels(&["a=1", "a=2"]).is_err());
    }

    proptest! {
        #[test]
        fn a_label_is_split_at_its_first_equals_sign(key in "[A-Za-z0-9._/-]{1,63}", value in "[^,\\p{Cc}]{0,60}") {
            let label: Label = format!("{key}={value}").parse().unwrap();
            prop_assert_eq!(label, Label { key, value });
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<Label>();
        }
    }
}
