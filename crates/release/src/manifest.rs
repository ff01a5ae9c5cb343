//! The manifest of a release: its version, and each file with product, target, kind, size and SHA-256.
//!
//! Nothing of it is parsed before its signature has been verified, and its size is bounded before that. Later versions may
//! add fields and kinds, which are ignored here; `format` changes only if an older reader would misunderstand the rest.

use std::{
    collections::BTreeSet,
    io::{self, Read},
};

use aws_lc_rs::digest::{Context, SHA256};
use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::keys::{PublicKey, hex};

/// The manifest's name in the folder of a release.
pub const FILE: &str = "release.json";

const FORMAT: u32 = 1;
const LARGEST: usize = 64 * 1024;
const MOST_ARTEFACTS: usize = 256;
const LONGEST_NAME: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the signature is of none of the trusted keys")]
    Signature,
    #[error("larger than {LARGEST} bytes")]
    TooLarge,
    #[error("it is not a manifest")]
    Parse(#[from] serde_json::Error),
    #[error("its format is {0}, which this version does not know")]
    Format(u32),
    #[error("{0}")]
    Content(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub version: Version,
    pub created: Timestamp,
    /// The oldest version that may be replaced by this one in one step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<Version>,
    pub artefacts: Vec<Artefact>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    pub file: String,
    /// `svc-agent`, or `svc` for what has all programs.
    pub product: String,
    /// The target triple of its programs; none for what fits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub kind: Kind,
    pub size: u64,
    pub sha256: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Binary,
    Tarball,
    Deb,
    Rpm,
    /// A bill of materials
    Sbom,
    #[serde(other)]
    Other,
}

impl Manifest {
    pub fn new(version: Version, created: Timestamp, mut artefacts: Vec<Artefact>) -> Self {
        artefacts.sort_by(|one, other| one.file.cmp(&other.file));
        Self {
            format: FORMAT,
            version,
            created,
            minimum: None,
            artefacts,
        }
    }

    /// The manifest, if one of the keys has signed exactly these bytes.
    pub fn verify(
        bytes: &[u8],
        signature: &[u8],
        keys: &[PublicKey],
    ) -> Result<Self, ManifestError> {
        if bytes.len() > LARGEST {
            return Err(ManifestError::TooLarge);
        }
        if !keys.iter().any(|key| key.has_signed(bytes, signature)) {
            return Err(ManifestError::Signature);
        }
        Self::parse(bytes)
    }

    /// Without a signature: for those who are about to sign it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > LARGEST {
            return Err(ManifestError::TooLarge);
        }
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format } = serde_json::from_slice(bytes)?;
        if format != FORMAT {
            return Err(ManifestError::Format(format));
        }
        let manifest: Self = serde_json::from_slice(bytes)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The text that is signed.
    pub fn to_text(&self) -> Result<String, ManifestError> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        Self::parse(text.as_bytes())?;
        Ok(text)
    }

    /// Whether this release may replace `running` in one step. It is never an older one.
    pub fn may_replace(&self, running: &Version) -> bool {
        let far_enough = self
            .minimum
            .as_ref()
            .is_none_or(|minimum| running >= minimum);
        self.version > *running && far_enough
    }

    pub fn artefact(&self, product: &str, target: &str, kind: Kind) -> Option<&Artefact> {
        let mut artefacts = self.artefacts.iter();
        artefacts.find(|one| {
            one.product == product && one.target.as_deref() == Some(target) && one.kind == kind
        })
    }

    fn check(&self) -> Result<(), ManifestError> {
        let refuse = |reason: &str| Err(ManifestError::Content(reason.to_owned()));
        if !(1..=MOST_ARTEFACTS).contains(&self.artefacts.len()) {
            return refuse("it has no artefact, or too many");
        }
        let mut files = BTreeSet::new();
        for artefact in &self.artefacts {
            let names = [&artefact.file, &artefact.product];
            if !names
                .into_iter()
                .chain(&artefact.target)
                .all(|name| is_file_name(name))
            {
                return refuse(
                    "an artefact has a name with other characters than letters, digits and ._+~-",
                );
            }
            if artefact.sha256.len() != 64 || !artefact.sha256.bytes().all(is_hex) {
                return refuse("an artefact's checksum is not 64 hexadecimal digits");
            }
            if !files.insert(&artefact.file) {
                return refuse("a file is named twice");
            }
        }
        Ok(())
    }
}

/// Names become paths, so they stay inside their folder.
pub fn is_file_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._+~-".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(letter)
}

