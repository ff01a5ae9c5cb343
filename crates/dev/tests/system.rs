//! The whole system as `make dev` runs it, with the real programs.

use std::{
    fs::{self, File, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use svc_sandbox::{Process, dying_with_us, eventually, free_port, query};
use tempfile::TempDir;

/// The first start initialises PostgreSQL, generates a signing key and enrols the agent.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running `svc-dev`; dropping it kills it.
struct System {
    process: Process,
    output: PathBuf,
}

impl System {
    fn start(folder: &TempDir, grpc_port: u16) -> Result<Self> {
        let program = Path::new(env!("CARGO_BIN_EXE_svc-dev"));
        for other in ["svc-ingest", "svc-agent", "svc-console"] {
            let built = program.with_file_name(other).is_file();
            ensure!(built, "{other} is not built: cargo build --bin {other}");
        }
        let output = folder.path().join("output");
        let file = File::create(&output)?;
        let mut command = dying_with_us(program);
        command
            .arg("--data-dir")
            .arg(folder.path().join("data"))
            .env("INGEST_GRPC_PORT", grpc_port.to_string())
            .env("INGEST_HTTP_PORT", free_port()?.to_string())
            .env("CONSOLE_PORT", free_port()?.to_string())
            .stdout(file.try_clone()?)
            .stderr(file);
        let process = Process::spawn(command)?;
        Ok(Self { process, output })
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until it has printed the text.
    async fn shows(&self, text: &str) -> Result<()> {
        let shown = || self.output().contains(text);
        let waited = eventually(text, PATIENCE, async || {
            shown() || self.process.ended().is_some()
        });
        waited.await.with_context(|| self.output())?;
        ensure!(shown(), "{text:?} is not in: {}", self.output());
        Ok(())
    }

    /// What the screen says about `name`.
    fn fact(&self, name: &str) -> Result<String> {
        let output = self.output();
        let facts = output.lines().find_map(|line| {
            let (first, rest) = line.trim().split_once(' ')?;
            (first == name).then(|| rest.split_whitespace().next())?
        });
        let fact = facts.with_context(|| format!("no {name} in: {output}"))?;
        Ok(fact.to_owned())
    }

    fn stop(&self) -> Result<()> {
        self.process.stop(Signal::TERM, PATIENCE);
        let status = self.process.ended().context("it has not ended")?;
        ensure!(status.success(), "{status}: {}", self.output());
        Ok(())
    }
}

/// PostgreSQL may run as another user, who must be able to enter it.
fn folder() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// The console's install script works on this machine: here into a folder.
fn installs(folder: &TempDir, screen: &str, token: &str) -> Result<()> {
    let link = screen.split("The web console: ").nth(1);
    let origin = link.and_then(|link| link.split("/welcome").next());
    let origin = origin.context("no address of the console")?;
    let image = folder.path().join("image");
    let line = format!("curl -fsSL {origin}/install.sh -o install.sh && sh install.sh");
    let output = Command::new("sh")
        .args(["-c", &line])
        .current_dir(folder.path())
        .env("DESTDIR", &image)
        .env("SVC_ENROLMENT_TOKEN", token)
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    let config = fs::read_to_string(image.join("etc/svc/agent.toml"))?;
    assert!(config.contains("ca_cert_file"), "{config}");
    assert!(image.join("usr/local/bin/svc-agent").is_file());
    Ok(())
}

#[tokio::test]
async fn this_machine_appears_and_a_restart_continues_with_the_same_token_and_agent() -> Result<()>
{
    let (folder, port) = (folder()?, free_port()?);
    let system = System::start(&folder, port)?;
    system.shows("PRESENCE").await?;
    let screen = system.output();
    assert!(screen.contains("The web console: http://"), "{screen}");
    let token = system.fact("token")?;
    installs(&folder, &screen, &token)?;
    system.stop()?;

    // The service has ended too: its port is free.
    let system = System::start(&folder, port)?;
    system.shows("PRESENCE").await?;
    assert_eq!(system.fact("token")?, token);
    let url = system.fact("database")?;
    let agents = "SELECT count(*), min(presence) FROM agents JOIN agent_state ON agent_id = id";
    eventually("its agent is online again", PATIENCE, async || {
        query(&url, agents).await.is_ok_and(|row| row == "1|online")
    })
    .await?;
    system.stop()
}

#[tokio::test]
async fn a_service_that_cannot_start_ends_the_system_and_says_why() -> Result<()> {
    let taken = TcpListener::bind(("127.0.0.1", 0))?;
    let folder = folder()?;
    let system = System::start(&folder, taken.local_addr()?.port())?;
    system.shows("svc-dev: the service ended: ").await?;
    system.shows("is taken by another process").await?;
    eventually("it has ended", PATIENCE, async || {
        system.process.ended().is_some()
    })
    .await?;
    let code = system.process.ended().and_then(|status| status.code());
    assert_eq!(code, Some(1));
    Ok(())
}

#[test]
fn no_shipped_program_links_the_sandbox() -> Result<()> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    tree.args(["-p", "svc-admin", "-p", "svc-agent", "-p", "svc-console"]);
    let output = tree.output()?;
    let linked = String::from_utf8(output.stdout)?;
    assert!(linked.contains("svc-store "), "{linked}");
    assert!(!linked.contains("svc-sandbox "), "{linked}");
    Ok(())
}
