//! What commands print.

use std::{
    io::{Write, stdout},
    process::ExitCode,
};

use svc_common::settings::Problems;
use svc_store::StoreError;

/// A closed pipe is no failure of the command.
pub fn print(text: &str) {
    drop(stdout().write_all(text.as_bytes()));
}

/// Configuration problems get one line each; any other error is one line with its chain of causes.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        for problem in &problems.0 {
            eprintln!("svc-console: {problem}");
        }
        return ExitCode::from(2);
    }
    let server = error.downcast_ref::<StoreError>();
    match server.and_then(StoreError::server_message) {
        Some(message) => eprintln!("svc-console: {error:#}: {message}"),
        None => eprintln!("svc-console: {error:#}"),
    }
    ExitCode::FAILURE
}
