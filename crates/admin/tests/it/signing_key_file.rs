//! The file of the signing key: accepted and refused content. The service never writes to an
//! existing file.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use svc_ingest::{
    config::{Config, Problems},
    signing,
};
use svc_testkit::{
    Environment, PATIENCE, Proxy, SIGNING_KEY, Site, absent_instance, assert_contains,
    faults::assert_one_private_file, get, health_becomes, write_private,
};

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name))
    };
}

/// The only problem, which must be about `path`.
fn problem_of(folder: &Path, path: &Path) -> Result<String> {
    let environment = Environment::with_files(folder, "postgres://svc@127.0.0.1/svc")?
        .set("INGEST_JWT_KEY_FILE", path);
    let read = Config::read(&|name| environment.get(name));
    let Problems(problems) = read.err().context("the file was accepted")?;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let problem = problems[0].to_string();
    assert!(problem.starts_with("INGEST_JWT_KEY_FILE: "), "{problem}");
    assert_contains(&problem, &path.display().to_string());
    Ok(problem)
}

/// Bad content, and a part of its message.
fn bad_contents() -> Vec<(String, &'static str)> {
    let pkcs1 = fixture!("rsa2048_pkcs1.pem");
    let half = |text: &str| text[..text.len() / 2].to_owned();
    let scrambled = SIGNING_KEY.replacen("MII", "AAA", 1);
    vec![
        (String::new(), "is empty"),
        ("\n \r\n".into(), "is empty"),
        ("hello".into(), "BEGIN PRIVATE KEY"),
        (half(SIGNING_KEY), "cut short"),
        (half(pkcs1), "cut short"),
        (
            SIGNING_KEY.replace("-----END PRIVATE KEY-----", ""),
            "cut short",
        ),
        (scrambled, "holds"),
        (fixture!("certificate.pem").into(), "a certificate"),
        (fixture!("public_spki.pem").into(), "a public key"),
        (fixture!("public_pkcs1.pem").into(), "a public key"),
        (fixture!("ec_sec1.pem").into(), "needs an RSA key"),
        (fixture!("ec_pkcs8.pem").into(), "needs an RSA key"),
        (fixture!("ed25519.pem").into(), "needs an RSA key"),
        (fixture!("rsa_pss.pem").into(), "needs an RSA key"),
        (fixture!("encrypted_pkcs8.pem").into(), "encrypted"),
        (fixture!("encrypted_legacy.pem").into(), "encrypted"),
        (format!("{SIGNING_KEY}{pkcs1}"), "holds 2 private keys"),
        (fixture!("rsa1024.pem").into(), "2048 to 8192"),
        (fixture!("rsa2047.pem").into(), "2048 to 8192"),
        ("x".repeat(1_000_000), "more than"),
    ]
}

#[test]
fn a_bad_key_file_is_refused_by_its_content_and_stays_unchanged() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bad.pem");
    for (text, expected) in bad_contents() {
        write_private(&path, &text)?;
        let problem = problem_of(folder.path(), &path)?;
        assert_contains(&problem, expected);
        assert_eq!(fs::read_to_string(&path)?, text);
    }
    Ok(())
}

#[test]
fn a_path_that_is_no_regular_file_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder"))?;
    symlink(at("nowhere"), at("dangling"))?;
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0)?;
    let expected = [
        (at("folder"), "is a folder"),
        (at("dangling"), "nowhere, which does not exist"),
        (at("fifo"), "is not a regular file"),
        (at("missing/key.pem"), "mkdir -p"),
        ("/dev/null".into(), "is not a regular file"),
    ];
    let begun = Instant::now();
    for (path, expected) in expected {
        let problem = problem_of(folder.path(), &path)?;
        assert_contains(&problem, expected);
    }
    assert!(begun.elapsed() < PATIENCE, "a FIFO must not be waited for");
    assert!(!at("nowhere").exists() && !at("missing").exists());
    Ok(())
}

#[test]
fn a_key_file_with_loose_permissions_is_refused_with_the_chmod_command() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("key.pem");
    write_private(&path, SIGNING_KEY)?;
    for mode in [0o604, 0o644, 0o602, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let problem = problem_of(folder.path(), &path)?;
        let mended_by = format!("chmod 600 {}", path.display());
        assert_contains(&problem, &mended_by);
        assert_eq!(mode_of(&path)?, mode);
    }
    Ok(())
}

#[test]
fn key_files_of_openssl_are_read_in_every_form_and_size() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("key.pem");
    let good = [
        (SIGNING_KEY, 2048),
        (fixture!("rsa2048_pkcs1.pem"), 2048),
        (fixture!("rsa2048_e3.pem"), 2048),
        (fixture!("rsa3072.pem"), 3072),
        (fixture!("rsa4096_pkcs1.pem"), 4096),
        (fixture!("rsa8192.pem"), 8192),
    ];
    for (text, bits) in good {
        for text in [
            text.to_owned(),
            text.replace('\n', "\r\n"),
            format!("note\n\n{text}\n\n"),
        ] {
            write_private(&path, text)?;
            let key = signing::read(&path)?.context("the file is there")?;
            assert_eq!(key.bits(), bits);
        }
    }
    Ok(())
}

