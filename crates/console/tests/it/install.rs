//! How hosts get the agent: the folder of releases, the page of a new token, and the install script, which sh runs for real.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, prelude::BASE64_STANDARD};
use svc_store::Role;
use svc_testkit::{Site, assert_contains};
use tempfile::TempDir;

use crate::support::{Console, sha256};

const VERSION: &str = "1.0.0";

/// A release of an agent that is a text, as `make release` names its files, signed by a key of its own.
struct Release {
    folder: TempDir,
    key: Ed25519KeyPair,
}

impl Release {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let key = Ed25519KeyPair::generate()?;
        let release = Self { folder, key };
        let names = ["svc-ingest_1.0.0_amd64.deb".into(), binary(VERSION)];
        let mut sums = String::new();
        for name in names {
            fs::write(release.file(&name), &name)?;
            let sum = sha256(name.as_bytes()).map(|byte| format!("{byte:02x}"));
            sums += &format!("{}  {name}\n", sum.concat());
        }
        fs::write(release.file("SHA256SUMS"), &sums)?;
        let signature = release.key.sign(sums.as_bytes());
        fs::write(release.file("SHA256SUMS.sig"), signature)?;
        let prefix = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
        let key = [&prefix[..], release.key.public_key().as_ref()].concat();
        let key = BASE64_STANDARD.encode(key);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n");
        fs::write(release.file("release.pub"), pem)?;
        Ok(release)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self) -> String {
        self.folder.path().display().to_string()
    }
}

fn binary(version: &str) -> String {
    format!("svc-agent-{version}-linux-{}", std::env::consts::ARCH)
}

