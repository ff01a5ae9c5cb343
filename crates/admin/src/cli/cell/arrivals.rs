//! The file that carries agents from one cell to another: one line of JSON for each.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;
use svc_store::{Arrival, Arrived};

use super::Who;
use crate::cli::{database::open, exit_code, output::Output};

/// Agents of one query.
const STEP: i64 = 1000;
/// Of a line. What an agent may say of itself is less.
const LONGEST_LINE: u64 = 64 * 1024;
const LONGEST_TEXT: usize = 255;
const LONGEST_LIST: usize = 64;

#[derive(Debug, Default, Serialize)]
struct Imported {
    new: u32,
    known: u32,
    refused: Vec<String>,
}

pub async fn export(who: &Who, out: &Path) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let filter = who.filter(&store).await?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(out);
    let mut file = BufWriter::new(file.with_context(|| out.display().to_string())?);
    let (mut after, mut count) = (Default::default(), 0);
    loop {
        let step = store.arrivals_export(&filter, after, STEP).await?;
        let Some(last) = step.last() else { break };
        after = last.agent;
        for arrival in &step {
            serde_json::to_writer(&mut file, arrival)?;
            file.write_all(b"\n")?;
            count += 1;
        }
    }
    let file = file.into_inner().context("the file cannot be written")?;
    file.sync_all()?;
    eprintln!("{count} agents: run `svc-ingest cell import` with this file in the other cell");
    Ok(exit_code(count > 0))
}

/// Each agent by itself: one that is refused keeps no other one out, and a repetition continues.
pub async fn import(file: &Path, actor: &str, output: Output) -> anyhow::Result<ExitCode> {
    let store = open().await?;
    let opened = File::open(file).with_context(|| file.display().to_string())?;
    let mut lines = BufReader::new(opened);
    let mut imported = Imported::default();
    while let Some(line) = next_line(&mut lines)? {
        let (key, arrival) = parse(&line).context("a line of the file is no agent's")?;
        match store.arrival_admit(&key, &arrival, actor).await? {
            Arrived::New(_) => imported.new += 1,
            Arrived::Known(_) => imported.known += 1,
            Arrived::Refused(why) => {
                let name = &arrival.facts.hostname;
                imported.refused.push(format!("{name}: {why}"));
            }
        }
    }
    output.print(&imported, || {
        let (new, known) = (imported.new, imported.known);
        let head = format!("{new} agents are expected, {known} more are known here already");
        let refused = imported
            .refused
            .iter()
            .map(|line| format!("\nrefused: {line}"));
        head + &refused.collect::<String>()
    })?;
    Ok(exit_code(imported.refused.is_empty()))
}

fn next_line(lines: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = lines.take(LONGEST_LINE).read_line(&mut line)?;
    if read > 0 && !line.ends_with('\n') {
        bail!("the file is cut short, or a line is longer than {LONGEST_LINE} bytes");
    }
    Ok((read > 0).then_some(line))
}

/// The file comes from another cell, so it is believed no more than an agent would be.
fn parse(line: &str) -> anyhow::Result<([u8; 32], Arrival)> {
    let value: Value = serde_json::from_str(line)?;
    if !is_bounded(&value) {
        bail!("a text or a list is too long, or has a control character");
    }
    let arrival: Arrival = serde_json::from_value(value)?;
    if arrival.status != "active" || arrival.acked_seq < 0 || arrival.acked_seq == i64::MAX {
        bail!("its status is not active, or its watermark is no number");
    }
    if arrival.facts.hostname.trim().is_empty() {
        bail!("it has no hostname");
    }
    Ok((key(&arrival.key).context("its key is no SHA-256")?, arrival))
}

fn is_bounded(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control),
        Value::Array(list) => list.len() <= LONGEST_LIST && list.iter().all(is_bounded),
        Value::Object(fields) => {
            let short =
                |(name, value): (&String, _)| name.len() <= LONGEST_TEXT && is_bounded(value);
            fields.len() <= LONGEST_LIST && fields.iter().all(short)
        }
        _ => true,
    }
}

fn key(hex: &str) -> Option<[u8; 32]> {
    let digits = Some(hex).filter(|hex| hex.len() == 64 && hex.is_ascii())?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(change: impl FnOnce(&mut Value)) -> String {
        let mut value = serde_json::json!({
            "key": "0a".repeat(32), "agent": "00000000-0000-0000-0000-000000000001", "status": "active",
            "version": "1", "capabilities": ["cells"], "facts": { "hostname": "web-1", "identifiers": { "machine": ["m"] } },
            "labels": { "env": "prod" }, "registered_from": "10.0.0.1", "acked_seq": 7
        });
        change(&mut value);
        value.to_string()
    }

    #[test]
    fn a_line_is_an_active_agent_with_bounded_texts() {
        let (key, arrival) = parse(&line(|_| {})).unwrap();
        assert_eq!((key, arrival.acked_seq), ([10; 32], 7));
        for bad in [
            line(|value| value["key"] = "0a".repeat(31).into()),
            line(|value| value["key"] = "zz".repeat(32).into()),
            line(|value| value["status"] = "revoked".into()),
            line(|value| value["acked_seq"] = (-1).into()),
            line(|value| value["facts"]["hostname"] = " ".into()),
            line(|value| value["facts"]["hostname"] = "a\u{1b}[31m".into()),
            line(|value| value["version"] = "x".repeat(256).into()),
            line(|value| value["capabilities"] = vec!["x"; 65].into()),
            "{}".into(),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }
}