#[test]
fn symbolic_links_and_group_readable_files_are_accepted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, link) = (folder.path().join("key.pem"), folder.path().join("link"));
    write_private(&path, SIGNING_KEY)?;
    symlink("key.pem", &link)?;
    for mode in [0o600, 0o400, 0o440, 0o640] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let (direct, linked) = (signing::read(&path)?, signing::read(&link)?);
        let kid = |key: Option<signing::SigningKey>| key.map(|key| key.kid().to_owned());
        assert_eq!(kid(direct).context("read")?, kid(linked).context("read")?);
    }
    Ok(())
}

#[test]
fn a_new_key_has_2048_bits_and_only_its_owner_may_read_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("key.pem");
    let key = signing::create(&path)?;
    assert_eq!(key.bits(), 2048);
    let read = signing::read(&path)?.context("it was written")?;
    assert_eq!(read.kid(), key.kid());
    assert_one_private_file(&path)
}

#[tokio::test]
async fn a_key_file_truncated_while_in_use_matters_only_at_the_next_start() -> Result<()> {
    let site = Site::new().await?;
    let path = site.path("jwt_key.pem");
    let process = site.process().start().await?;
    let before = get(process.http, "/.well-known/jwks.json").await?;
    fs::OpenOptions::new()
        .write(true)
        .open(&path)?
        .set_len(100)?;
    let cut = fs::read(&path)?;

    let after = get(process.http, "/.well-known/jwks.json").await?;
    assert_eq!((after.status, &after.body), (200, &before.body));
    assert_eq!(get(process.http, "/healthz").await?.status, 200);
    process.stop().await?;

    let again = site.process().exits(2).await?;
    assert_contains(&again.stderr, "cut short");
    assert_eq!(fs::read(&path)?, cut);
    Ok(())
}

#[tokio::test]
async fn the_first_start_writes_a_key_and_the_second_uses_it() -> Result<()> {
    let site = Site::new().await?;
    let path = site.path("new.pem");
    let start = || site.instance().set("INGEST_JWT_KEY_FILE", &path).start();
    let first = start().await?;
    let jwks = get(first.http, "/.well-known/jwks.json").await?.body;
    first.stop().await?;
    let written = fs::read(&path)?;
    assert_eq!(mode_of(&path)?, 0o600);

    let second = start().await?;
    assert_eq!(get(second.http, "/.well-known/jwks.json").await?.body, jwks);
    assert_eq!(fs::read(&path)?, written);
    second.stop().await
}

fn shorten(timing: &mut svc_ingest::config::Timing) {
    timing.lease_renewal = Duration::from_millis(200);
    timing.lease_ttl = Duration::from_secs(2);
}

#[tokio::test]
async fn an_instance_with_another_key_than_its_sibling_refuses_to_start_after_a_lease_term()
-> Result<()> {
    let site = Site::new().await?;
    let path = site.path("other.pem");
    write_private(&path, fixture!("rsa2048_pkcs1.pem"))?;
    let first = site.instance().timing(shorten).start().await?;
    let begun = Instant::now();
    let second = site
        .instance()
        .timing(shorten)
        .set("INGEST_JWT_KEY_FILE", &path);
    let failure = second.launch().await?.failure().await?;

    assert!(
        begun.elapsed() >= Duration::from_secs(2),
        "a dead predecessor gets its term"
    );
    assert!(failure.starts_with("INGEST_JWT_KEY_FILE: "), "{failure}");
    for path in [site.path("jwt_key.pem"), path] {
        let key = signing::read(&path)?.context("the file is there")?;
        assert!(failure.contains(key.kid()), "{failure} lacks {}", key.kid());
    }
    first.serving().await?;
    first.stop().await
}

#[tokio::test]
async fn a_dead_instance_with_another_key_only_delays_the_start() -> Result<()> {
    let site = Site::new().await?;
    site.psql(&absent_instance("'old'", "1 second")).await?;
    let instance = site.instance().timing(shorten).start().await?;
    site.expect(
        "SELECT count(*) FROM ingest_instances WHERE kid = 'old' AND expires_at > now()",
        "0",
    )
    .await?;
    instance.stop().await
}

#[tokio::test]
async fn a_missing_key_file_beside_a_live_sibling_is_refused_and_not_created() -> Result<()> {
    let site = Site::new().await?;
    let sibling = site.instance().start().await?;
    let path = site.path("elsewhere.pem");
    let process = site.process().set("INGEST_JWT_KEY_FILE", &path);
    let ended = process.exits(2).await?;
    let key = signing::read(&site.path("jwt_key.pem"))?.context("the sibling's")?;
    let mut lines = ended.stderr.lines();
    let refusal = lines.find(|line| line.contains("INGEST_JWT_KEY_FILE"));
    assert_contains(refusal.context("no refusal")?, key.kid());
    assert!(!path.exists());
    sibling.stop().await
}

#[tokio::test]
async fn no_key_is_written_before_the_database_answers() -> Result<()> {
    let site = Site::new().await?;
    let proxy = Proxy::start(vec![]).await?;
    let path = site.path("late.pem");
    let url = format!("postgres://svc@{}/svc", proxy.address());
    let builder = site.instance().set("DATABASE_URL", url);
    let builder = builder.set("INGEST_JWT_KEY_FILE", &path);
    let waiting = builder.launch().await?;
    health_becomes(waiting.http, 503, "starting: waiting for the database").await?;
    assert!(
        !path.exists(),
        "a key is made only once the siblings are known"
    );
    waiting.stop().await
}

fn mode_of(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o7777)
}
