//! The rotation of the signing key: several keys at once, and instances that differ in them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use svc_ingest::{
    config::{Config, Timing},
    signing::{self, SigningKey},
};
use svc_testkit::{
    ActiveAgent, Environment, Pace, SIGNING_KEY, Site, absent_instance, assert_contains,
    eventually, faults, get, write_private,
};

const KEY_FILE: &str = "INGEST_JWT_KEY_FILE";
const EXTRA: &str = "INGEST_JWT_EXTRA_KEY_FILES";
const OTHER_KEY: &str = include_str!("../fixtures/rsa2048_pkcs1.pem");

/// A site with a second key.
struct TwoKeys {
    site: Site,
    old: PathBuf,
    new: PathBuf,
}

impl TwoKeys {
    async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let (old, new) = (site.path("jwt_key.pem"), site.path("new.pem"));
        write_private(&new, OTHER_KEY)?;
        Ok(Self { site, old, new })
    }

    fn both(&self) -> String {
        format!("{},{}", self.old.display(), self.new.display())
    }

    fn kids(&self) -> Result<[String; 2]> {
        Ok([kid_of(&self.old)?, kid_of(&self.new)?])
    }
}

fn kid_of(path: &Path) -> Result<String> {
    let key: SigningKey = signing::read(path)?.context("a key")?;
    Ok(key.kid().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_rotated_under_a_connected_fleet() -> Result<()> {
    let site = Site::new().await?;
    let seen = faults::key_rotated(&site, 20, Duration::from_secs(2), Pace::BRISK).await?;
    ensure!(seen.verified > 100, "the third party verified little");
    let [before, after] = &seen.status;
    assert_contains(before, "signs on 2 of 2 instances");
    assert_contains(before, "may sign after ");
    assert_contains(after, "signs on 2 of 2 instances");
    assert_contains(after, "may go after ");
    Ok(())
}

#[tokio::test]
async fn a_connected_agent_gets_a_jwt_of_the_new_key_and_its_old_one_stays_valid() -> Result<()> {
    let keys = TwoKeys::new().await?;
    let [old, new] = keys.kids()?;
    let builder = keys.site.instance().set(EXTRA, keys.both());
    let first = builder.clone().start().await?;
    let second = builder.set(KEY_FILE, &keys.new).start().await?;
    for (instance, kids) in [(&first, [&old, &new]), (&second, [&new, &old])] {
        let document: Value =
            serde_json::from_str(&get(instance.http, "/.well-known/jwks.json").await?.body)?;
        let published = document["keys"].as_array().context("keys")?.iter();
        let published: Vec<_> = published.map(|key| key["kid"].as_str()).collect();
        assert_eq!(published, kids.map(|kid| Some(kid.as_str())));
    }
    let agent = ActiveAgent::new(&keys.site, first.grpc, 1).await?;
    assert_eq!(svc_testkit::kid(&agent.jwt), Some(old));
    let mut call = agent.heartbeat_at(second.grpc).await?;
    let renewed = call.next_credential().await?;
    assert_eq!(svc_testkit::kid(&renewed), Some(new));
    call.report_acked(1..=1).await?;
    call.goodbye().await?;
    for (instance, jwt) in [(&first, &renewed), (&second, &agent.jwt)] {
        let call = agent.agent.heartbeat(instance.grpc, jwt).await?;
        call.goodbye().await?;
    }
    Ok(())
}

fn short_lease(timing: &mut Timing) {
    timing.lease_renewal = Duration::from_millis(200);
    timing.lease_ttl = Duration::from_secs(2);
}

/// The new key signs on one instance before the other one accepts it.
#[tokio::test]
async fn an_instance_waits_until_its_sibling_accepts_its_key() -> Result<()> {
    let keys = TwoKeys::new().await?;
    let builder = keys.site.instance().timing(short_lease);
    let first = builder.clone().start().await?;
    let hasty = builder
        .clone()
        .set(EXTRA, keys.both())
        .set(KEY_FILE, &keys.new);
    let failure = hasty.clone().launch().await?.failure().await?;
    assert_contains(&failure, "svc-ingest key rotate");
    first.stop().await?;
    let first = builder.set(EXTRA, keys.both()).start().await?;
    hasty.start().await?.stop().await?;
    first.stop().await
}

/// The packaged unit does not restart the service after the exit codes that its settings name.
#[tokio::test]
async fn a_key_mismatch_ends_with_an_exit_code_that_systemd_retries() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let sibling = absent_instance("'another-kid'", "1 hour");
    let fenced = "UPDATE ingest_instances SET fenced = true";
    site.psql(&format!("BEGIN; {fenced}; {sibling}; COMMIT"))
        .await?;
    let ended = process.finished().await?;
    assert_contains(&ended.stderr, "another-kid");
    let code = ended.code.context("a signal")?.to_string();
    let unit = include_str!("../../../../packaging/systemd/svc-ingest.service");
    let setting = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name));
    assert_eq!(setting("Restart="), Some("always"));
    let final_codes = setting("RestartPreventExitStatus=").context("the setting")?;
    ensure!(
        !final_codes.split(' ').any(|one| one == code),
        "systemd gives up after {code}"
    );
    Ok(())
}

