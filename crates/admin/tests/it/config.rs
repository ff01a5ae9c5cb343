//! Configuration: refused values, their messages, and secrets.

use std::{ffi::OsString, net::TcpListener, os::unix::ffi::OsStringExt};

use anyhow::{Context, Result};
use svc_ingest::config::{Config, Fallback, Problems, VARIABLES, Variable};
use svc_sandbox::Nats;
use svc_testkit::{Environment, Site, assert_contains};
use tempfile::TempDir;

const DOWNLOADS: &str = "INGEST_AGENT_DOWNLOAD_BASE_URL";
const DATABASE: &str = "postgres://svc@127.0.0.1:5432/svc";

fn good() -> Result<(TempDir, Environment)> {
    let folder = tempfile::tempdir()?;
    let environment = Environment::with_files(folder.path(), DATABASE)?;
    Ok((folder, environment))
}

fn read(environment: &Environment) -> Result<Config, Problems> {
    Config::read(&|name| environment.get(name))
}

/// The only problem of `environment`, as its line.
fn only_problem(environment: &Environment) -> Result<String> {
    let Problems(problems) = read(environment).err().context("no problem was found")?;
    match problems.as_slice() {
        [one] => Ok(one.to_string()),
        several => anyhow::bail!("not one problem: {several:?}"),
    }
}

/// Variable, value, and a part of its message.
const REFUSED: &[(&str, &str, &str)] = &[
    ("DATABASE_URL", "", "is required and not set"),
    ("DATABASE_URL", "mysql://h/d", "mysql://"),
    ("DATABASE_URL", "just words", "neither a postgres://"),
    ("DATABASE_URL", "postgres://u:%zz@h/d", "percent-encoded"),
    ("DATABASE_URL", "postgres://u:%ff@h/d", "percent-encoded"),
    ("DATABASE_URL", "postgres://u@h:0/d", "port"),
    (
        "DATABASE_URL",
        "postgres://h/d?sslmode=verify-full&sslrootcert=/no/such/ca.pem",
        "/no/such/ca.pem",
    ),
    ("INGEST_TLS_CERT", "", "is required and not set"),
    ("INGEST_TLS_KEY", "", "is required and not set"),
    ("INGEST_GRPC_PORT", "0", "1 to 65535"),
    ("INGEST_GRPC_PORT", "65536", "1 to 65535"),
    ("INGEST_GRPC_PORT", "-1", "1 to 65535"),
    ("INGEST_GRPC_PORT", "9443x", "\"9443x\""),
    ("INGEST_HTTP_PORT", "0", "1 to 65535"),
    ("INGEST_HTTP_PORT", "65536", "1 to 65535"),
    ("INGEST_HTTP_PORT", "-1", "1 to 65535"),
    ("INGEST_HTTP_PORT", " 8080", "1 to 65535"),
    ("INGEST_HTTP_PORT", "9443", "INGEST_GRPC_PORT"),
    ("INGEST_BIND_ADDRESS", "localhost", "IP address"),
    ("INGEST_HTTP_BIND_ADDRESS", "::g", "IP address"),
    (DOWNLOADS, "example.org", "URL"),
    (DOWNLOADS, "localhost:3000", "http://"),
    (DOWNLOADS, "ftp://example.org", "http://"),
    (DOWNLOADS, "http://u:p@h", "credentials"),
    (DOWNLOADS, "http://u@h", "credentials"),
    (DOWNLOADS, "http://h/?a=b", "query"),
    ("INGEST_TLS_CLIENT_CA", "/no/such/ca.pem", "/no/such/ca.pem"),
    ("INGEST_JWT_EXTRA_KEY_FILES", "/no/such.pem", "/no/such.pem"),
    (
        "INGEST_JWT_EXTRA_KEY_FILES",
        "1,2,3,4,5,6,7,8,9",
        "at most 8",
    ),
    ("INGEST_MAX_CONNECTIONS", "0", "from 1 to"),
    ("INGEST_DB_POOL_SIZE", "3", "from 4 to"),
    ("INGEST_LISTEN_DATABASE_URL", "nonsense", "postgres://"),
    ("INGEST_OWNER_DATABASE_URL", "nonsense", "postgres://"),
    ("INGEST_AUTO_MIGRATE", "yes", "neither true nor false"),
    ("INGEST_QUEUE_URL", "kafka://h", "memory:"),
    ("INGEST_NATS_CREDS", "/no/such/file", "cannot be read"),
    ("INGEST_CONSUME", "1", "neither true nor false"),
    ("INGEST_OTLP_ENDPOINT", "h:4318", "http://"),
    ("INGEST_OTLP_ENDPOINT", "http://u:p@h", "credentials"),
    ("INGEST_OTLP_ENDPOINT", "http://h/?a=b", "query"),
    ("INGEST_OTLP_PROTOCOL", "http", "neither http/protobuf"),
    ("INGEST_OTLP_HEADERS", "authorization", "name=value"),
    ("INGEST_HEARTBEAT_INTERVAL", "30", "30s"),
    ("INGEST_HEARTBEAT_INTERVAL", "0s", "between 1s and 1h"),
    ("INGEST_METRICS_RETENTION", "1h", "between 1d"),
    ("INGEST_PROXY_PROTOCOL_FROM", "10.0.0.0/33", "networks"),
    ("INGEST_DRAIN_DELAY", "3m", "between 0s and 2m"),
    ("INGEST_DRAIN_TIMEOUT", "11m", "between 1s and 10m"),
    ("INGEST_AGENT_LATEST_VERSION", "one two", "version"),
    ("INGEST_LOG", "svc=[", "log filter"),
    ("INGEST_LOG_FORMAT", "xml", "neither text nor json"),
];