pub(crate) fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Size and SHA-256 of a file.
pub fn digest(mut file: impl Read) -> io::Result<(u64, String)> {
    let (mut context, mut size, mut chunk) = (Context::new(&SHA256), 0, vec![0; 64 * 1024]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok((size, hex(context.finish().as_ref()))),
            length => {
                context.update(&chunk[..length]);
                size += length as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use super::*;
    use crate::SecretKey;

    const TARGET: &str = "x86_64-unknown-linux-musl";

    fn manifest() -> Manifest {
        let (size, sha256) = digest(&b"program"[..]).unwrap();
        let artefact = Artefact {
            file: "svc-agent-1.2.3-linux-x86_64".into(),
            product: "svc-agent".into(),
            target: Some(TARGET.into()),
            kind: Kind::Binary,
            size,
            sha256,
        };
        Manifest::new(version("1.2.3"), Timestamp::UNIX_EPOCH, vec![artefact])
    }

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_rank_as_releases_follow_each_other() {
        let order = [
            "0.9.10",
            "1.2.3-alpha",
            "1.2.3-rc.1",
            "1.2.3-rc.2",
            "1.2.3-rc.10",
            "1.2.3",
            "1.2.3+2.gfff",
            "1.2.3+45.g000",
            "1.2.4-rc.1",
            "1.10.0",
        ];
        for pair in order.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn one_of_several_keys_is_enough_and_others_are_not() {
        let keys: Vec<SecretKey> = (0..3).map(|_| SecretKey::generate().unwrap()).collect();
        let public: Vec<PublicKey> = keys.iter().map(|key| key.public_key().unwrap()).collect();
        let text = manifest().to_text().unwrap();
        let signature = keys[1].sign(text.as_bytes()).unwrap();
        let read =
            |text: &str, keys: &[PublicKey]| Manifest::verify(text.as_bytes(), &signature, keys);
        assert_eq!(read(&text, &public[..2]).unwrap(), manifest());
        let changed = text.replace("1.2.3", "1.2.4");
        for (text, keys) in [(&text, &public[2..]), (&text, &[]), (&changed, &public[..])] {
            let error = read(text, keys).unwrap_err();
            assert!(matches!(error, ManifestError::Signature), "{error}");
        }
    }

    #[test]
    fn what_later_versions_add_is_ignored_and_a_later_format_is_refused() {
        let text = manifest().to_text().unwrap();
        let more = text.replace("\"version\"", "\"notes\": [1], \"version\"");
        let more = more.replace("\"binary\"", "\"snap\"");
        let read = Manifest::parse(more.as_bytes()).unwrap();
        assert_eq!(read.artefacts[0].kind, Kind::Other);
        let later = more.replace("\"format\": 1", "\"format\": 2");
        let error = Manifest::parse(later.as_bytes()).unwrap_err();
        assert!(matches!(error, ManifestError::Format(2)), "{error}");
    }

    #[test]
    fn hostile_content_is_refused() {
        let text = manifest().to_text().unwrap();
        let file = "svc-agent-1.2.3-linux-x86_64";
        for name in [
            "../svc-agent",
            "/etc/passwd",
            ".hidden",
            "",
            "a\\nb",
            &"a".repeat(129),
        ] {
            let error = Manifest::parse(text.replace(file, name).as_bytes()).unwrap_err();
            assert!(
                matches!(error, ManifestError::Content(_)),
                "{name}: {error}"
            );
        }
        let sum = &manifest().artefacts[0].sha256;
        assert!(Manifest::parse(text.replace(&**sum, &sum.to_uppercase()).as_bytes()).is_err());
        let mut twice = manifest();
        twice.artefacts.extend(manifest().artefacts);
        assert!(twice.to_text().is_err());
        twice.artefacts.clear();
        assert!(twice.to_text().is_err());
        let large = text + &" ".repeat(LARGEST);
        let error = Manifest::parse(large.as_bytes()).unwrap_err();
        assert!(matches!(error, ManifestError::TooLarge), "{error}");
    }

    #[test]
    fn a_release_replaces_older_versions_from_its_minimum_on() {
        let mut release = manifest();
        release.minimum = Some(version("1.0.0"));
        let replaces = |running: &str| release.may_replace(&version(running));
        assert!(replaces("1.0.0") && replaces("1.2.3-rc.1"));
        assert!(!replaces("1.2.3") && !replaces("1.3.0") && !replaces("1.0.0-rc.1"));
        assert!(
            release
                .artefact("svc-agent", TARGET, Kind::Binary)
                .is_some()
        );
        assert!(
            release
                .artefact("svc-agent", "riscv", Kind::Binary)
                .is_none()
        );
    }

    /// Runs the real OpenSSL.
    fn openssl(folder: &Path, arguments: &str) -> bool {
        let mut command = Command::new("openssl");
        let ended = command
            .args(arguments.split(' '))
            .current_dir(folder)
            .output();
        ended.expect("openssl").status.success()
    }

    #[test]
    fn openssl_verifies_our_signatures_and_we_verify_those_of_openssl() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let get = |name: &str| fs::read(folder.path().join(name)).unwrap();
        let (key, text) = (
            SecretKey::generate().unwrap(),
            manifest().to_text().unwrap(),
        );
        put("release.key", key.to_pem().unwrap().as_bytes());
        put("release.pub", key.public_key().unwrap().to_pem().as_bytes());
        put(FILE, text.as_bytes());
        put("release.json.sig", &key.sign(text.as_bytes()).unwrap());
        let verify = "pkeyutl -verify -pubin -inkey release.pub -rawin -in release.json -sigfile release.json.sig";
        assert!(openssl(folder.path(), verify));
        put(FILE, text.replace("1.2.3", "1.2.4").as_bytes());
        assert!(!openssl(folder.path(), verify));

        put(FILE, text.as_bytes());
        for command in [
            "genpkey -algorithm ed25519 -out theirs.key",
            "pkey -in theirs.key -pubout -out theirs.pub",
            "pkeyutl -sign -inkey theirs.key -rawin -in release.json -out theirs.sig",
        ] {
            assert!(openssl(folder.path(), command), "{command}");
        }
        let theirs = String::from_utf8(get("theirs.key")).unwrap();
        let keys = PublicKey::all_from_pem(&String::from_utf8(get("theirs.pub")).unwrap()).unwrap();
        let public = SecretKey::from_pem(&theirs).unwrap().public_key().unwrap();
        assert_eq!(keys, [public]);
        assert!(Manifest::verify(text.as_bytes(), &get("theirs.sig"), &keys).is_ok());
    }
}
