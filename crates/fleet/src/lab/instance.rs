//! One instance of the service: the real binary as a process.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use svc_sandbox::{dying_with_us, free_port, spawn};
use tokio::time::{Instant, sleep};

use super::{Lab, http, ingest};

const START_PATIENCE: Duration = Duration::from_secs(60);
const END_PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
const TAIL: usize = 2_000;

/// A running instance; killed when it is dropped.
#[derive(Debug)]
pub struct Instance {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    child: Mutex<Child>,
    pid: u32,
    log: PathBuf,
}

impl Instance {
    pub(super) fn launch(
        lab: &Lab,
        number: usize,
        ports: Option<(SocketAddr, SocketAddr)>,
    ) -> anyhow::Result<Instance> {
        let (grpc, http) = match ports {
            Some(ports) => ports,
            None => (free_address()?, free_address()?),
        };
        let log = lab.folder().join(format!("instance-{number}.log"));
        let mut command = dying_with_us(&ingest::program()?);
        command.env_clear().envs(environment(lab, grpc, http));
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let child = spawn(command)?;
        Ok(Instance {
            grpc,
            http,
            pid: child.id(),
            child: Mutex::new(child),
            log,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until `/healthz` answers 200; its log is the error if it ends before.
    pub async fn serving(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while !http::get(self.http, "/healthz")
            .await
            .is_ok_and(|(status, _)| status == 200)
        {
            if let Some(status) = self.ended() {
                bail!("svc-ingest ended ({status}): {}", self.tail());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "svc-ingest does not serve: {}",
                self.tail()
            );
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Only a child that was not yet waited for is signalled: its number may be another's afterwards.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let mut child = self.child();
        if child.try_wait()?.is_none() {
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            kill_process(pid.context("a process id")?, signal)?;
        }
        Ok(())
    }

    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// How long it took to end.
    pub async fn wait_for_end(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        while self.ended().is_none() {
            anyhow::ensure!(began.elapsed() < END_PATIENCE, "svc-ingest does not end");
            sleep(PAUSE).await;
        }
        Ok(began.elapsed())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = text.len().saturating_sub(TAIL);
        let start = text.ceil_char_boundary(start);
        text[start..].to_owned()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

fn environment(lab: &Lab, grpc: SocketAddr, http: SocketAddr) -> Vec<(String, String)> {
    let file = |name: &str| lab.folder().join(name).display().to_string();
    let interval = format!("{}ms", lab.settings().interval.as_millis());
    let ours = [
        ("DATABASE_URL", lab.database_url()),
        ("INGEST_TLS_CERT", file("server.crt")),
        ("INGEST_TLS_KEY", file("server.key")),
        ("INGEST_JWT_KEY_FILE", file("jwt_key.pem")),
        ("INGEST_BIND_ADDRESS", "127.0.0.1".into()),
        ("INGEST_GRPC_PORT", grpc.port().to_string()),
        ("INGEST_HTTP_PORT", http.port().to_string()),
        ("INGEST_HEARTBEAT_INTERVAL", interval),
        ("INGEST_LOG", "warn".into()),
    ];
    let ours = ours
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    ours.chain(lab.settings().variables.clone()).collect()
}
