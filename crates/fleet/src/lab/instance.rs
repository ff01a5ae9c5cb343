//! One instance of the service: a process of the real binary.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Child,
    time::Duration,
};

use anyhow::{bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use svc_sandbox::{dying_with_us, free_port, spawn};
use tokio::time::{Instant, sleep};

use super::{Lab, binary, http};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How much of the log an error shows.
const TAIL_BYTES: usize = 2_000;

/// A running instance; dropping it kills the process.
#[derive(Debug)]
pub struct Instance {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    child: Child,
    log: PathBuf,
}

impl Instance {
    pub(super) fn start(
        lab: &Lab,
        number: usize,
        ports: Option<(SocketAddr, SocketAddr)>,
    ) -> anyhow::Result<Instance> {
        let (grpc, http) = match ports {
            Some(ports) => ports,
            None => (free_address()?, free_address()?),
        };
        let log = lab.folder.path().join(format!("instance-{number}.log"));
        let mut command = dying_with_us(&binary::path()?);
        command.env_clear().envs(environment(lab, grpc, http));
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = spawn(command)?;
        Ok(Instance {
            grpc,
            http,
            child,
            log,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `/healthz` answers 200. The error shows the end of the log.
    pub async fn wait_until_healthy(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !http::get(self.http, "/healthz")
            .await
            .is_ok_and(|(status, _)| status == 200)
        {
            if let Some(status) = self.child.try_wait()? {
                bail!("svc-ingest ended ({status}): {}", self.log_tail());
            }
            ensure!(
                Instant::now() < deadline,
                "svc-ingest is not healthy: {}",
                self.log_tail()
            );
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Sends a signal and waits for the process to end. Returns how long that took.
    ///
    /// A process that was already reaped gets no signal, because its id may belong to another one.
    pub async fn stop(&mut self, signal: Signal) -> anyhow::Result<Duration> {
        let began = Instant::now();
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), signal)?;
        }
        while self.child.try_wait()?.is_none() {
            ensure!(began.elapsed() < STOP_TIMEOUT, "svc-ingest does not end");
            sleep(POLL_INTERVAL).await;
        }
        Ok(began.elapsed())
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = text.len().saturating_sub(TAIL_BYTES);
        let start = text.ceil_char_boundary(start);
        text[start..].to_owned()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

fn environment(lab: &Lab, grpc: SocketAddr, http: SocketAddr) -> [(&'static str, String); 9] {
    let file = |name: &str| lab.folder.path().join(name).display().to_string();
    let interval = format!("{}ms", lab.settings.interval.as_millis());
    [
        ("DATABASE_URL", lab.database_url()),
        ("INGEST_TLS_CERT", file("server.crt")),
        ("INGEST_TLS_KEY", file("server.key")),
        ("INGEST_JWT_KEY_FILE", file("jwt_key.pem")),
        ("INGEST_BIND_ADDRESS", "127.0.0.1".into()),
        ("INGEST_GRPC_PORT", grpc.port().to_string()),
        ("INGEST_HTTP_PORT", http.port().to_string()),
        ("INGEST_HEARTBEAT_INTERVAL", interval),
        ("INGEST_LOG", "warn".into()),
    ]
}
