//! Certificate reload: reads the two files every few seconds, and serves the new pair once both are good.
//!
//! Reading is more robust than watching: it notices replaced symbolic links, network file systems and rewritten
//! files alike. While the new pair is bad or only half replaced, the old one stays in service, and the log says
//! so once.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use rustls::server::ResolvesServerCert;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{CurrentCertificate, TlsPair};
use crate::periodic::Periodic;

#[derive(Debug)]
pub struct Reload {
    pair: TlsPair,
    current: Arc<CurrentCertificate>,
    reported: Option<String>,
    expires_at: watch::Sender<Option<Timestamp>>,
    expiry: Gauge,
}

impl Reload {
    /// `expiry` shows when the certificate in service expires, in seconds since 1970.
    pub fn new(pair: TlsPair, expiry: Gauge) -> Self {
        let reload = Self {
            current: CurrentCertificate::new(&pair),
            reported: None,
            expires_at: watch::Sender::new(expires_at(&pair)),
            pair,
            expiry,
        };
        reload.note_expiry();
        reload
    }

    /// For the TLS settings: it always answers with the certificate in service.
    pub fn current(&self) -> Arc<dyn ResolvesServerCert> {
        self.current.clone()
    }

    /// When the certificate in service expires.
    pub fn expires_at(&self) -> watch::Receiver<Option<Timestamp>> {
        self.expires_at.subscribe()
    }

    pub async fn run(mut self, period: Duration, stop: CancellationToken) {
        let mut periodic = Periodic::new(period, stop);
        while periodic.tick().await {
            self.pass();
        }
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
        self.current.replace(&pair);
        self.expires_at.send_replace(expires_at(&pair));
        self.pair = pair;
        self.reported = None;
        self.note_expiry();
    }

    fn note_expiry(&self) {
        let Some(facts) = self.pair.facts() else {
            return;
        };
        self.expiry.set(facts.not_after.as_second());
        if facts.expired(Timestamp::now()) {
            tracing::warn!(not_after = %facts.not_after, "the TLS certificate has expired: clients will refuse it");
        }
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

fn expires_at(pair: &TlsPair) -> Option<Timestamp> {
    pair.facts().map(|facts| facts.not_after)
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
        (folder, Reload::new(pair, Gauge::default()))
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
