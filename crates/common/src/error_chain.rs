//! An error with its causes, on one line.

use std::{error::Error, iter};

pub fn chain(error: &dyn Error) -> String {
    let errors = iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = errors.map(ToString::to_string).collect();
    texts.join(": ")
}
