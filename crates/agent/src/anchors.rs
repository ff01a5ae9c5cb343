//! The trust anchors that the service has announced. They are kept in the data folder, beside those of the configuration.
//!
//! **Invariant:** an anchor is taken only over a connection that the agent's trust verifies at that moment, and dropped only if what
//! remains verifies that connection, too. So whoever cannot show a certificate that is trusted already changes nothing, and the last
//! anchor is never dropped. An anchor is stated to the service once it is on disk: from then on people count on it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use svc_proto::v1::{TrustAnchors, TrustState};
use tokio::sync::watch;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    config::Config,
    data_dir::{DataDir, TRUST, content, short},
    sync::locked,
    trust::{Trust, TrustError},
    wire::Server,
};

/// The most anchors that are kept, and that an announcement may have.
const MOST: usize = 8;
const LARGEST: usize = 8 * 1024;
/// The most that are stated. Anchors that were announced come first, so they are always among them.
const MOST_STATED: usize = 16;
const PEM_END: &str = "-----END CERTIFICATE-----";

type Certificates = Vec<CertificateDer<'static>>;

/// What the agent trusts beyond the system's roots.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    pub state: TrustState,
    /// The same for people: subject and short hash.
    pub shown: Vec<String>,
}

#[derive(Debug)]
pub struct Anchors {
    ca_cert_file: Option<PathBuf>,
    /// The configuration alone decides.
    is_off: bool,
    kept: Mutex<Certificates>,
    /// Those of the cell that the agent lives in, which it took with the order to move there.
    cell: Mutex<Certificates>,
    /// Held by the announcement that is being taken. `kept` is not held while the disk is waited for: connections need it.
    taking: Mutex<()>,
    /// The newest announcement, until its turn comes.
    waiting: Mutex<Option<(TrustAnchors, Arc<Server>)>>,
    trusted: watch::Sender<Trusted>,
}

impl Anchors {
    pub fn open(config: &Config) -> Self {
        let is_off = !config.trust_updates;
        let mut trusted = Trusted::default();
        if is_off {
            trusted.state.problem = "off".into();
        }
        Self {
            ca_cert_file: config.ca_cert_file.clone(),
            is_off,
            kept: Mutex::new(match is_off {
                true => Vec::new(),
                false => read(&config.data_dir),
            }),
            cell: Mutex::default(),
            taking: Mutex::default(),
            waiting: Mutex::default(),
            trusted: watch::Sender::new(trusted),
        }
    }

    /// Who is trusted now. It is what the next Hello states.
    pub fn trust(&self) -> Result<Trust, TrustError> {
        let kept = locked(&self.kept).clone();
        let trust = self.with(&kept)?;
        self.publish(&trust, None);
        Ok(trust)
    }

    /// The agent lives in the cell with these certificates from now on.
    pub fn live_in(&self, certificates: Certificates) {
        *locked(&self.cell) = certificates;
    }

    pub fn trusted(&self) -> watch::Receiver<Trusted> {
        self.trusted.subscribe()
    }

    /// Notes an announcement that came over a connection to `server`, in the place of one that waits. True: call [`Self::take`].
    pub fn announced(&self, list: TrustAnchors, server: Arc<Server>) -> bool {
        locked(&self.waiting).replace((list, server)).is_none()
    }

    /// Takes the announcement that waits. This waits for the disk.
    pub fn take(&self, dir: &DataDir) {
        let _one = locked(&self.taking);
        let waiting = locked(&self.waiting).take();
        let Some((list, server)) = waiting else {
            return;
        };
        let before = locked(&self.kept).clone();
        let taken = self.after(&list, &server, &before);
        let stored = taken.and_then(|(kept, problem)| {
            if kept != before {
                let written = dir.write(TRUST, &pem(&kept));
                written.map_err(|error| error.to_string())?;
                tracing::info!(anchors = kept.len(), "the trust anchors changed");
            }
            Ok((kept, problem))
        });
        let (kept, problem) = stored.unwrap_or_else(|problem| (before, problem));
        if !problem.is_empty() {
            tracing::warn!(problem, "a trust anchor of the service is not taken");
        }
        locked(&self.kept).clone_from(&kept);
        if let Ok(trust) = self.with(&kept) {
            self.publish(&trust, Some(problem));
        }
    }