#[test]
fn a_bad_value_is_one_problem_under_the_name_of_its_variable() -> Result<()> {
    let (_folder, environment) = good()?;
    for (variable, value, complaint) in REFUSED {
        let problem = only_problem(&environment.clone().set(variable, value))
            .with_context(|| format!("{variable}={value}"))?;
        assert!(
            problem.starts_with(&format!("{variable}: ")) && problem.contains(complaint),
            "{variable}={value} gives {problem:?}, which lacks {complaint:?}"
        );
        assert_eq!(problem.lines().count(), 1, "{problem}");
    }
    Ok(())
}

#[test]
fn a_value_that_is_not_utf_8_is_a_problem_for_every_variable() -> Result<()> {
    let (_folder, environment) = good()?;
    for variable in VARIABLES {
        let bytes = OsString::from_vec(b"/\xff\xfe".to_vec());
        let problem = only_problem(&environment.clone().set(variable.name, bytes))?;
        assert_eq!(problem, format!("{}: is not valid UTF-8", variable.name));
    }
    Ok(())
}

#[test]
fn an_empty_variable_counts_as_unset() -> Result<()> {
    let (_folder, unset) = good()?;
    let kept = ["INGEST_JWT_KEY_FILE", "INGEST_BIND_ADDRESS"];
    let optional = |variable: &&Variable| variable.fallback != Fallback::Required;
    let empty = VARIABLES
        .iter()
        .filter(optional)
        .filter(|variable| !kept.contains(&variable.name))
        .fold(unset.clone(), |all, variable| all.set(variable.name, ""));
    let shown = |environment| read(environment).map(|config| format!("{config:?}"));
    assert_eq!(shown(&empty)?, shown(&unset)?);
    Ok(())
}

#[test]
fn all_problems_are_reported_at_once() -> Result<()> {
    let environment = Environment::default()
        .set("INGEST_TLS_CERT", "/no/such/cert.pem")
        .set("INGEST_TLS_KEY", "/no/such/key.pem")
        .set("INGEST_JWT_KEY_FILE", "/no/such/folder/key.pem")
        .set("INGEST_GRPC_PORT", "9443x")
        .set("INGEST_HTTP_PORT", "65536")
        .set(DOWNLOADS, "ftp://example.org")
        .set("INGEST_DRAIN_TIMEOUT", "soon");
    let Problems(problems) = read(&environment).err().context("no problem was found")?;
    let mut names: Vec<_> = problems.iter().map(|problem| problem.variable).collect();
    names.sort_unstable();
    let expected = [
        "DATABASE_URL",
        DOWNLOADS,
        "INGEST_DRAIN_TIMEOUT",
        "INGEST_GRPC_PORT",
        "INGEST_HTTP_PORT",
        "INGEST_JWT_KEY_FILE",
        "INGEST_TLS_CERT",
        "INGEST_TLS_KEY",
    ];
    assert_eq!(names, expected);
    Ok(())
}

