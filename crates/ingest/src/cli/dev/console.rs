//! The web console, as a child process of `svc-ingest dev`.
//!
//! It is the `svc-console` binary in our own binary's folder. It connects as a role of its own, which gets exactly what
//! `INGEST_WEB_ROLE` grants, so that `dev` shows what production allows.

use std::{
    fs::OpenOptions,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use svc_sandbox::Postgres;
use tokio::process::{Child, Command};

pub(super) const ROLE: &str = "svc_web";
const PORT: &str = "3000";
/// The person that the link signs in.
const PERSON: &str = "dev";

#[derive(Debug)]
pub(super) struct ConsoleSettings<'a> {
    pub folder: &'a Path,
    pub database_url: String,
    pub grpc_port: u16,
    pub http: SocketAddr,
    pub certificate: &'a Path,
}

/// A running console; dropping it ends it.
#[derive(Debug)]
pub(super) struct Console {
    _child: Child,
    /// Signs in once.
    pub link: String,
}

/// Creates the console's role, which may create its schema and nothing else.
pub(super) async fn create_role(postgres: &Postgres, database: &str) -> anyhow::Result<()> {
    let sql = format!(
        "DO $$ BEGIN CREATE ROLE {ROLE} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
         GRANT CREATE ON DATABASE {database} TO {ROLE}"
    );
    postgres.psql(database, &sql).await.map(drop)
}

impl ConsoleSettings<'_> {
    /// `None` where the binary is missing.
    pub async fn start(&self) -> anyhow::Result<Option<Console>> {
        let program = std::env::current_exe()?.with_file_name("svc-console");
        if !program.is_file() {
            return Ok(None);
        }
        let link = self.link(&program).await?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .context("the console's log")?;
        let child = self.command(&program).stderr(log).spawn();
        let child = child.with_context(|| program.display().to_string())?;
        Ok(Some(Console {
            _child: child,
            link,
        }))
    }

    pub fn log_file(&self) -> PathBuf {
        self.folder.join("console.log")
    }

    async fn link(&self, program: &Path) -> anyhow::Result<String> {
        let mut command = self.command(program);
        command.args(["user", "link", PERSON, "--sign-in"]);
        let output = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output();
        let output = output.await?;
        let problem = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no link to the console: {problem}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The death signal comes when the thread that spawned the child ends: here the main thread.
    fn command(&self, program: &Path) -> Command {
        let jwks = format!("http://{}/.well-known/jwks.json", self.http);
        let port = std::env::var("CONSOLE_PORT").unwrap_or_else(|_| PORT.into());
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .env("DATABASE_URL", &self.database_url)
            .env("CONSOLE_BASE_URL", format!("http://localhost:{port}"))
            .env("CONSOLE_PORT", port)
            .env("CONSOLE_BIND_ADDRESS", "127.0.0.1")
            .env("CONSOLE_JWKS_URL", jwks)
            .env(
                "CONSOLE_INGEST_ADDRESS",
                format!("localhost:{}", self.grpc_port),
            )
            .env("CONSOLE_INGEST_CA", self.certificate)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    }
}
