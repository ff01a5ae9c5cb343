//! An error with its causes, on one line, whatever texts from outside are in it.

use std::{error::Error, iter};

use crate::text::visible;

pub fn chain(error: &dyn Error) -> String {
    let errors = iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = errors.map(ToString::to_string).collect();
    visible(&texts.join(": ").replace(['\n', '\r', '\t'], " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_whatever_its_causes_say() {
        let error = std::io::Error::other("first\nsecond\u{1b}[2J\u{202e}");
        assert_eq!(chain(&error), "first second[U+001B][2J[U+202E]");
    }
}