#[test]
fn the_variables_of_the_specification_have_its_defaults() -> Result<()> {
    let specified = [
        ("DATABASE_URL", Fallback::Required),
        ("INGEST_TLS_CERT", Fallback::Required),
        ("INGEST_TLS_KEY", Fallback::Required),
        (
            "INGEST_JWT_KEY_FILE",
            Fallback::Default("/var/lib/svc/jwt_key.pem"),
        ),
        ("INGEST_GRPC_PORT", Fallback::Default("9443")),
        ("INGEST_HTTP_PORT", Fallback::Default("8080")),
        (DOWNLOADS, Fallback::Default("http://localhost:3000")),
    ];
    let table: Vec<_> = VARIABLES.iter().map(|v| (v.name, v.fallback)).collect();
    assert_eq!(table[..specified.len()], specified);

    let (_folder, environment) = good()?;
    let config = read(&environment.clone().unset("INGEST_BIND_ADDRESS"))?;
    assert_eq!(config.grpc.address.to_string(), "0.0.0.0:9443");
    assert_eq!(config.http.to_string(), "0.0.0.0:8080");
    let base_url = config.agents.download_base_url.as_str();
    assert_eq!(base_url.trim_end_matches('/'), "http://localhost:3000");
    // The default folder may exist or not; both results name the file.
    let key_file = match read(&environment.unset("INGEST_JWT_KEY_FILE")) {
        Ok(config) => config.jwt_key_file.display().to_string(),
        Err(problems) => problems.to_string(),
    };
    assert_contains(&key_file, "/var/lib/svc/jwt_key.pem");
    Ok(())
}

#[test]
fn equal_ports_are_accepted_on_different_addresses() -> Result<()> {
    let (_folder, environment) = good()?;
    let environment = environment
        .set("INGEST_HTTP_BIND_ADDRESS", "127.0.0.2")
        .set("INGEST_HTTP_PORT", "9443");
    let config = read(&environment)?;
    assert_eq!(config.http.to_string(), "127.0.0.2:9443");
    Ok(())
}

#[tokio::test]
async fn without_any_variable_the_process_lists_what_is_required_and_exits_with_2() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process();
    let required = ["DATABASE_URL", "INGEST_TLS_CERT", "INGEST_TLS_KEY"];
    let process = required.iter().fold(process, |all, name| all.unset(name));
    let ended = process.exits(2).await?;
    let expected = required.map(|name| format!("svc-ingest: {name}: is required and not set\n"));
    assert_eq!(ended.stderr, expected.concat());
    assert_eq!(ended.stdout, "");
    Ok(())
}

#[tokio::test]
async fn each_port_that_is_taken_is_named() -> Result<()> {
    let site = Site::new().await?;
    let taken = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let ports = [taken[0].local_addr()?.port(), taken[1].local_addr()?.port()];
    let line = |name: &str, port: u16| {
        format!("svc-ingest: {name}: 127.0.0.1:{port} is taken by another process")
    };

    let one = site.process().set("INGEST_HTTP_PORT", ports[1].to_string());
    let one = one.exits(2).await?;
    assert_contains(&one.stderr, &line("INGEST_HTTP_PORT", ports[1]));
    assert!(!one.stderr.contains("INGEST_GRPC_PORT"), "{}", one.stderr);

    let both = site
        .process()
        .set("INGEST_GRPC_PORT", ports[0].to_string())
        .set("INGEST_HTTP_PORT", ports[1].to_string());
    let both = both.exits(2).await?;
    let mut lines = both.stderr.lines();
    for (name, port) in [
        ("INGEST_GRPC_PORT", ports[0]),
        ("INGEST_HTTP_PORT", ports[1]),
    ] {
        let found = lines.next().unwrap_or_default();
        assert!(found.starts_with(&line(name, port)), "{found}");
    }
    assert_eq!(lines.next(), None);
    Ok(())
}

