//! `svc-ingest init` on a real PostgreSQL server that demands passwords, and the settings file that all commands find.

mod console;
mod new_ca;
mod private_ca;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result};
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::Value;
use svc_sandbox::{Identity, Postgres, PostgresOptions, query};
use svc_testkit::{
    Environment, Finished, ServiceBuilder, Site, assert_contains, connect_with, provider,
};
use tempfile::TempDir;

/// A machine on which nothing is installed yet, beside a server whose administrator alone needs no password.
struct Machine {
    folder: TempDir,
    server: Postgres,
}

impl Machine {
    async fn new() -> Result<Self> {
        let server = Postgres::start(PostgresOptions::default()).await?;
        let rules = "host all svc 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        fs::write(server.data_dir().join("pg_hba.conf"), rules)?;
        server.psql("postgres", "SELECT pg_reload_conf()").await?;
        let folder = tempfile::tempdir()?;
        Ok(Self { folder, server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> ServiceBuilder {
        let file = self.path("etc/ingest.env");
        let file = file.to_string_lossy();
        let arguments = [&["--env-file", &*file], arguments].concat();
        let process = ServiceBuilder::new(Environment::default()).set("USER", "ann");
        process
            .set("INGEST_BIND_ADDRESS", "127.0.0.1")
            .arguments(&arguments)
    }

    async fn init(&self, code: i32, further: &[&str]) -> Result<Finished> {
        let (admin, key) = (self.server.url("postgres"), self.path("lib/jwt_key.pem"));
        let key = key.to_string_lossy();
        let given = [
            "init",
            "--admin-url",
            &admin,
            "--database",
            "fleet",
            "--key-file",
            &key,
            "--output",
            "json",
        ];
        self.command(&[&given[..], further].concat())
            .exits(code)
            .await
    }

    async fn made(&self, further: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.init(0, further).await?.stdout)?)
    }

    /// Every file of the installation with its content.
    fn files(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
        let folders = [self.path("etc"), self.path("lib")];
        let entries = folders
            .iter()
            .map(fs::read_dir)
            .collect::<Result<Vec<_>, _>>()?;
        let files = entries.into_iter().flatten().map(|entry| {
            let path = entry?.path();
            Ok((path.clone(), fs::read(path)?))
        });
        files.collect()
    }

    /// What a shell that sources a settings file has under `name`.
    fn sourced(&self, file: &str, name: &str) -> Result<String> {
        let script = format!("set -a; . {}; printenv {name}", self.path(file).display());
        let output = Command::new("sh").args(["-c", &script]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }
}

fn steps(report: &Value, done: &str) -> Vec<String> {
    let steps = report["steps"].as_array().into_iter().flatten();
    let wanted = steps.filter(|step| step["done"] == done);
    wanted
        .map(|step| step["subject"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A client that trusts only the CA in a file, as an agent with `ca_cert_file` does.
fn pinned(ca: &Path) -> Result<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let identity = Identity::self_signed("agent")?;
    let key = PrivatePkcs8KeyDer::from(identity.key_der.clone());
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::new(roots))
        .with_client_auth_cert(
            vec![CertificateDer::from(identity.cert_der)],
            PrivateKeyDer::Pkcs8(key),
        )?;
    Ok(config)
}

#[tokio::test]
async fn one_command_makes_an_installation_and_a_second_run_changes_nothing() -> Result<()> {
    let machine = Machine::new().await?;
    let names = ["--name", "localhost", "--name", "127.0.0.1"];
    let report = machine.made(&names).await?;
    let subjects = [
        "database",
        "private CA",
        "certificate",
        "schema",
        "signing key",
        "settings",
    ];
    assert_eq!(steps(&report, "made"), subjects, "{report}");
    let token = report["token"].as_str().context("a first token")?;
    assert!(token.starts_with("svc_enr_"), "{token}");
    for (name, mode) in [
        ("etc/ingest.env", 0o600),
        ("etc/ca.key", 0o600),
        ("etc/tls.key", 0o640),
        ("lib/jwt_key.pem", 0o600),
        ("lib", 0o700),
    ] {
        let found = fs::metadata(machine.path(name))?.permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }

    let shown = machine
        .command(&["token", "list", "--output", "json"])
        .run()
        .await?;
    assert_contains(&shown.stdout, "\"label\": \"first\"");
    let url = machine.sourced("etc/ingest.env", "DATABASE_URL")?;
    assert_eq!(query(&url, "SELECT current_user").await?, "fleet");
    let wrong = query(&url.replacen("@", "x@", 1), "SELECT 1").await;
    assert!(wrong.is_err(), "the server checks the password");

    let service = machine.command(&["serve"]).start().await?;
    let healthy = machine.command(&["healthcheck"]);
    let healthy = healthy.set("INGEST_HTTP_PORT", service.http.port().to_string());
    healthy.exits(0).await?;
    connect_with(pinned(&machine.path("etc/ca.pem"))?, service.grpc).await?;
    drop(service);

    let before = machine.files()?;
    let again = machine.made(&names).await?;
    assert_eq!(steps(&again, "made"), [""; 0], "{again}");
    assert_eq!(again["token"], Value::Null);
    assert!(machine.files()? == before, "a second run changes no file");
    Ok(())
}

#[tokio::test]
async fn a_run_into_a_log_makes_no_token_and_a_later_run_adds_a_name_to_the_certificate()
-> Result<()> {
    let machine = Machine::new().await?;
    let report = machine.made(&["--name", "localhost", "--no-token"]).await?;
    assert_eq!(report["token"], Value::Null, "{report}");
    let url = machine.sourced("etc/ingest.env", "DATABASE_URL")?;
    let tokens = "SELECT count(*) FROM enrolment_tokens";
    assert_eq!(query(&url, tokens).await?, "0");
    let before = machine.files()?;
    let another = ["--name", "ingest.example", "--no-token"];
    let report = machine.made(&another).await?;
    assert_eq!(steps(&report, "made"), ["certificate"]);
    assert_contains(&report.to_string(), "for localhost, ingest.example");
    let after = machine.files()?;
    let changed = before.iter().filter(|(path, text)| after[*path] != **text);
    let changed: Vec<&PathBuf> = changed.map(|(path, _)| path).collect();
    assert_eq!(changed, [&machine.path("etc/tls.crt")]);
    Ok(())
}

#[tokio::test]
async fn a_run_that_was_cut_off_is_continued_with_the_same_password() -> Result<()> {
    let machine = Machine::new().await?;
    fs::create_dir(machine.path("etc"))?;
    let port = machine.server.port();
    let line = format!("DATABASE_URL='postgres://fleet:a%20b&c@127.0.0.1:{port}/fleet'\n");
    fs::write(machine.path("etc/ingest.env"), line)?;
    let report = machine.made(&["--name", "localhost"]).await?;
    assert_contains(&steps(&report, "made").join(" "), "database");
    let url = machine.sourced("etc/ingest.env", "DATABASE_URL")?;
    assert_eq!(query(&url, "SELECT current_user").await?, "fleet");
    Ok(())
}

#[tokio::test]
async fn a_role_that_exists_keeps_its_password() -> Result<()> {
    let machine = Machine::new().await?;
    let role = "CREATE ROLE fleet LOGIN PASSWORD 'theirs'";
    machine.server.psql("postgres", role).await?;
    let ended = machine.init(1, &["--name", "localhost"]).await?;
    assert_contains(&ended.stderr, "the role fleet exists");
    assert!(!machine.path("etc/ingest.env").exists());
    let theirs = format!(
        "postgres://fleet:theirs@127.0.0.1:{}/postgres",
        machine.server.port()
    );
    assert_eq!(query(&theirs, "SELECT 1").await?, "1");
    Ok(())
}

#[tokio::test]
async fn a_given_certificate_is_checked() -> Result<()> {
    let machine = Machine::new().await?;
    let given = Identity::server(&["localhost"])?.write(machine.folder.path(), "given")?;
    let (certificate, key) = (given.0.to_string_lossy(), given.1.to_string_lossy());
    let pair = ["--tls-cert", &*certificate, "--tls-key", &*key];
    let other = [&pair[..], &["--name", "other.example"]].concat();
    let ended = machine.init(1, &other).await?;
    assert_contains(&ended.stderr, "does not name other.example");
    machine
        .made(&[&pair[..], &["--name", "localhost"]].concat())
        .await?;
    assert!(!machine.path("etc/ca.pem").exists());
    let used = machine.sourced("etc/ingest.env", "INGEST_TLS_CERT")?;
    assert_eq!(used, certificate);
    let second = Identity::server(&["localhost"])?.write(machine.folder.path(), "second")?;
    let (second, key) = (second.0.to_string_lossy(), second.1.to_string_lossy());
    let another = ["--tls-cert", &*second, "--tls-key", &*key];
    let ended = machine.init(1, &another).await?;
    assert_contains(&ended.stderr, &certificate);
    assert_contains(&ended.stderr, &format!("--tls-cert says {second}"));
    Ok(())
}

#[tokio::test]
async fn the_settings_file_serves_commands_without_a_database_url_of_their_own() -> Result<()> {
    let site = Site::new().await?;
    let (file, folder) = (site.path("ingest.env"), site.path("ingest.env.d"));
    fs::write(&file, "DATABASE_URL=postgres://nobody@127.0.0.1:1/none\n")?;
    let path = file.to_string_lossy();
    let status = || {
        let process = ServiceBuilder::new(Environment::default());
        process.arguments(&["status", "--env-file", &path])
    };
    let ended = status().run().await?;
    assert_contains(&ended.stderr, "the database is unavailable");

    fs::create_dir(&folder)?;
    let line = format!("DATABASE_URL='{}'\n", site.database_url());
    fs::write(folder.join("10-site.env"), line)?;
    status().exits(0).await?; // A drop-in overrides.

    let own = status().set("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    own.exits(1).await?; // The environment overrides.

    fs::remove_dir_all(&folder)?;
    fs::remove_file(&file)?;
    fs::create_dir(&file)?;
    let ended = status().exits(2).await?;
    assert_contains(&ended.stderr, "DATABASE_URL: is required and not set");
    assert_contains(&ended.stderr, "cannot be read");
    Ok(())
}
