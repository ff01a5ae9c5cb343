//! This machine's agent: the `svc-agent` binary in our own binary's folder.

use std::{path::PathBuf, process::Stdio};

use svc_sandbox::{Process, dying_with_us};

use crate::{programs, service::Service};

/// `None` where the binary is missing.
pub fn start(service: &Service) -> anyhow::Result<Option<Process>> {
    let Some(program) = programs::beside("svc-agent")? else {
        return Ok(None);
    };
    let mut command = dying_with_us(&program);
    command
        .arg("run")
        .env("SVC_AGENT_CONFIG", "/dev/null")
        .env("SVC_AGENT_INGEST_ADDRESS", service.grpc_address())
        .env("SVC_AGENT_CA_CERT_FILE", service.certificate())
        .env("SVC_AGENT_ENROLMENT_TOKEN_FILE", service.token_file())
        .env("SVC_AGENT_DATA_DIR", service.folder.join("agent"))
        .stdout(Stdio::null())
        .stderr(programs::log(&log_file(service))?);
    Process::spawn(command).map(Some)
}

pub fn log_file(service: &Service) -> PathBuf {
    service.folder.join("agent.log")
}