#[test]
fn secrets_are_in_no_problem_and_in_no_debug_text() -> Result<()> {
    let (_folder, environment) = good()?;
    let bad = [
        ("DATABASE_URL", "postgres://u:hunter2@h:0/d"),
        ("DATABASE_URL", "postgres://u:hunter2@@h/d"),
        ("DATABASE_URL", "mysql://u:hunter2@h/d"),
        ("DATABASE_URL", "host=h password=hunter2 nonsense=1"),
        ("DATABASE_URL", "hunter2"),
        (
            "INGEST_LISTEN_DATABASE_URL",
            "postgres://u:hunter2@h/d?what=1",
        ),
        ("INGEST_QUEUE_URL", "nats://u:hunter2@"),
        ("INGEST_QUEUE_URL", "redis://u:hunter2@h"),
        (DOWNLOADS, "http://u:hunter2@h"),
        ("INGEST_OTLP_ENDPOINT", "http://u:hunter2@h"),
        ("INGEST_OTLP_HEADERS", "hunter2"),
        ("INGEST_OTLP_HEADERS", "authorization=hunter2\u{1}"),
    ];
    for (name, value) in bad {
        let problem = only_problem(&environment.clone().set(name, value))?;
        assert!(!problem.contains("hunter2"), "{problem}");
    }
    let config = read(
        &environment
            .set("DATABASE_URL", "postgres://u:hunter2@h/d")
            .set("INGEST_LISTEN_DATABASE_URL", "postgres://u:hunter2@h/d")
            .set("INGEST_QUEUE_URL", "nats://u:hunter2@h")
            .set("INGEST_OTLP_ENDPOINT", "http://h")
            .set("INGEST_OTLP_HEADERS", "authorization=hunter2"),
    )?;
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    Ok(())
}

#[tokio::test]
async fn secrets_are_in_no_log_line_at_any_level() -> Result<()> {
    let site = Site::new().await?;
    let url = site.database_url().replace("svc@", "svc:hunter2@");
    let nats = Nats::with(["--user", "svc", "--pass", "hunter2"]).await?;
    let queue = nats.url().replace("nats://", "nats://svc:hunter2@");
    for format in ["text", "json"] {
        let process = site
            .process()
            .set("DATABASE_URL", &url)
            .set("INGEST_QUEUE_URL", &queue)
            .set("INGEST_LOG", "trace")
            .set("INGEST_LOG_FORMAT", format);
        let process = process.start().await?;
        process.stop().await?;
        let logs = process.logs();
        assert_contains(&logs, "serving");
        assert!(logs.contains("CONNECT"), "NATS is not logged at this level");
        assert!(!logs.contains("hunter2"), "a secret was logged");
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_start_prints_no_secrets() -> Result<()> {
    let site = Site::new().await?;
    let process = site
        .process()
        .set("DATABASE_URL", "postgres://svc:hunter2@h:0/d")
        .set("INGEST_QUEUE_URL", "redis://svc:hunter2@h")
        .set(DOWNLOADS, "http://svc:hunter2@h")
        .set("INGEST_LOG", "trace");
    let ended = process.exits(2).await?;
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.stderr.lines().count(), 3, "{}", ended.stderr);
    assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn json_log_lines_are_json() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().set("INGEST_LOG_FORMAT", "json");
    let process = process.start().await?;
    process.stop().await?;
    let logs = process.logs();
    assert_contains(&logs, "serving");
    for line in logs.lines() {
        let line: serde_json::Value = serde_json::from_str(line).context(line.to_owned())?;
        assert!(
            line["message"].is_string() && line["level"].is_string(),
            "{line}"
        );
    }
    Ok(())
}

/// The table that the README must contain.
fn table() -> String {
    let row = |variable: &Variable| {
        let (required, default) = match variable.fallback {
            Fallback::Required => ("yes", "none".to_owned()),
            Fallback::Default(default) => ("no", format!("`{default}`")),
            Fallback::Unset(shown) => ("no", shown.to_owned()),
        };
        format!(
            "| `{}` | {required} | {default} | {} |\n",
            variable.name, variable.meaning
        )
    };
    let head = "| Variable | Required | Default | Meaning |\n|---|---|---|---|\n";
    let rows: String = VARIABLES.iter().map(row).collect();
    format!("<!-- variables -->\n{head}{rows}<!-- /variables -->\n")
}

#[test]
fn the_readme_has_the_table_of_variables() -> Result<()> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"))?;
    let table = table();
    assert!(
        readme.contains(&table),
        "README.md should contain:\n{table}"
    );
    Ok(())
}
