//! The admin commands through the real binary, with DATABASE_URL and nothing else.

mod agents;
mod hosts;
mod roles;
mod tokens;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Finished, Process, ProcessBuilder, Site, eventually};

fn command(site: &Site, arguments: &[&str]) -> ProcessBuilder {
    let bare = ["INGEST_TLS_CERT", "INGEST_TLS_KEY", "INGEST_JWT_KEY_FILE"];
    let process = site.process().arguments(arguments).set("USER", "ann");
    bare.iter()
        .fold(process, |process, name| process.unset(name))
}

async fn run(site: &Site, arguments: &[&str]) -> Result<Finished> {
    command(site, arguments).run().await
}

/// What it prints, where it succeeds.
pub async fn done(site: &Site, arguments: &[&str]) -> Result<String> {
    let ended = run(site, arguments).await?;
    anyhow::ensure!(ended.code == Some(0), "{arguments:?}: {ended:?}");
    Ok(ended.stdout)
}

pub async fn json(site: &Site, arguments: &[&str]) -> Result<Value> {
    let arguments = [arguments, &["--output", "json"]].concat();
    Ok(serde_json::from_str(&done(site, &arguments).await?)?)
}

/// The one line that it complains with, where it fails with `code`.
async fn complaint(site: &Site, code: i32, arguments: &[&str]) -> Result<String> {
    let ended = run(site, arguments).await?;
    assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
    let line = ended
        .stderr
        .strip_prefix("svc-ingest: ")
        .context(ended.stderr.clone())?;
    assert_eq!(line.lines().count(), 1, "one line: {line}");
    Ok(line.trim_end().to_owned())
}

/// The member `name` of each object in an array.
fn each(list: &Value, name: &str) -> Vec<String> {
    let objects = list.as_array().into_iter().flatten();
    let text = |object: &Value| object[name].as_str().unwrap_or("null").to_owned();
    objects.map(text).collect()
}

/// An agent on a machine of its own, whose id begins with four times `digit`.
async fn agent(site: &Site, digit: char, hostname: &str, labels: &str) -> Result<String> {
    let (id, host) = (id('a', digit), id('b', digit));
    site.psql(&format!(
        "INSERT INTO hosts (id, hostname, os, cpu_count, memory_total_bytes, labels)
         VALUES ('{host}', '{hostname}', 'Debian', 4, 8589934592, '{labels}');
         INSERT INTO host_identifiers VALUES ('{host}', 'machine', md5('{hostname}'));
         INSERT INTO agents (id, host_id, key, status, version, facts) VALUES
                ('{id}', '{host}', sha256('{digit}'), 'pending', '1.0.0', jsonb_build_object('hostname', '{hostname}',
                 'identifiers', jsonb_build_object('machine', jsonb_build_array(md5('{hostname}')))))"
    ))
    .await?;
    Ok(id)
}

/// A second agent for the machine of an active one, as registration would make it.
async fn rival(site: &Site, digit: char, incumbent: &str) -> Result<String> {
    let id = id('a', digit);
    site.psql(&format!(
        "INSERT INTO agents (id, host_id, key, status, pending_reason, conflict_with, facts)
         SELECT '{id}', host_id, sha256('{digit}'), 'pending', 'conflict', id, facts FROM agents WHERE id = '{incumbent}'"
    ))
    .await?;
    Ok(id)
}

fn id(kind: char, digit: char) -> String {
    let four: String = [digit; 4].iter().collect();
    format!("{four}{kind}000-0000-4000-8000-000000000000")
}

#[tokio::test]
async fn empty_lists_say_what_to_do_and_are_empty_arrays() -> Result<()> {
    let site = Site::new().await?;
    for (noun, advice) in [
        ("token", "token create"),
        ("agent", "token create"),
        ("host", "register"),
    ] {
        let text = done(&site, &[noun, "list"]).await?;
        assert!(text.contains(advice), "{text}");
        assert_eq!(json(&site, &[noun, "list"]).await?, serde_json::json!([]));
    }
    Ok(())
}

#[tokio::test]
async fn a_schema_that_is_missing_asks_for_migrate() -> Result<()> {
    let site = Site::unmigrated().await?;
    for arguments in [
        &["token", "list"][..],
        &["token", "create"],
        &["agent", "approve", "x"],
        &["host", "show", "x"],
        &["status"],
    ] {
        let line = complaint(&site, 1, arguments).await?;
        assert!(line.contains("run `svc-ingest migrate`"), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn without_a_database_one_line_says_so_and_hides_the_password() -> Result<()> {
    let site = Site::new().await?;
    let process =
        command(&site, &["status"]).set("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/d");
    let ended = process.run().await?;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("svc-ingest doctor") && !ended.stderr.contains("hunter2"),
        "{}",
        ended.stderr
    );
    let ended = command(&site, &["status"])
        .unset("DATABASE_URL")
        .run()
        .await?;
    let expected = "svc-ingest: DATABASE_URL: is required and not set\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(2), expected));
    Ok(())
}

#[tokio::test]
async fn status_counts_everything() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let one = agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "web-2", "{}").await?;
    done(&site, &["agent", "approve", &one]).await?;
    done(&site, &["token", "create"]).await?;
    let status = json(&site, &["status"]).await?;
    assert_eq!(status["tokens"]["active"], 1);
    assert_eq!(status["tokens"]["revoked"], 0);
    assert_eq!(status["agents"]["pending"], 1);
    assert_eq!(status["agents"]["active"], 1);
    assert_eq!(status["agents"]["offline"], 1);
    assert_eq!(status["hosts"]["in_service"], 2);
    assert_eq!(
        status["instances"][0]["grpc_address"],
        instance.grpc.to_string()
    );
    assert_eq!(status["kids"][0], status["instances"][0]["kid"]);
    let text = done(&site, &["status"]).await?;
    assert!(
        text.contains("1 pending, 1 active (0 online, 1 offline)"),
        "{text}"
    );
    assert!(text.contains("agent list --status pending"), "{text}");
    instance.stop().await
}

#[tokio::test]
async fn a_watch_draws_again_until_it_is_interrupted() -> Result<()> {
    let site = Site::new().await?;
    let mut process = command(&site, &["agent", "list", "--watch", "--output", "json"]).launch()?;
    agent(&site, '1', "web-1", "{}").await?;
    shows(&process, "web-1").await?;
    agent(&site, '2', "web-2", "{}").await?;
    shows(&process, "web-2").await?;
    process.signal(Signal::INT)?;
    assert!(process.ended().await?.success());
    assert!(!process.output().contains('\u{1b}'), "no escapes in a pipe");
    Ok(())
}

async fn shows(process: &Process, text: &str) -> Result<()> {
    eventually(text, async || process.output().contains(text)).await
}
