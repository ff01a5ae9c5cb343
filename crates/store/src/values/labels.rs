//! Labels of hosts, and of the tokens that give them: texts by key, bounded.
//!
//! The SQL function `labels_problem` (`schema/20_enrolment.sql`) is the same rule, as a constraint of every table that
//! stores labels. `tests/it/labels.rs` compares the two.

use std::{collections::BTreeMap, error::Error, fmt, str::FromStr};

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::{FromSql, Json, Type};

const LONGEST_KEY: usize = 63;
const LONGEST_VALUE: usize = 255;
const MOST_LABELS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Labels(BTreeMap<String, String>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelChange {
    pub added: Labels,
    /// Keys.
    pub removed: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    #[error("a label has the form key=value, such as site=berlin")]
    Form,
    #[error("labels are an object of texts")]
    NoTexts,
    #[error(
        "the key of a label begins with a letter or digit and has at most {LONGEST_KEY} letters, digits, and . _ - /, not {0:?}"
    )]
    Key(String),
    #[error(
        "the value of the label {0} is longer than {LONGEST_VALUE} bytes, or has a comma or a control character"
    )]
    Value(String),
    #[error("the label {0} is given two values: choose one")]
    TwoValues(String),
    #[error("there are more than {MOST_LABELS} labels")]
    TooMany,
}

impl Labels {
    /// All labels of several lists. A key has one value.
    pub fn joined(lists: impl IntoIterator<Item = Labels>) -> Result<Labels, LabelsError> {
        let mut all = Labels::default();
        for (key, value) in lists.into_iter().flat_map(|list| list.0) {
            all.add(&key, &value)?;
        }
        Ok(all)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), LabelsError> {
        if !is_key(key) {
            return Err(LabelsError::Key(key.into()));
        }
        if value.len() > LONGEST_VALUE || value.contains(|c: char| c == ',' || c.is_control()) {
            return Err(LabelsError::Value(key.into()));
        }
        let known = self.0.entry(key.into()).or_insert_with(|| value.into());
        if known.as_str() != value {
            return Err(LabelsError::TwoValues(key.into()));
        }
        match self.0.len() {
            ..=MOST_LABELS => Ok(()),
            _ => Err(LabelsError::TooMany),
        }
    }

    fn add_text(&mut self, label: &str) -> Result<(), LabelsError> {
        let (key, value) = label.split_once('=').ok_or(LabelsError::Form)?;
        self.add(key.trim(), value.trim())
    }
}

fn is_key(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    text.len() <= LONGEST_KEY
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
}

/// The parts of a list that people write.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let parts = list.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

/// From a list, `env=prod, team=web`.
impl FromStr for Labels {
    type Err = LabelsError;

    fn from_str(list: &str) -> Result<Labels, LabelsError> {
        let mut labels = Labels::default();
        for label in parts(list) {
            labels.add_text(label)?;
        }
        Ok(labels)
    }
}

/// From a list, `env=prod, -old`: a key with a minus before it is removed.
impl FromStr for LabelChange {
    type Err = LabelsError;

    fn from_str(list: &str) -> Result<LabelChange, LabelsError> {
        let mut change = LabelChange::default();
        for part in parts(list) {
            match part.strip_prefix('-').map(str::trim) {
                Some(key) if is_key(key) => change.removed.push(key.into()),
                Some(key) => return Err(LabelsError::Key(key.into())),
                None => change.added.add_text(part)?,
            }
        }
        Ok(change)
    }
}

impl TryFrom<&Value> for Labels {
    type Error = LabelsError;

    fn try_from(json: &Value) -> Result<Labels, LabelsError> {
        let mut labels = Labels::default();
        for (key, value) in json.as_object().ok_or(LabelsError::NoTexts)? {
            labels.add(key, value.as_str().ok_or(LabelsError::NoTexts)?)?;
        }
        Ok(labels)
    }
}

/// As a list that can be parsed, in the order of the keys.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// The database has checked them.
impl<'a> FromSql<'a> for Labels {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Labels, Box<dyn Error + Sync + Send>> {
        let Json(labels) = Json::from_sql(ty, raw)?;
        Ok(Labels(labels))
    }

    fn accepts(ty: &Type) -> bool {
        <Json<BTreeMap<String, String>> as FromSql>::accepts(ty)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(list: &str) -> LabelsError {
        list.parse::<Labels>().unwrap_err()
    }

    #[test]
    fn malformed_labels_are_refused() {
        for list in [
            "site",
            "=berlin",
            "si te=x",
            "site=a,b",
            "sité=x",
            "-site=x",
            "site=a\u{7}b",
        ] {
            assert!(list.parse::<Labels>().is_err(), "{list:?}");
        }
        assert!(matches!(
            refused(&format!("{}=x", "k".repeat(64))),
            LabelsError::Key(_)
        ));
        assert!(matches!(
            refused(&format!("k={}", "x".repeat(256))),
            LabelsError::Value(_)
        ));
        assert_eq!(refused("a=1, a=2"), LabelsError::TwoValues("a".into()));
        let many: Vec<String> = (0..65).map(|n| format!("k{n}=")).collect();
        assert_eq!(refused(&many.join(",")), LabelsError::TooMany);
        assert!(many[1..].join(",").parse::<Labels>().is_ok());
    }

    #[test]
    fn several_lists_are_joined_unless_a_key_has_two_values() {
        let joined = |lists: &[&str]| {
            Labels::joined(lists.iter().map(|list| list.parse::<Labels>().unwrap()))
        };
        assert_eq!(joined(&["b=, a=1", "a=1,"]).unwrap().to_string(), "a=1, b=");
        assert!(joined(&["a=1", "a=2"]).is_err());
    }

    #[test]
    fn a_change_adds_and_removes() {
        let change: LabelChange = "env=prod, team=web ops, -old".parse().unwrap();
        assert_eq!(change.added.to_string(), "env=prod, team=web ops");
        assert_eq!(change.removed, ["old"]);
        for wrong in ["env", "=x", "-", "-a=b", "- -a", "a=b\u{7}"] {
            assert!(wrong.parse::<LabelChange>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_list_is_parsed_as_it_is_shown(
            labels in prop::collection::btree_map("[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", "([^,\\p{Cc}\\s]([^,\\p{Cc}]{0,20}[^,\\p{Cc}\\s])?)?", 0..5),
        ) {
            let labels = Labels(labels);
            prop_assert_eq!(labels.to_string().parse::<Labels>(), Ok(labels));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".*") {
            let _ = text.parse::<LabelChange>();
        }
    }
}