/// A console with a folder of releases, which is not there yet, and the folder.
async fn console(more: &[(&'static str, String)]) -> Result<(Console, PathBuf)> {
    let site = Site::new().await?;
    let folder = site.path("releases");
    let folder_text = folder.display().to_string();
    let mut set = vec![
        ("CONSOLE_DOWNLOAD_DIR", folder_text),
        ("CONSOLE_INGEST_ADDRESS", "ingest.example:9443".to_owned()),
        (
            "CONSOLE_INGEST_CA",
            site.path("server.crt").display().to_string(),
        ),
    ];
    set.extend_from_slice(more);
    Ok((Console::on(site, &set).await?, folder))
}

/// Runs `svc-console releases …`, and returns its exit code with all that it printed.
async fn releases(console: &Console, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let arguments = ["releases"].into_iter().chain(arguments.iter().copied());
    let done = console.program()?.arguments(arguments).run().await?;
    Ok((done.code, done.stdout + &done.stderr))
}

async fn import(console: &Console, release: &Release) -> Result<()> {
    let (code, output) = releases(console, &["import", &release.path()]).await?;
    ensure!(code == Some(0), "{output}");
    Ok(())
}

/// Runs a script into a folder.
async fn install(script: &Path, root: &Path, set: &[(&str, &str)]) -> Result<Output> {
    let output = tokio::process::Command::new("sh")
        .arg(script)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("DESTDIR", root)
        .env("SVC_ENROLMENT_TOKEN", "svc_enr_test")
        .envs(set.iter().copied())
        .stdin(Stdio::null())
        .output();
    Ok(output.await?)
}

/// Fetches the console's script into a folder.
async fn script(console: &Console, folder: &Path) -> Result<PathBuf> {
    let script = console.client().get("/install.sh").await?;
    let file = folder.join("install.sh");
    fs::write(&file, &script.body)?;
    Ok(file)
}

/// The script fails for this reason, and has installed nothing.
#[track_caller]
fn assert_stops(output: &Output, root: &Path, reason: &str) {
    assert!(!output.status.success(), "{output:?}");
    assert_contains(&String::from_utf8_lossy(&output.stderr), reason);
    assert!(!root.join("usr").exists(), "{output:?}");
    assert!(!root.join("etc").exists(), "{output:?}");
}

#[tokio::test]
async fn an_imported_release_makes_an_image_that_starts_without_keys() -> Result<()> {
    let (console, _) = console(&[]).await?;
    import(&console, &Release::new()?).await?;
    let (_, list) = releases(&console, &["list"]).await?;
    for part in [VERSION, std::env::consts::ARCH, "svc-agent  signed"] {
        assert_contains(&list, part);
    }
    let work = tempfile::tempdir()?;
    let (script, root) = (
        script(&console, work.path()).await?,
        work.path().join("image"),
    );
    let output = install(&script, &root, &[]).await?;
    ensure!(output.status.success(), "{output:?}");
    let read = |file: &str| fs::read_to_string(root.join(file)).context(file.to_owned());
    assert_eq!(read("usr/local/bin/svc-agent")?, binary(VERSION));
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/svc-agent.service");
    assert_contains(&fs::read_to_string(wanted)?, "/usr/local/bin/svc-agent run");
    assert_contains(&read("etc/sysusers.d/svc-agent.conf")?, "u svc-agent ");
    assert_contains(
        &read("etc/tmpfiles.d/svc-agent.conf")?,
        "/etc/svc/enrolment_token 0640 root svc-agent",
    );
    assert_contains(
        &read("etc/svc/agent.toml")?,
        "ingest_address = \"ingest.example:9443\"",
    );
    assert_contains(&read("etc/svc/ingest_ca.pem")?, "BEGIN CERTIFICATE");
    assert!(!root.join("var").exists());
    fs::create_dir_all(root.join("var/lib/svc-agent"))?;
    fs::write(root.join("var/lib/svc-agent/key.pem"), "key")?;
    let again = install(&script, &root, &[]).await?;
    assert!(!again.status.success(), "{again:?}");
    assert_contains(
        &String::from_utf8_lossy(&again.stderr),
        "has the key of an agent",
    );
    Ok(())
}

#[tokio::test]
async fn the_script_says_why_it_stops_and_then_has_installed_nothing() -> Result<()> {
    let (mut console, folder) = console(&[]).await?;
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let none = script(&console, work.path()).await?;
    let output = install(&none, &root, &[]).await?;
    assert_stops(&output, &root, "the console offers no release");
    import(&console, &Release::new()?).await?;
    let script = script(&console, work.path()).await?;
    let output = install(&script, &root, &[("SVC_AGENT_VERSION", "2.0.0")]).await?;
    assert_stops(&output, &root, "there is no release 2.0.0 for linux");
    let program = folder
        .join(VERSION)
        .join("linux")
        .join(std::env::consts::ARCH);
    let program = program.join("svc-agent");
    fs::remove_file(&program)?;
    symlink("svc-agent", &program)?;
    let output = install(&script, &root, &[]).await?;
    assert_stops(&output, &root, "the console answers 500");
    console.stop().await?;
    let output = install(&script, &root, &[]).await?;
    assert_stops(&output, &root, "svc-agent cannot be downloaded");
    Ok(())
}

#[tokio::test]
async fn the_script_installs_only_what_the_key_of_releases_signed() -> Result<()> {
    let (console, folder) = console(&[]).await?;
    let (release, other) = (Release::new()?, Release::new()?);
    import(&console, &release).await?;
    let work = tempfile::tempdir()?;
    let (script, root) = (
        script(&console, work.path()).await?,
        work.path().join("root"),
    );
    let key = fs::read_to_string(release.file("release.pub"))?;
    let wrong = fs::read_to_string(other.file("release.pub"))?;
    let output = install(&script, &root, &[("SVC_RELEASE_KEY", &wrong)]).await?;
    assert_stops(&output, &root, "the signature of release 1.0.0 is wrong");
    // The console computes its checksum of what is there; only the signed one tells.
    let version = folder.join(VERSION);
    let program = version.join("linux").join(std::env::consts::ARCH);
    fs::write(program.join("svc-agent"), "something else")?;
    let set = [("SVC_RELEASE_KEY", &*key)];
    let output = install(&script, &root, &set).await?;
    assert_stops(
        &output,
        &root,
        "the signed checksums do not have this svc-agent",
    );
    fs::write(program.join("svc-agent"), binary(VERSION))?;
    let kept = fs::read(version.join("SHA256SUMS.sig"))?;
    fs::remove_file(version.join("SHA256SUMS.sig"))?;
    let output = install(&script, &root, &set).await?;
    assert_stops(&output, &root, "has no signature, and a key is set");
    fs::write(version.join("SHA256SUMS.sig"), kept)?;
    let output = install(&script, &root, &set).await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

#[tokio::test]
async fn a_configuration_that_exists_stays_as_it_is() -> Result<()> {
    let (console, _) = console(&[]).await?;
    import(&console, &Release::new()?).await?;
    let work = tempfile::tempdir()?;
    let script = script(&console, work.path()).await?;
    // The comments of a package, a setting of another kind, an indented address.
    for (number, kept, is_complete) in [
        (0, "# settings\n#ingest_address = \"x\"\n", false),
        (1, "https_proxy = \"http://proxy:3128\"\n", false),
        (2, "  ingest_address = \"own:1\"\n", true),
    ] {
        let root = work.path().join(number.to_string());
        let etc = root.join("etc/svc");
        fs::create_dir_all(&etc)?;
        fs::write(etc.join("agent.toml"), kept)?;
        let output = install(&script, &root, &[]).await?;
        ensure!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_to_string(etc.join("agent.toml"))?, kept);
        let added = etc.join("agent.toml.d/50-console.toml");
        assert_eq!(added.exists(), !is_complete, "{kept}");
    }
    let etc = work.path().join("3/etc/svc/agent.toml.d");
    fs::create_dir_all(&etc)?;
    fs::write(etc.join("site.toml"), "ingest_address = \"own:1\"\n")?;
    let output = install(&script, &work.path().join("3"), &[]).await?;
    ensure!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(&etc)?.count(), 1);
    assert!(!etc.with_file_name("agent.toml").exists());
    Ok(())
}

#[tokio::test]
async fn the_system_decides_between_packages_and_the_binary() -> Result<()> {
    let (console, _) = console(&[]).await?;
    let work = tempfile::tempdir()?;
    let script = fs::read_to_string(script(&console, work.path()).await?)?;
    let functions = script.replace("main \"$@\"", "");
    assert_ne!(functions, script);
    // Both tools are there: only the system's own one counts.
    let tools = "dpkg() { :; }; rpm() { :; }";
    for (system, package) in [
        ("ID=debian", "deb"),
        ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"", "deb"),
        ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"", "rpm"),
        ("ID=opensuse-leap\nID_LIKE=\"suse opensuse\"", "rpm"),
        ("ID=alpine", "binary"),
        ("VERSION=1", "binary"),
    ] {
        let file = work.path().join("os-release");
        fs::write(&file, system)?;
        let line = format!("{functions}\n{tools}\npackage_of {}", file.display());
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .output()?;
        assert_eq!(
            String::from_utf8(output.stdout)?.trim(),
            package,
            "{system}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_import_takes_nothing_that_its_checksums_or_the_key_do_not_vouch_for() -> Result<()> {
    let (release, other) = (Release::new()?, Release::new()?);
    let key = release.file("release.pub").display().to_string();
    let (console, folder) = console(&[("CONSOLE_RELEASE_KEY", key)]).await?;
    let refused = async |path: &str, reason: &str| -> Result<()> {
        let (code, output) = releases(&console, &["import", path]).await?;
        assert_eq!(code, Some(1), "{output}");
        assert_contains(&output, reason);
        let found = fs::read_dir(&folder).map_or(0, Iterator::count);
        ensure!(found == 0, "{found} files remain");
        Ok(())
    };
    refused(&other.path(), "is not signed by CONSOLE_RELEASE_KEY").await?;
    let deb = release.file("svc-ingest_1.0.0_amd64.deb");
    refused(&deb.display().to_string(), "is no file of a release").await?;
    fs::write(release.file(&binary(VERSION)), "changed")?;
    refused(&release.path(), "is wrong").await?;
    fs::write(release.file(&binary(VERSION)), binary(VERSION))?;
    fs::write(release.file(&binary("1.1.0")), "new")?;
    let added = release.file(&binary("1.1.0")).display().to_string();
    refused(&added, "SHA256SUMS does not name").await?;
    fs::remove_file(added)?;
    fs::rename(release.file("SHA256SUMS.sig"), release.file("sig"))?;
    refused(&release.path(), "there is no SHA256SUMS.sig").await?;
    fs::rename(release.file("sig"), release.file("SHA256SUMS.sig"))?;
    import(&console, &release).await?;
    // The script has the key by itself.
    let script = console.client().get("/install.sh").await?;
    script.shows(&["BEGIN PUBLIC KEY", "RELEASE_KEY=\"${SVC_RELEASE_KEY:-"]);
    Ok(())
}

#[tokio::test]
async fn a_token_shows_the_way_that_works_here() -> Result<()> {
    let secret = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    let certificate = "-----BEGIN CERTIFICATE-----\nY2E=\n-----END CERTIFICATE-----\n";
    let work = tempfile::tempdir()?;
    let ca = work.path().join("ca.pem");
    fs::write(&ca, format!("{secret}{certificate}"))?;
    let (console, _) = console(&[("CONSOLE_CA", ca.display().to_string())]).await?;
    let admin = console.signed_in("ann", Role::Admin).await?;
    let form = [("label", "racks"), ("max_uses", "2"), ("days", "7")];
    let by_hand = admin.post("/tokens", &form).await?;
    by_hand.shows(&[
        "svc-console releases import",
        "/etc/svc/agent.toml.d/50-console.toml",
        "ingest.example:9443",
        "/etc/svc/ingest_ca.pem",
        "BEGIN CERTIFICATE",
    ]);
    assert!(!by_hand.has("install.sh"), "{by_hand:?}");
    import(&console, &Release::new()?).await?;
    let shown = admin.post("/tokens", &form).await?;
    let command = format!("--cacert console_ca.pem {}/install.sh", console.origin);
    shown.shows(&[&command, "BEGIN CERTIFICATE", "id=\"unattended\""]);
    assert!(!shown.has("agent.toml"), "{shown:?}");
    let script = console.client().get("/install.sh").await?;
    script.shows(&["console_ca=$work/console_ca.pem"]);
    for page in [shown, script] {
        assert!(!page.has("PRIVATE KEY"), "{page:?}");
    }
    Ok(())
}