#[test]
fn extra_keys_may_be_public_and_private_ones_must_be_closed_to_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let environment = Environment::with_files(folder.path(), "postgres://svc@127.0.0.1/svc")?;
    let path = folder.path().join("extra.pem");
    let read = |text: &str, mode: u32| {
        write_private(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let environment = environment.clone().set(EXTRA, &path);
        let config =
            Config::read(&|name| environment.get(name)).map_err(|problems| problems.to_string());
        anyhow::Ok(config.map(|config| config.jwt_extra_keys[0].kid().to_owned()))
    };
    let expected = read(SIGNING_KEY, 0o600)?;
    let public = include_str!("../fixtures/public_spki.pem");
    assert_eq!(read(public, 0o644)?, expected);
    assert!(expected.is_ok(), "{expected:?}");
    for (text, mode, complaint) in [
        (SIGNING_KEY, 0o644, "chmod 600"),
        (
            include_str!("../fixtures/public_pkcs1.pem"),
            0o644,
            "BEGIN PUBLIC KEY",
        ),
        (
            include_str!("../fixtures/rsa1024.public.pem"),
            0o644,
            "1024 bits",
        ),
        ("", 0o644, "is empty"),
    ] {
        let problem = read(text, mode)?.expect_err(complaint);
        assert_contains(&problem, EXTRA);
        assert_contains(&problem, complaint);
    }
    Ok(())
}

#[tokio::test]
async fn key_rotate_makes_a_private_file_and_names_the_steps() -> Result<()> {
    let site = Site::new().await?;
    let rotate = || {
        site.process()
            .unset("DATABASE_URL")
            .arguments(&["key", "rotate"])
    };
    let made = rotate().exits(0).await?;
    let files = fs::read_dir(site.folder())?.collect::<Result<Vec<_>, _>>()?;
    let is_new = |path: &PathBuf| path.to_string_lossy().contains("jwt_key-");
    let new = files.iter().map(fs::DirEntry::path).find(is_new);
    let new = new.context("a new file")?;
    assert_eq!(fs::metadata(&new)?.permissions().mode() & 0o777, 0o600);
    for part in [
        kid_of(&new)?,
        format!(
            "{EXTRA}={},{}",
            site.path("jwt_key.pem").display(),
            new.display()
        ),
        format!("{KEY_FILE}={}", new.display()),
    ] {
        assert_contains(&made.stdout, &part);
    }
    let again = rotate().set(EXTRA, &new).exits(1).await?;
    assert_contains(&again.stderr, "a rotation is in progress");
    Ok(())
}

#[tokio::test]
async fn status_and_doctor_show_which_instances_sign_with_which_key() -> Result<()> {
    let keys = TwoKeys::new().await?;
    let builder = keys.site.instance().set(EXTRA, keys.both());
    let first = builder.clone().start().await?;
    let second = builder.clone().set(KEY_FILE, &keys.new).start().await?;
    let show = async |command: &'static str| {
        let process = keys.site.process().set(EXTRA, keys.both());
        let shown = process.arguments(&[command]).exits(0).await?;
        anyhow::Ok(shown.stdout)
    };
    for kid in keys.kids()? {
        let signs = format!("signs with {}", &kid[..8]);
        assert_contains(&show("doctor").await?, &signs);
    }
    for command in ["status", "doctor"] {
        let shown = show(command).await?;
        let each = shown.matches("signs on 1 of 2 instances").count();
        assert_eq!(each, 2, "{shown}");
    }
    first.stop().await?;
    let moved = builder.set(KEY_FILE, &keys.new).start().await?;
    for command in ["status", "doctor"] {
        let shown = show(command).await?;
        assert_contains(&shown, "signs on 2 of 2 instances");
        assert_contains(&shown, "may go after ");
    }
    let day = "UPDATE ingest_instances SET expires_at = expires_at - interval '25 h' WHERE stopped_at IS NOT NULL";
    keys.site.psql(day).await?;
    eventually("the old key may go", async || {
        show("status")
            .await
            .is_ok_and(|shown| shown.contains("may go now"))
    })
    .await?;
    moved.stop().await?;
    second.stop().await
}
