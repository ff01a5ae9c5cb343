//! Updates: the agent replaces itself by versions that were signed offline, tries them, and goes back by itself.
//!
//! In reading order: `store` is what is kept on disk; `keys` are those who may sign; `launcher` decides at the start which
//! version runs; `offer` judges what the service offers; `download` gets it; `trial` has the rules by which a version is
//! approved, or counts as failed.
//!
//! [`Updater`] is the one place that changes the books while an agent runs. It is a task beside the heartbeats, which tell it
//! what they hear, and its disk work runs on other threads. A restart ends the agent as a signal does, with a Goodbye that says
//! when it is back; the command line then starts the launcher in its place.

mod download;
mod keys;
pub mod launcher;
mod offer;
mod store;
mod trial;
mod updater;
pub mod watchdog;

use std::{fmt, path::PathBuf, time::Duration};

use svc_proto::v1::{UpdateOffer, UpdateState, UpdateStep};
use svc_release::{PublicKey, Version};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, UpdateMode},
    data_dir::DataDir,
    facts,
};
use launcher::Launch;
use store::{Books, Folder};
use trial::Sign;
pub use updater::Updater;

/// What the heartbeats tell. If the channel is full because the disk stalls, an event is dropped: each of them comes again.
const EVENTS: usize = 16;
/// The longest text for people that travels to the service.
const LONGEST_REASON: usize = 200;

/// Whether the settings allow a restart for an update now.
type MayRestart = bool;

enum Event {
    Heard(Sign, MayRestart),
    Offer(Box<UpdateOffer>),
}

/// The platform of this program, as manifests name it.
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Where a version on trial also writes its log; `None`: this process is not one.
pub fn trial_log(config: &Config) -> Option<PathBuf> {
    let serial = Launch::given()?.serial?;
    let trial = Books::read(&config.data_dir).trial?;
    (trial.serial == serial).then(|| Folder::of(&config.data_dir, serial).log())
}

/// The heartbeats' side.
#[derive(Clone, Debug)]
pub struct Updates {
    events: mpsc::Sender<Event>,
    state: watch::Receiver<UpdateState>,
    restart: CancellationToken,
    back_within: Duration,
}

impl fmt::Debug for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Event")
    }
}

impl Updates {
    pub fn welcomed(&self, may_restart: bool) {
        self.tell(Event::Heard(Sign::Welcome, may_restart));
    }

    pub fn acknowledged(&self, may_restart: bool) {
        self.tell(Event::Heard(Sign::Acknowledgement, may_restart));
    }

    pub fn offered(&self, offer: UpdateOffer) {
        self.tell(Event::Offer(Box::new(offer)));
    }

    fn tell(&self, event: Event) {
        drop(self.events.try_send(event));
    }

    /// What the service should know.
    pub fn state(&self) -> watch::Receiver<UpdateState> {
        self.state.clone()
    }

    /// Set: the agent stops in order to start again within this time.
    pub fn restart(&self) -> Option<Duration> {
        self.restart.is_cancelled().then_some(self.back_within)
    }
}

/// What taking an update needs besides the offer.
#[derive(Debug)]
struct Able {
    keys: Vec<PublicKey>,
    running: Version,
    installed: Version,
}

fn able(config: &Config, launch: Option<&Launch>, dir: &DataDir) -> Result<Able, String> {
    let reason = match config.update {
        UpdateMode::Off => Some("update = \"off\" in the settings"),
        UpdateMode::Auto if facts::is_container() => {
            Some("it runs in a container: replace its image, or set update = \"on\"")
        }
        _ => None,
    };
    if let Some(reason) = reason {
        return Err(reason.into());
    }
    let launch = launch.ok_or("it was not started by `svc-agent run`")?;
    let running = crate::release::own_version().ok_or("its version is not a number")?;
    let flags = rustix::fs::statvfs(dir.path()).map(|disk| disk.f_flag);
    if flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC)) {
        return Err("programs cannot be started from data_dir (noexec)".into());
    }
    let mut keys = keys::trusted(config)?;
    keys.retain(|key| launch.keys.contains(&key.fingerprint()));
    if keys.is_empty() {
        return Err(
            "the installed package trusts none of the keys of this version: upgrade it".into(),
        );
    }
    Ok(Able {
        keys,
        running,
        installed: launch.version.clone(),
    })
}

fn state(step: UpdateStep, serial: u64, version: &Version, reason: &str) -> UpdateState {
    UpdateState {
        step: step.into(),
        serial,
        version: version.to_string(),
        reason: reason.into(),
        ..UpdateState::default()
    }
}

fn report(sender: &watch::Sender<UpdateState>, mut state: UpdateState) {
    state.platform = platform();
    state.reason = state
        .reason
        .chars()
        .filter(|c| !c.is_control())
        .take(LONGEST_REASON)
        .collect();
    sender.send_if_modified(|known| {
        let is_new = *known != state;
        *known = state;
        is_new
    });
}
