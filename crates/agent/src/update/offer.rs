//! What an agent makes of an offer. The service only carries it: everything in it but the address of the download is signed,
//! and what the address leads to has to have the signed SHA-256.

use std::net::IpAddr;

use svc_proto::v1::UpdateOffer;
use svc_release::{PublicKey, Update, Version, digest};

use super::store::Books;
use crate::wire::Address;

const PRODUCT: &str = "svc-agent";
/// Several times the size of a real one, and a bound for a mistake in a manifest.
const LARGEST_PROGRAM: u64 = 128 << 20;
const LONGEST_URL: usize = 1024;

/// What an offer is compared with.
#[derive(Debug)]
pub struct Host<'a> {
    pub keys: &'a [PublicKey],
    pub platform: &'a str,
    pub running: &'a Version,
    /// The version of the installed program, which runs if nothing else does.
    pub installed: &'a Version,
    pub books: &'a Books,
}

/// What follows from an offer that is valid here.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Download(Box<Artefact>),
    /// This version runs already.
    Runs,
    /// The installed program is this version: going back needs no download.
    GoBack,
    /// It is on trial, or was refused.
    Known,
}

/// A program to download, with the manifest that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artefact {
    pub serial: u64,
    pub version: Version,
    pub size: u64,
    pub sha256: String,
    pub source: Source,
    pub manifest: Vec<u8>,
    pub signature: Vec<u8>,
}

/// Where programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub address: Address,
    pub is_tls: bool,
    path: String,
}

/// Why an offer is not taken, for people.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The manifest, if it could be verified.
    pub update: Option<Box<Update>>,
    pub reason: String,
}

impl Host<'_> {
    pub fn judge(&self, offer: &UpdateOffer) -> Result<(Update, Answer), Unfit> {
        let verified = Update::verify(&offer.manifest, &offer.signature, self.keys);
        let update = verified.map_err(|error| Unfit {
            update: None,
            reason: format!("the manifest: {error}"),
        })?;
        match self.answer(&update, offer) {
            Ok(answer) => Ok((update, answer)),
            Err(reason) => Err(Unfit {
                update: Some(Box::new(update)),
                reason,
            }),
        }
    }

    fn answer(&self, update: &Update, offer: &UpdateOffer) -> Result<Answer, String> {
        let (
            books,
            Update {
                serial, version, ..
            },
        ) = (self.books, update);
        if update.product != PRODUCT {
            return Err(format!("it is of another product: {}", update.product));
        }
        if *serial < books.highest {
            let highest = books.highest;
            return Err(format!(
                "its serial {serial} is lower than {highest}, which this agent has seen"
            ));
        }
        if *serial == books.highest && books.digest != manifest_digest(&offer.manifest) {
            return Err(format!(
                "this agent has seen another manifest with the serial {serial}"
            ));
        }
        let binary = update.platforms.get(self.platform);
        let binary = binary.ok_or_else(|| format!("it has no program for {}", self.platform))?;
        if binary.size > LARGEST_PROGRAM {
            return Err(format!(
                "its program has {} bytes, more than {LARGEST_PROGRAM}",
                binary.size
            ));
        }
        let is_on_trial = books
            .trial
            .as_ref()
            .is_some_and(|trial| trial.serial == *serial);
        let is_refused = books
            .refused
            .as_ref()
            .is_some_and(|refused| refused.serial == *serial);
        if is_on_trial || is_refused {
            return Ok(Answer::Known);
        }
        if version == self.running {
            return Ok(Answer::Runs);
        }
        if let Some(minimum) = update
            .minimum
            .as_ref()
            .filter(|minimum| self.running < minimum)
        {
            return Err(format!(
                "it replaces {minimum} and later, and {} runs here",
                self.running
            ));
        }
        if version < self.installed {
            return Err(format!(
                "the installed package is newer ({}): only the package manager replaces it by {version}",
                self.installed
            ));
        }
        if version == self.installed {
            return Ok(Answer::GoBack);
        }
        Ok(Answer::Download(Box::new(Artefact {
            serial: *serial,
            version: version.clone(),
            size: binary.size,
            sha256: binary.sha256.clone(),
            source: offer.download_base_url.parse()?,
            manifest: offer.manifest.clone(),
            signature: offer.signature.clone(),
        })))
    }
}

