//! Certificate reload: reads the two files every few seconds, and serves the new pair once both are good.
//!
//! Reading is more robust than watching: it notices replaced symbolic links, network file systems and rewritten
//! files alike. While the new pair is bad or only half replaced, the old one stays in service, and the log says
//! so once.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use svc_common::periodic::Periodic;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    ClientCa, TlsPair,
    tls::{CurrentCertificate, acceptor},
};
use crate::metrics::ListenerMetrics;

#[derive(Debug)]
pub struct Reload {
    pair: TlsPair,
    current: Arc<CurrentCertificate>,
    reported: Option<String>,
    expires_at: watch::Sender<Option<Timestamp>>,
    metrics: ListenerMetrics,
}

impl Reload {
    /// The TLS settings to serve with, and the task that keeps their certificate fresh.
    pub fn new(
        pair: TlsPair,
        client_ca: Option<ClientCa>,
        metrics: ListenerMetrics,
    ) -> Result<(TlsAcceptor, Self), rustls::Error> {
        if let Some(at) = client_ca.as_ref().and_then(|ca| ca.expires_at) {
            metrics.certificate_expires("client_ca", at);
        }
        note_expiry(&pair, &metrics);
        let current = CurrentCertificate::new(&pair);
        let expires_at = watch::Sender::new(expiry(&pair));
        Ok((
            acceptor(current.clone(), client_ca)?,
            Self {
                pair,
                current,
                reported: None,
                expires_at,
                metrics,
            },
        ))
    }

    /// When the certificate in service expires.
    pub fn expires_at(&self) -> watch::Receiver<Option<Timestamp>> {
        self.expires_at.subscribe()
    }

    pub async fn run(mut self, period: Duration, stop: CancellationToken) -> anyhow::Result<()> {
        let mut periodic = Periodic::new(period, stop);
        while periodic.tick().await {
            self.pass();
        }
        Ok(())
    }

    fn pass(&mut self) {
        match TlsPair::load(&self.pair.certificate_file, &self.pair.key_file) {
            Ok(pair) if pair.certified.cert == self.pair.certified.cert => self.reported = None,
            Ok(pair) => self.replace(pair),
            Err(errors) => {
                let reasons: Vec<String> =
                    errors.iter().map(|(_, error)| error.to_string()).collect();
                self.report(reasons.join("; "));
            }
        }
    }

    fn replace(&mut self, pair: TlsPair) {
        tracing::info!(certificate.file = %pair.certificate_file.display(), "serving a new TLS certificate");
        note_expiry(&pair, &self.metrics);
        self.current.replace(&pair);
        self.expires_at.send_replace(expiry(&pair));
        self.pair = pair;
        self.reported = None;
    }

    fn report(&mut self, reason: String) {
        if self.reported.as_ref() != Some(&reason) {
            tracing::warn!(
                reason,
                "the new TLS pair is bad: the old one stays in service"
            );
            self.reported = Some(reason);
        }
    }
}

fn expiry(pair: &TlsPair) -> Option<Timestamp> {
    pair.facts().map(|facts| facts.not_after)
}

fn note_expiry(pair: &TlsPair, metrics: &ListenerMetrics) {
    let Some(facts) = pair.facts() else {
        return;
    };
    metrics.certificate_expires("server", facts.not_after);
    if facts.expired(Timestamp::now()) {
        tracing::warn!(not_after = %facts.not_after, "the TLS certificate has expired: agents will refuse it");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use svc_sandbox::Identity;
    use tempfile::TempDir;

    use super::*;

    fn serving(identity: &Identity) -> (TempDir, Reload) {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = identity.write(folder.path(), "server").unwrap();
        let pair = TlsPair::load(&certificate, &key).unwrap();
        let (_, reload) = Reload::new(pair, None, ListenerMetrics::default()).unwrap();
        (folder, reload)
    }

    fn new_identity() -> Identity {
        Identity::server(&["localhost"]).unwrap()
    }

    #[test]
    fn a_bad_pair_keeps_the_old_one_and_is_reported_once() {
        let (good, stranger) = (new_identity(), new_identity());
        let (folder, mut reload) = serving(&good);
        let bad = [
            ("server.key", stranger.key_pem.as_str()),
            ("server.key", ""),
            ("server.crt", "-----BEGIN CERTIFICATE-----\nMIIB"),
            ("server.crt", stranger.cert_pem.as_str()),
        ];
        for (name, text) in bad {
            good.write(folder.path(), "server").unwrap();
            fs::write(folder.path().join(name), text).unwrap();
            reload.pass();
            let reported = reload.reported.clone();
            assert!(reported.is_some(), "{name}");
            reload.pass();
            assert_eq!(reload.reported, reported);
            assert_eq!(reload.current.certificate(), good.cert_der, "{name}");
        }
        fs::remove_file(folder.path().join("server.key")).unwrap();
        reload.pass();
        assert_eq!(reload.current.certificate(), good.cert_der);
    }

    #[test]
    fn a_good_pair_is_served_whatever_came_before() {
        let (folder, mut reload) = serving(&new_identity());
        fs::write(folder.path().join("server.key"), "").unwrap();
        reload.pass();
        let next = new_identity();
        next.write(folder.path(), "server").unwrap();
        reload.pass();
        assert_eq!(reload.current.certificate(), next.cert_der);
        assert_eq!(reload.reported, None);
    }
}
