//! The web console: the `svc-console` binary in our own binary's folder.
//!
//! It connects as a role of its own, which gets exactly what `INGEST_WEB_ROLE` grants, so that this system shows what
//! production allows.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context;
use svc_sandbox::{Process, dying_with_us};

use crate::{
    programs,
    service::{Service, console_port},
};

/// The person that the link signs in.
const PERSON: &str = "dev";

/// A running console; dropping it ends it.
#[derive(Debug)]
pub struct Console {
    _process: Process,
    /// Signs in once.
    pub link: String,
}

impl Console {
    /// `None` where the binary is missing.
    pub async fn start(service: &Service, database_url: &str) -> anyhow::Result<Option<Self>> {
        let Some(program) = programs::beside("svc-console")? else {
            return Ok(None);
        };
        let mut link = command(&program, service, database_url);
        link.args(["user", "link", PERSON, "--sign-in", "--add-admin"]);
        let link = programs::output(link).await;
        let link = link.context("no link to the console")?;
        offer_agent(&program, service, database_url).await?;
        let mut serve = command(&program, service, database_url);
        serve
            .stdout(Stdio::null())
            .stderr(programs::log(&log_file(service))?);
        Ok(Some(Self {
            _process: Process::spawn(serve)?,
            link,
        }))
    }
}

pub fn log_file(service: &Service) -> PathBuf {
    service.folder.join("console.log")
}

/// Offers the agent of this build, so that the command on the page of a new token works on this machine.
async fn offer_agent(program: &Path, service: &Service, database_url: &str) -> anyhow::Result<()> {
    let Some(agent) = programs::beside("svc-agent")? else {
        return Ok(());
    };
    let mut version = dying_with_us(&agent);
    version.arg("--version");
    let version = programs::output(version).await?;
    let version = version.rsplit(' ').next().unwrap_or_default();
    // Builds of earlier starts are of no use.
    drop(fs::remove_dir_all(releases(service)));
    let mut import = command(program, service, database_url);
    import.args(["releases", "import", "--release", version]);
    import.arg(agent);
    let imported = programs::output(import).await;
    imported.context("the agent cannot be offered")?;
    Ok(())
}

fn releases(service: &Service) -> PathBuf {
    service.folder.join("releases")
}

fn command(program: &Path, service: &Service, database_url: &str) -> Command {
    let jwks = format!("http://{}/.well-known/jwks.json", service.http_address());
    let port = console_port();
    let mut command = dying_with_us(program);
    command
        .env("DATABASE_URL", database_url)
        .env("CONSOLE_BASE_URL", format!("http://localhost:{port}"))
        .env("CONSOLE_PORT", port)
        .env("CONSOLE_BIND_ADDRESS", "127.0.0.1")
        .env("CONSOLE_JWKS_URL", jwks)
        .env("CONSOLE_INGEST_ADDRESS", service.grpc_address())
        .env("CONSOLE_INGEST_CA", service.certificate())
        .env("CONSOLE_DOWNLOAD_DIR", releases(service));
    command
}