/// Of the exact bytes of a manifest.
pub fn manifest_digest(manifest: &[u8]) -> String {
    digest(manifest)
        .map(|(_, sha256)| sha256)
        .unwrap_or_default()
}

impl Source {
    /// `{base}/download/{sha256}`
    pub fn path(&self, sha256: &str) -> String {
        format!("{}/download/{sha256}", self.path)
    }
}

impl std::str::FromStr for Source {
    type Err = String;

    /// `https://host[:port][/path]`. Plain HTTP is for this machine alone: a compromised service must not make agents call
    /// whatever it likes in their networks.
    fn from_str(url: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("the address of the download {why}");
        let (is_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(bad("is not https://…")),
        };
        let harmless = |c: char| c.is_ascii_graphic() && !"@?#\\".contains(c);
        if url.len() > LONGEST_URL || !rest.chars().all(harmless) {
            return Err(bad("is too long, or has characters that it must not have"));
        }
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address =
            Address::parse(place, if is_tls { 443 } else { 80 }).map_err(|why| bad(&why))?;
        let host = &address.host;
        let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if !is_tls && !is_here {
            return Err(bad("is not https://…"));
        }
        Ok(Self {
            address,
            is_tls,
            path: path.trim_end_matches('/').to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use svc_release::{Binary, SecretKey};

    use super::*;
    use crate::update::store::{Refused, Trial};

    const PLATFORM: &str = "linux/x86_64";

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn update(serial: u64, named: &str) -> Update {
        let binary = Binary {
            size: 1000,
            sha256: "0f".repeat(32),
        };
        Update {
            product: PRODUCT.into(),
            version: version(named),
            serial,
            minimum: None,
            notes: None,
            platforms: [(PLATFORM.into(), binary)].into(),
        }
    }

    fn signed(key: &SecretKey, update: &Update) -> UpdateOffer {
        let manifest = update.to_text().unwrap().into_bytes();
        UpdateOffer {
            signature: key.sign(&manifest).unwrap(),
            manifest,
            download_base_url: "https://fleet.example/app/".into(),
        }
    }

    /// An agent of 1.2.0, launched by an installed 1.0.0, that has seen the serial 5.
    fn judged(
        books: &Books,
        change: impl FnOnce(&mut Update, &mut UpdateOffer, &SecretKey),
    ) -> Result<Answer, String> {
        let key = SecretKey::generate().unwrap();
        let mut update = update(6, "1.3.0");
        let mut offer = UpdateOffer::default();
        change(&mut update, &mut offer, &key);
        if offer.manifest.is_empty() {
            offer = signed(&key, &update);
        }
        let host = Host {
            keys: &[key.public_key().unwrap()],
            platform: PLATFORM,
            running: &version("1.2.0"),
            installed: &version("1.0.0"),
            books,
        };
        let answer = host.judge(&offer).map(|(_, answer)| answer);
        answer.map_err(|unfit| unfit.reason)
    }

    fn seen() -> Books {
        Books {
            highest: 5,
            digest: "another".into(),
            ..Books::default()
        }
    }

    #[test]
    fn a_higher_serial_is_taken_whichever_version_it_names() {
        for (named, download) in [
            ("1.3.0", true),
            ("1.1.0", true),
            ("1.2.0", false),
            ("1.0.0", false),
        ] {
            let answer = judged(&seen(), |update, _, _| update.version = version(named)).unwrap();
            match (named, answer) {
                (_, Answer::Download(artefact)) => {
                    assert!(download, "{named}");
                    let place = artefact.source.path(&artefact.sha256);
                    assert_eq!(place, format!("/app/download/{}", "0f".repeat(32)));
                }
                ("1.2.0", Answer::Runs) | ("1.0.0", Answer::GoBack) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn every_other_offer_is_refused_with_its_reason() {
        type Change = fn(&mut Update, &mut UpdateOffer, &SecretKey);
        let cases: [(&str, Change); 11] = [
            ("none of the trusted keys", |update, offer, _| {
                *offer = signed(&SecretKey::generate().unwrap(), update);
            }),
            ("none of the trusted keys", |update, offer, key| {
                *offer = signed(key, update);
                offer.manifest.pop();
            }),
            ("none of the trusted keys", |update, offer, key| {
                *offer = signed(key, update);
                offer.signature.pop();
            }),
            ("larger than 4096 bytes", |update, offer, key| {
                *offer = signed(key, update);
                offer.manifest.resize(5000, b' ');
                offer.signature = key.sign(&offer.manifest).unwrap();
            }),
            ("of another product", |update, _, _| {
                update.product = "svc-ingest".into();
            }),
            ("its serial 4 is lower than 5", |update, _, _| {
                update.serial = 4;
            }),
            ("another manifest with the serial 5", |update, _, _| {
                update.serial = 5;
            }),
            ("no program for linux/x86_64", |update, _, _| {
                let other = update.platforms.remove(PLATFORM).unwrap();
                update.platforms.insert("linux/s390x".into(), other);
            }),
            ("more than 134217728", |update, _, _| {
                update.platforms.get_mut(PLATFORM).unwrap().size = 1 << 40;
            }),
            ("it replaces 1.2.5 and later", |update, _, _| {
                update.minimum = Some(version("1.2.5"));
            }),
            ("the installed package is newer", |update, _, _| {
                update.version = version("0.9.0");
            }),
        ];
        for (reason, change) in cases {
            let refused = judged(&seen(), change).unwrap_err();
            assert!(refused.contains(reason), "{reason}: {refused}");
        }
    }

    #[test]
    fn a_version_that_is_on_trial_or_was_refused_is_not_downloaded_again() {
        let mut books = seen();
        books.refused = Some(Refused {
            serial: 6,
            version: version("1.3.0"),
            reason: String::new(),
            log_tail: String::new(),
        });
        assert_eq!(judged(&books, |_, _, _| {}), Ok(Answer::Known));
        books.refused = None;
        books.trial = Some(Trial {
            serial: 6,
            version: version("1.3.0"),
            tries: 3,
            failed: None,
            doubts: 0,
        });
        assert_eq!(judged(&books, |_, _, _| {}), Ok(Answer::Known));
    }

    #[test]
    fn downloads_come_from_https_or_from_this_machine() {
        for (url, shown, path) in [
            ("https://fleet.example", "fleet.example:443", "/download/x"),
            (
                "https://fleet.example:8443/app/",
                "fleet.example:8443",
                "/app/download/x",
            ),
            ("http://127.0.0.1:8000", "127.0.0.1:8000", "/download/x"),
            ("http://localhost/", "localhost:80", "/download/x"),
        ] {
            let source: Source = url.parse().unwrap();
            assert_eq!(
                (
                    source.address.to_string().as_str(),
                    source.path("x").as_str()
                ),
                (shown, path)
            );
        }
        let long = format!("https://a/{}", "a".repeat(LONGEST_URL));
        for url in [
            "",
            "fleet.example",
            "http://fleet.example",
            "http://169.254.169.254/",
            "file:///etc/passwd",
            "https://",
            "https://user@host/",
            "https://a/?x=",
            "https://a/#",
            "https://a/\r\nX: y",
            "https://a b/",
            &long,
        ] {
            assert!(url.parse::<Source>().is_err(), "{url}");
        }
    }
}
