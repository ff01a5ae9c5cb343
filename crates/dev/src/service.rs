//! The service, and its commands: the `svc-ingest` binary in our own binary's folder.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use svc_sandbox::{Identity, Process, dying_with_us, eventually};
use tokio::time::sleep;

use crate::{database::WEB_ROLE, programs};

const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// How many lines of its log explain a failure.
const LAST_LINES: usize = 5;

/// A token for trials, which admits agents at once.
const TOKEN_CREATE: &[&str] = &[
    "token",
    "create",
    "--label=dev",
    "--labels=env=dev",
    "--max-uses=1000",
    "--expires-in=never",
    "--auto-approve",
    "--allow-reinstall",
    "--created-by=svc-dev",
    "--output=json",
];

#[derive(Debug)]
pub struct Service {
    /// Where the whole system keeps its files.
    pub folder: PathBuf,
    program: PathBuf,
    settings: BTreeMap<&'static str, OsString>,
}

impl Service {
    /// The settings are ours where the environment has none. The database is always ours.
    pub fn new(folder: &Path, database_url: &str) -> anyhow::Result<Self> {
        let program = programs::beside("svc-ingest")?
            .context("there is no svc-ingest beside this program (`cargo build` makes it)")?;
        let (certificate, key) = certificate(folder)?;
        let jwt_key = folder.join("jwt_key.pem");
        let address = variable("INGEST_BIND_ADDRESS").unwrap_or_else(|| "127.0.0.1".into());
        let base_url = format!("http://localhost:{}", console_port());
        let ours: [(&'static str, OsString); 10] = [
            ("INGEST_TLS_CERT", certificate.into()),
            ("INGEST_TLS_KEY", key.into()),
            ("INGEST_JWT_KEY_FILE", jwt_key.into()),
            ("INGEST_BIND_ADDRESS", address.clone()),
            ("INGEST_HTTP_BIND_ADDRESS", address),
            ("INGEST_GRPC_PORT", "9443".into()),
            ("INGEST_HTTP_PORT", "8080".into()),
            ("INGEST_HEARTBEAT_INTERVAL", "5s".into()),
            ("INGEST_WEB_ROLE", WEB_ROLE.into()),
            ("INGEST_AGENT_DOWNLOAD_BASE_URL", base_url.into()),
        ];
        let chosen = ours.map(|(name, value)| (name, variable(name).unwrap_or(value)));
        let mut settings = BTreeMap::from(chosen);
        settings.insert("DATABASE_URL", database_url.into());
        Ok(Self {
            folder: folder.to_owned(),
            program,
            settings,
        })
    }

    /// Where agents connect.
    pub fn grpc_address(&self) -> String {
        format!("localhost:{}", self.setting("INGEST_GRPC_PORT"))
    }

    pub fn http_address(&self) -> String {
        let ip = self.setting("INGEST_HTTP_BIND_ADDRESS");
        let port = self.setting("INGEST_HTTP_PORT");
        match ip.contains(':') {
            true => format!("[{ip}]:{port}"),
            false => format!("{ip}:{port}"),
        }
    }

    /// What agents trust.
    pub fn certificate(&self) -> &OsStr {
        &self.settings["INGEST_TLS_CERT"]
    }

    pub fn token_file(&self) -> PathBuf {
        self.folder.join("enrolment_token")
    }

    /// Starts it, and waits until it serves.
    pub async fn start(&self) -> anyhow::Result<Process> {
        let mut command = self.command(&["serve"]);
        command.stdout(Stdio::null()).stderr(self.log()?);
        let process = Process::spawn(command)?;
        let serves = eventually("the service serves", START_PATIENCE, async || {
            process.ended().is_some() || self.run(&["healthcheck"]).await.is_ok()
        });
        let serves = serves.await;
        serves.map_err(|error| self.failure(&error.to_string()))?;
        match process.ended() {
            Some(status) => Err(self.failure(&format!("the service ended: {status}"))),
            None => Ok(process),
        }
    }

    /// Fails if the process has ended with a failure.
    pub fn verdict(&self, process: &Process) -> anyhow::Result<()> {
        match process.ended() {
            Some(status) if !status.success() => {
                Err(self.failure(&format!("the service ended: {status}")))
            }
            _ => Ok(()),
        }
    }

    /// The token is created once and kept in the folder.
    pub async fn token(&self) -> anyhow::Result<String> {
        let file = self.token_file();
        if let Ok(known) = fs::read_to_string(&file) {
            return Ok(known.trim().to_owned());
        }
        let created: Value = serde_json::from_str(&self.run(TOKEN_CREATE).await?)?;
        let token = created["token"].as_str().context("no token was created")?;
        let mut kept = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?;
        writeln!(kept, "{token}")?;
        Ok(token.to_owned())
    }

    /// Runs one of its commands to its end, and returns what it printed.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        programs::output(self.command(arguments)).await
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = dying_with_us(&self.program);
        command.args(arguments).envs(&self.settings);
        command
    }

    fn setting(&self, name: &str) -> Cow<'_, str> {
        self.settings[name].to_string_lossy()
    }

    /// On a terminal the view takes the screen, so the log goes to a file.
    fn log_file(&self) -> Option<PathBuf> {
        let drawn = io::stdout().is_terminal();
        drawn.then(|| self.folder.join("service.log"))
    }

    fn log(&self) -> anyhow::Result<Stdio> {
        let Some(file) = self.log_file() else {
            return Ok(Stdio::inherit());
        };
        let log = File::create(&file).with_context(|| file.display().to_string())?;
        Ok(log.into())
    }

    /// `what` went wrong, with the end of the log if that is not on the screen.
    fn failure(&self, what: &str) -> anyhow::Error {
        let log = self
            .log_file()
            .and_then(|file| fs::read_to_string(file).ok());
        let log = log.unwrap_or_default();
        let mut lines: Vec<&str> = log.lines().rev().take(LAST_LINES).collect();
        lines.push(what);
        lines.reverse();
        anyhow::Error::msg(lines.join("\n"))
    }
}

/// Waits until the process has ended.
pub async fn ended(process: &Process) {
    while process.ended().is_none() {
        sleep(POLL).await;
    }
}

/// The port of the console, whose address the service announces to agents.
pub fn console_port() -> String {
    env::var("CONSOLE_PORT").unwrap_or_else(|_| "3000".into())
}

/// A variable that is set but empty counts as not set.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn certificate(folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    Identity::server(&["localhost", "127.0.0.1"])?.write(folder, "server")
}
