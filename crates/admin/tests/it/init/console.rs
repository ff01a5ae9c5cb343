//! The web console's part of an installation.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result, ensure};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use svc_sandbox::query;
use svc_testkit::{assert_contains, connect_with};

use super::{Machine, pinned, steps};

const URL: &str = "https://console.example:3000";
const CONSOLE: [&str; 4] = ["--name", "localhost", "--console-url", URL];

#[tokio::test]
async fn the_console_gets_a_role_and_settings_of_its_own() -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&["--name", "localhost", "--console"]).await?;
    let url = machine.sourced("etc/console.env", "DATABASE_URL")?;
    assert_eq!(query(&url, "SELECT current_user").await?, "fleet_web");
    assert_eq!(query(&url, "SELECT count(*) FROM hosts").await?, "0");
    assert!(
        query(&url, "SELECT hash FROM enrolment_tokens")
            .await
            .is_err()
    );
    query(&url, "CREATE SCHEMA console").await?;
    let base = machine.sourced("etc/console.env", "CONSOLE_BASE_URL")?;
    assert_eq!(base, "https://localhost:3000");
    let role = machine.sourced("etc/ingest.env", "INGEST_WEB_ROLE")?;
    assert_eq!(role, "fleet_web");
    Ok(())
}

/// A purge of the console's package removes its settings, and a run that is cut off may leave them with a password that
/// PostgreSQL does not have yet.
#[tokio::test]
async fn a_console_whose_password_is_lost_gets_another_one() -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&["--name", "localhost", "--console"]).await?;
    let first = machine.sourced("etc/console.env", "DATABASE_URL")?;
    let settings = machine.path("etc/console.env");
    for damage in ["purged", "cut off"] {
        let text = fs::read_to_string(&settings)?;
        match damage {
            "purged" => fs::remove_file(&settings)?,
            _ => fs::write(&settings, text.replace("fleet_web:", "fleet_web:wrong"))?,
        }
        machine.made(&["--name", "localhost", "--console"]).await?;
        let url = machine.sourced("etc/console.env", "DATABASE_URL")?;
        ensure!(url != first, "{damage}");
        ensure!(query(&url, "SELECT current_user").await? == "fleet_web");
    }
    Ok(())
}

#[tokio::test]
async fn the_console_gets_a_certificate_that_later_runs_renew() -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&CONSOLE).await?;
    for (variable, name) in [
        ("CONSOLE_TLS_CERT", "console_tls.crt"),
        ("CONSOLE_TLS_KEY", "console_tls.key"),
        ("CONSOLE_CA", "ca.pem"),
    ] {
        let path = machine.sourced("etc/console.env", variable)?;
        assert_eq!(Path::new(&path), machine.path("etc").join(name));
    }
    let key = machine.path("etc/console_tls.key");
    assert_eq!(fs::metadata(&key)?.permissions().mode() & 0o777, 0o640);
    // Any server shows the pair; the service is one.
    let pair = ["etc/console_tls.crt", "etc/console_tls.key"].map(|name| machine.path(name));
    let service = machine.command(&["serve"]);
    let service = service.set("INGEST_TLS_CERT", &pair[0]);
    let service = service.set("INGEST_TLS_KEY", &pair[1]);
    let url = machine.sourced("etc/ingest.env", "DATABASE_URL")?;
    let key_file = machine.path("lib/jwt_key.pem");
    let service = service.set("DATABASE_URL", url);
    let service = service.set("INGEST_JWT_KEY_FILE", key_file).start().await?;
    connect_with(pinned(&machine.path("etc/ca.pem"))?, service.grpc).await?;
    drop(service);

    let before = machine.files()?;
    let again = machine.made(&[]).await?;
    assert_eq!(steps(&again, "made"), [""; 0], "{again}");
    assert!(machine.files()? == before, "a second run changes no file");
    fs::remove_file(&pair[0])?;
    let renewed = machine.made(&[]).await?;
    assert_eq!(steps(&renewed, "made"), ["console TLS"], "{renewed}");
    assert_contains(&renewed.to_string(), "for console.example");
    CertificateDer::from_pem_file(&pair[0]).context("the certificate is there again")?;
    Ok(())
}

#[tokio::test]
async fn passwords_cross_no_network_in_clear_text_unless_somebody_says_so() -> Result<()> {
    let machine = Machine::new().await?;
    let plain = ["--console-url", "http://console.example:3000"];
    let refused = machine.init(2, &plain).await?;
    assert_contains(&refused.stderr, "--insecure-console");
    let insecure = [&plain[..], &["--insecure-console"]].concat();
    machine.made(&insecure).await?;
    let bound = machine.sourced("etc/console.env", "CONSOLE_BIND_ADDRESS")?;
    assert_eq!(bound, "0.0.0.0");
    assert_eq!(machine.sourced("etc/console.env", "CONSOLE_TLS_CERT")?, "");
    Ok(())
}

