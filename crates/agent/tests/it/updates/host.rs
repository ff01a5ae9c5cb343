//! A host whose installed agent updates itself, under a supervisor that does what systemd does: it starts the program again whenever
//! it ends, and kills it when its watchdog is silent.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixDatagram},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;
use svc_agent::update::platform;
use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use svc_release::{Binary, SecretKey, Update, digest};
use svc_testkit::{Process, Program, Proxy, Site, eventually};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};

use super::service::Service;
use crate::installation::Installed;

/// How long the supervisor tolerates a silent watchdog.
const WATCHDOG: Duration = Duration::from_secs(3);

pub struct Host {
    /// It has the certificates.
    _site: Site,
    pub service: Service,
    /// The network between the agent and the service.
    pub network: Proxy,
    pub installed: Installed,
    pub key: SecretKey,
    folder: TempDir,
}

impl Host {
    /// The installed version is 1.0.0, and a trial takes 12 s.
    pub async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let service = Service::start(&site).await?;
        let network = Proxy::start(vec![service.address]).await?;
        let folder = tempfile::tempdir()?;
        let key = SecretKey::generate()?;
        let keys = folder.path().join("keys");
        fs::create_dir(&keys)?;
        fs::write(keys.join("test.pem"), key.public_key()?.to_pem())?;
        for (path, mode) in [(keys.clone(), 0o755), (keys.join("test.pem"), 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
        let mut installed = Installed::new(&site, 1, &[network.address()], "")?;
        installed.settings = vec![
            ("update", "on".into()),
            ("update_keys", keys.display().to_string()),
            ("update_trial", "12s".into()),
        ];
        let host = Self {
            _site: site,
            service,
            network,
            installed,
            key,
            folder,
        };
        host.install("1.0.0")?;
        Ok(host)
    }

    /// What the package manager does.
    pub fn install(&self, version: &str) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, program(version)?)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.package())?)
    }

    pub fn package(&self) -> PathBuf {
        self.folder.path().join("svc-agent")
    }

    /// A signed release of this program, which the service serves.
    pub fn release(&self, serial: u64, version: &str, program: Vec<u8>) -> Result<UpdateOffer> {
        let (size, sha256) = digest(&program[..])?;
        let file = Arc::new(program);
        self.service.seen().files.insert(sha256.clone(), file);
        let update = Update {
            product: "svc-agent".into(),
            version: version.parse()?,
            serial,
            minimum: None,
            notes: None,
            platforms: [(platform(), Binary { size, sha256 })].into(),
        };
        self.signed(&update, &self.key)
    }

    pub fn signed(&self, update: &Update, key: &SecretKey) -> Result<UpdateOffer> {
        let manifest = update.to_text()?.into_bytes();
        Ok(UpdateOffer {
            signature: key.sign(&manifest)?,
            manifest,
            download_base_url: format!("http://{}", self.service.downloads),
        })
    }

    /// A release of the real program.
    pub fn good(&self, serial: u64, version: &str) -> Result<UpdateOffer> {
        self.release(serial, version, program(version)?)
    }

    pub fn supervise(&self) -> Result<Supervisor> {
        let path = self.folder.path().join("notify");
        drop(fs::remove_file(&path));
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        let program = Program::at(self.package()).arguments(["run"]);
        let program = self.installed.with_settings(program).environment([
            ("NOTIFY_SOCKET", path.display().to_string()),
            ("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()),
        ]);
        let current = Arc::default();
        let task = tokio::spawn(supervise(program, socket, Arc::clone(&current)));
        Ok(Supervisor { current, task })
    }

    /// The version of the newest Hello.
    pub fn version(&self) -> String {
        let seen = self.service.seen();
        let agent = seen.hellos.last().and_then(|hello| hello.agent.clone());
        agent.map(|agent| agent.version).unwrap_or_default()
    }

    pub async fn runs(&self, version: &str) -> Result<()> {
        let what = format!("{version} runs");
        eventually(&what, async || self.version() == version)
            .await
            .with_context(|| format!("{:?}", self.service.seen().states))
    }

    /// Waits until the service has heard of this step of this serial.
    pub async fn reports(&self, step: UpdateStep, serial: u64) -> Result<UpdateState> {
        let mut found = None;
        let is = |state: &&UpdateState| state.step() == step && state.serial == serial;
        patiently(&format!("{step:?} of {serial}"), async || {
            found = self.service.seen().states.iter().rfind(is).cloned();
            found.is_some()
        })
        .await
        .with_context(|| format!("{:?}", self.service.seen().states))?;
        found.context("a state")
    }

    /// Forgets what was heard so far.
    pub fn forget(&self) {
        let mut seen = self.service.seen();
        seen.states.clear();
        seen.hellos.clear();
        seen.ranges.clear();
        seen.goodbyes.clear();
    }

    /// The names in the folder of downloaded versions.
    pub fn versions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.installed.path().join("versions"));
        let entries = entries.into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

/// A trial may have to end before another one begins.
async fn patiently(what: &str, mut check: impl AsyncFnMut() -> bool) -> Result<()> {
    for _ in 0..3 {
        if eventually(what, &mut check).await.is_ok() {
            return Ok(());
        }
    }
    eventually(what, check).await
}

/// The real program under another version, which a debug build reads from the end of its file.
pub fn program(version: &str) -> Result<Vec<u8>> {
    let mut bytes = fs::read(Program::named("svc-agent")?.path())?;
    bytes.extend(format!("\nSVC_AGENT_VERSION={version}\n").into_bytes());
    Ok(bytes)
}

/// Dropping it ends the agent.
pub struct Supervisor {
    current: Arc<Mutex<Option<Arc<Process>>>>,
    task: JoinHandle<Result<()>>,
}

impl Supervisor {
    pub fn current(&self) -> Option<Arc<Process>> {
        let current = self.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the present process without a warning; the supervisor starts the next one.
    pub async fn kill(&self) -> Result<()> {
        match self.current() {
            Some(process) if !process.has_ended() => process.kill().await,
            _ => Ok(()),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn supervise(
    program: Program,
    socket: UnixDatagram,
    current: Arc<Mutex<Option<Arc<Process>>>>,
) -> Result<()> {
    loop {
        let process = Arc::new(program.start()?);
        *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(process.clone());
        let mut heard = Instant::now();
        while !process.has_ended() {
            let mut sign = [0; 64];
            while socket.recv(&mut sign).is_ok() {
                heard = Instant::now();
            }
            if heard.elapsed() > 2 * WATCHDOG {
                process.signal(Signal::KILL)?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
