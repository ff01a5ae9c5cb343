//! The admin commands of the real binary, with only DATABASE_URL set.

mod agents;
mod hosts;
mod roles;
mod tokens;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use svc_testkit::{Finished, ServiceBuilder, ServiceProcess, Site, assert_contains, eventually};

fn command(site: &Site, arguments: &[&str]) -> ServiceBuilder {
    let process = site.command_process(arguments);
    process.set("USER", "ann")
}

/// Runs a command that must exit with `code`.
async fn run(site: &Site, code: i32, arguments: &[&str]) -> Result<Finished> {
    let ended = command(site, arguments).exits(code).await;
    ended.with_context(|| format!("{arguments:?}"))
}

/// Runs a command that must succeed, and returns its output.
pub async fn output_of(site: &Site, arguments: &[&str]) -> Result<String> {
    Ok(run(site, 0, arguments).await?.stdout)
}

pub async fn json(site: &Site, arguments: &[&str]) -> Result<Value> {
    let arguments = [arguments, &["--output", "json"]].concat();
    Ok(serde_json::from_str(&output_of(site, &arguments).await?)?)
}

/// Runs a command that must fail with `code` and one line, and returns the line.
pub async fn failure_of(site: &Site, code: i32, arguments: &[&str]) -> Result<String> {
    let ended = run(site, code, arguments).await?;
    let line = ended
        .stderr
        .strip_prefix("svc-ingest: ")
        .context(ended.stderr.clone())?;
    assert_eq!(line.lines().count(), 1, "one line: {line}");
    Ok(line.trim_end().to_owned())
}

/// The member `name` of each object in an array.
fn members(list: &Value, name: &str) -> Vec<String> {
    let objects = list.as_array().into_iter().flatten();
    let text = |object: &Value| object[name].as_str().unwrap_or("null").to_owned();
    objects.map(text).collect()
}

/// An agent on its own machine, whose id begins with four times `digit`.
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

/// The same, approved.
async fn active_agent(site: &Site, digit: char, hostname: &str, labels: &str) -> Result<String> {
    let id = agent(site, digit, hostname, labels).await?;
    output_of(site, &["agent", "approve", &id]).await?;
    Ok(id)
}

/// An active agent, and a second one on its machine.
async fn conflict(site: &Site) -> Result<(String, String)> {
    let old = active_agent(site, '1', "web-1", "{}").await?;
    let new = conflicting_agent(site, '2', &old).await?;
    Ok((old, new))
}

/// A second agent on the machine of an active one, as registration creates it.
async fn conflicting_agent(site: &Site, digit: char, incumbent: &str) -> Result<String> {
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
async fn an_empty_list_prints_advice_and_is_an_empty_json_array() -> Result<()> {
    let site = Site::new().await?;
    for (noun, advice) in [
        ("token", "token create"),
        ("agent", "token create"),
        ("host", "register"),
    ] {
        let text = output_of(&site, &[noun, "list"]).await?;
        assert_contains(&text, advice);
        assert_eq!(json(&site, &[noun, "list"]).await?, serde_json::json!([]));
    }
    Ok(())
}

#[tokio::test]
async fn without_a_schema_a_command_points_to_migrate() -> Result<()> {
    let site = Site::unmigrated().await?;
    for arguments in [
        &["token", "list"][..],
        &["token", "create"],
        &["agent", "approve", "x"],
        &["host", "show", "x"],
        &["status"],
    ] {
        let line = failure_of(&site, 1, arguments).await?;
        assert_contains(&line, "run `svc-ingest migrate`");
    }
    Ok(())
}

#[tokio::test]
async fn without_a_database_a_command_fails_and_hides_the_password() -> Result<()> {
    let site = Site::new().await?;
    let url = "postgres://u:hunter2@127.0.0.1:1/d";
    for (name, advice) in [
        ("status", "svc-ingest doctor"),
        ("migrate", "the database is unavailable"),
    ] {
        let away = command(&site, &[name]).set("DATABASE_URL", url);
        let ended = away.exits(1).await?;
        assert_contains(&ended.stderr, advice);
        assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
        let unset = command(&site, &[name]).unset("DATABASE_URL");
        let expected = "svc-ingest: DATABASE_URL: is required and not set\n";
        assert_eq!(unset.exits(2).await?.stderr, expected);
    }
    Ok(())
}

#[tokio::test]
async fn status_counts_everything() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    active_agent(&site, '1', "web-1", "{}").await?;
    agent(&site, '2', "web-2", "{}").await?;
    output_of(&site, &["token", "create"]).await?;
    let status = json(&site, &["status"]).await?;
    for (noun, state, count) in [
        ("tokens", "active", 1),
        ("tokens", "revoked", 0),
        ("agents", "pending", 1),
        ("agents", "active", 1),
        ("agents", "offline", 1),
        ("hosts", "in_service", 2),
    ] {
        assert_eq!(status[noun][state], count, "{state} {noun}");
    }
    let address = instance.grpc.to_string();
    assert_eq!(status["instances"][0]["grpc_address"], address);
    assert_eq!(status["kids"][0], status["instances"][0]["kid"]);
    let text = output_of(&site, &["status"]).await?;
    assert_contains(&text, "1 pending, 1 active (0 online, 1 offline)");
    assert_contains(&text, "agent list --status pending");
    instance.stop().await
}

#[tokio::test]
async fn a_watch_prints_again_until_it_is_interrupted() -> Result<()> {
    let site = Site::new().await?;
    let process = command(&site, &["agent", "list", "--watch", "--output", "json"]).launch()?;
    agent(&site, '1', "web-1", "{}").await?;
    shows(&process, "web-1").await?;
    agent(&site, '2', "web-2", "{}").await?;
    shows(&process, "web-2").await?;
    process.signal(Signal::INT)?;
    assert!(process.ended().await?.success());
    assert!(!process.output().contains('\u{1b}'), "no escapes in a pipe");
    Ok(())
}

async fn shows(process: &ServiceProcess, text: &str) -> Result<()> {
    eventually(text, async || process.output().contains(text)).await
}