#[tokio::test]
async fn a_console_behind_a_proxy_stays_on_the_loopback_address() -> Result<()> {
    let machine = Machine::new().await?;
    let proxy = ["--name", "ingest.example", "--console-behind-proxy"];
    machine.made(&proxy).await?;
    let setting = |name| machine.sourced("etc/console.env", name);
    assert_eq!(setting("CONSOLE_BASE_URL")?, "https://ingest.example");
    assert_eq!(setting("CONSOLE_TRUSTED_PROXIES")?, "127.0.0.1,::1");
    assert_eq!(setting("CONSOLE_TLS_CERT")?, "");
    assert_eq!(setting("CONSOLE_BIND_ADDRESS")?, "");
    // A later run without the option does not put TLS behind the proxy.
    machine.made(&["--console"]).await?;
    assert_eq!(setting("CONSOLE_TLS_CERT")?, "");
    Ok(())
}

#[tokio::test]
async fn a_setting_that_differs_from_an_option_is_reported() -> Result<()> {
    let machine = Machine::new().await?;
    machine.made(&CONSOLE).await?;
    let before = machine.files()?;
    let other = ["--console-url", "https://other.example"];
    let refused = machine.init(1, &other).await?;
    assert_contains(&refused.stderr, &format!("CONSOLE_BASE_URL is {URL}"));
    assert_contains(&refused.stderr, "--console-url says https://other.example");
    let proxy = machine.init(1, &["--console-behind-proxy"]).await?;
    assert_contains(&proxy.stderr, "CONSOLE_TLS_CERT");
    let url = "postgres://fleet:geheim@127.0.0.1:1/fleet";
    let given = ["init", "--yes"];
    let given = machine.command(&given).set("SVC_DATABASE_URL", url);
    let given = given.exits(1).await?;
    assert_contains(&given.stderr, "another DATABASE_URL");
    assert!(!given.stderr.contains("geheim"), "{}", given.stderr);
    assert!(machine.files()? == before, "a refused run changes no file");

    let path = machine.path("etc/ingest.env");
    let text = fs::read_to_string(&path)?.replace(URL, "https://mirror.example");
    fs::write(&path, text)?;
    let report = machine.made(&[]).await?;
    assert_contains(&report["warnings"].to_string(), "https://mirror.example");
    Ok(())
}

#[tokio::test]
async fn a_console_of_its_own_folder_needs_none_of_the_services_files() -> Result<()> {
    let machine = Machine::new().await?;
    let folder = machine.path("console");
    let place = folder.to_string_lossy();
    let console = [&CONSOLE[..], &["--console-folder", &place]].concat();
    machine.made(&console).await?;
    let names = fs::read_dir(&folder)?.map(|file| Ok(file?.file_name()));
    let mut names: Vec<_> = names.collect::<Result<_>>()?;
    names.sort();
    let wanted = [
        "ca.pem",
        "console.env",
        "console_tls.crt",
        "console_tls.key",
    ];
    assert_eq!(names, wanted);
    let ca = machine.sourced("console/console.env", "CONSOLE_INGEST_CA")?;
    assert_eq!(Path::new(&ca), folder.join("ca.pem"));
    assert_eq!(fs::read(&ca)?, fs::read(machine.path("etc/ca.pem"))?);
    assert!(!machine.path("etc/console.env").exists());
    Ok(())
}

/// The lines that `init` prints, as a person would paste them.
#[tokio::test]
async fn the_printed_command_adds_the_first_administrator() -> Result<()> {
    let machine = Machine::new().await?;
    let report = machine.made(&CONSOLE).await?;
    let next = report["next"].as_array().context("no next commands")?;
    let lines = next.iter().filter_map(|line| line.as_str());
    let mut lines = lines.filter(|line| line.starts_with("svc-console"));
    let line = lines.next().context("no command of the console")?;
    assert_contains(line, "user add admin --role admin");
    let words = line.split(' ').skip(1).map(|word| word.trim_matches('\''));
    let words: Vec<&str> = words.collect();
    let process = machine.command(&[]).program("svc-console");
    let added = process.arguments(&words).exits(0).await?;
    assert_contains(&added.stdout, &format!("{URL}/"));
    let url = machine.sourced("etc/console.env", "DATABASE_URL")?;
    let role = "SELECT name || ' ' || role FROM console.users";
    assert_eq!(query(&url, role).await?, "admin admin");
    let again = machine.made(&[]).await?;
    assert!(!again.to_string().contains("user add"), "{again}");
    Ok(())
}

#[tokio::test]
async fn a_password_among_the_arguments_is_pointed_out_and_a_variable_is_not() -> Result<()> {
    let machine = Machine::new().await?;
    let url = machine.server.url("postgres").replacen("@", ":geheim@", 1);
    let (key, warning) = (machine.path("key/jwt_key.pem"), "SVC_ADMIN_DATABASE_URL");
    let key = key.to_string_lossy();
    let common = [
        "init",
        "--yes",
        "--key-file",
        &key,
        "--name",
        "localhost",
        "--database",
        "fleet",
    ];
    let by_variable = machine.command(&common).set(warning, &url);
    let by_variable = by_variable.exits(0).await?;
    assert!(
        !by_variable.stdout.contains(warning),
        "{}",
        by_variable.stdout
    );
    let by_argument = [&common[..], &["--admin-url", &url]].concat();
    let by_argument = machine.command(&by_argument).exits(0).await?;
    assert_contains(&by_argument.stdout, warning);
    assert!(!by_argument.stdout.contains("geheim"));
    Ok(())
}