    /// What is kept after an announcement, and why some of it is not. The rules are here.
    fn after(
        &self,
        list: &TrustAnchors,
        server: &Server,
        before: &Certificates,
    ) -> Result<(Certificates, String), String> {
        let verifies = |kept: &Certificates| {
            let trust = self.with(kept);
            trust.is_ok_and(|trust| trust.verifies(server))
        };
        if self.is_off {
            return Err("off".into());
        }
        if list.certificates.len() > MOST {
            let count = list.certificates.len();
            return Err(format!("{count} anchors are announced, {MOST} at most"));
        }
        if !verifies(before) {
            return Err("no present anchor verifies the connection that announced it".into());
        }
        let (mut kept, mut problem) = (before.clone(), String::new());
        for one in before {
            let fewer: Certificates = kept.iter().filter(|kept| *kept != one).cloned().collect();
            if list.retired.contains(&hash(one)) && verifies(&fewer) {
                kept = fewer;
            }
        }
        for der in &list.certificates {
            let known = kept.iter().any(|kept| kept.as_ref() == der);
            match parsed(der) {
                _ if known => {}
                Some(_) if kept.len() >= MOST => problem = format!("{MOST} are kept already"),
                Some(_) => kept.push(der.clone().into()),
                None => problem = format!("{} bytes are no certificate", der.len()),
            }
        }
        Ok((kept, problem))
    }

    fn with(&self, kept: &Certificates) -> Result<Trust, TrustError> {
        let trust = Trust::load_with(self.ca_cert_file.as_deref(), kept)?;
        Ok(trust.and(&locked(&self.cell)))
    }

    fn publish(&self, trust: &Trust, problem: Option<String>) {
        let stated = || trust.certificates().iter().take(MOST_STATED);
        let anchors: Vec<Vec<u8>> = stated().map(hash).collect();
        self.trusted.send_if_modified(|trusted| {
            let problem = problem.unwrap_or_else(|| trusted.state.problem.clone());
            let state = TrustState { anchors, problem };
            let is_new = state != trusted.state;
            trusted.shown = stated().map(shown).collect();
            trusted.state = state;
            is_new
        });
    }
}

/// What is readable in the file: each certificate counts for itself, and the service announces again what is lost.
fn read(data_dir: &Path) -> Certificates {
    let text = match content(&data_dir.join(TRUST)) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "the file of trust anchors cannot be read");
            return Vec::new();
        }
    };
    let blocks: Vec<&str> = text.split_inclusive(PEM_END).collect();
    let blocks = blocks.iter().filter(|block| !block.trim().is_empty());
    let read: Vec<_> = blocks.map(|block| certificate(block)).collect();
    if read.iter().any(Option::is_none) {
        tracing::warn!("the file of trust anchors is damaged");
    }
    read.into_iter().flatten().take(MOST).collect()
}

fn certificate(block: &str) -> Option<CertificateDer<'static>> {
    let der = CertificateDer::from_pem_slice(block.as_bytes()).ok()?;
    parsed(&der).is_some().then_some(der)
}

fn pem(certificates: &Certificates) -> String {
    let block = |der: &CertificateDer<'_>| {
        let text = STANDARD.encode(der);
        let lines: Vec<_> = text.as_bytes().chunks(64).collect();
        let body = String::from_utf8_lossy(&lines.join(&b'\n')).into_owned();
        format!("-----BEGIN CERTIFICATE-----\n{body}\n{PEM_END}\n")
    };
    certificates.iter().map(block).collect()
}

/// A certificate and nothing behind it, of a size that is kept.
fn parsed(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, parsed) = X509Certificate::from_der(der).ok()?;
    (rest.is_empty() && der.len() <= LARGEST).then_some(parsed)
}

fn hash(der: &CertificateDer<'_>) -> Vec<u8> {
    digest(&SHA256, der).as_ref().to_vec()
}

fn shown(der: &CertificateDer<'_>) -> String {
    let subject = parsed(der).map(|parsed| parsed.subject().to_string());
    let hash: String = hash(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let subject = subject.unwrap_or_else(|| "not readable".into());
    format!("{} ({subject})", short(&hash))
}
