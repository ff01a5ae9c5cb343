//! Trust anchors that the service announces: over which connections they are taken, when they are dropped, and what becomes of
//! announcements that make no sense.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use svc_agent::{
    anchors::Anchors,
    config::{Config, Flags},
    data_dir::DataDir,
    wire::{Server, Timeouts},
};
use svc_proto::v1::{TrustAnchors, TrustState};
use svc_sandbox::Authority;
use svc_testkit::{AUTO, Site, eventually, token};
use tempfile::TempDir;

use crate::{
    installation::{EPOCH, Installed, books_balance},
    trust::tried_within,
};

fn der(authority: &Authority) -> Result<Vec<u8>> {
    let pem = authority.cert_pem().as_bytes();
    Ok(CertificateDer::from_pem_slice(pem)?.to_vec())
}

fn hash(der: &[u8]) -> Vec<u8> {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
    hash.as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An agent's folder, whose configuration trusts one authority.
struct Host {
    folder: TempDir,
    dir: DataDir,
    configured: Authority,
}

impl Host {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let configured = Authority::new("configured")?;
        fs::write(folder.path().join("ca.pem"), configured.cert_pem())?;
        Ok(Self {
            dir: DataDir::open(&folder.path().join("agent"))?,
            folder,
            configured,
        })
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("trust.pem")
    }

    /// As after a start.
    fn anchors(&self, updates: &str) -> Result<Anchors> {
        let path = |path: &Path| path.display().to_string();
        let values = BTreeMap::from([
            ("ingest_address", "localhost".to_owned()),
            ("ca_cert_file", path(&self.folder.path().join("ca.pem"))),
            ("data_dir", path(self.dir.path())),
            ("trust_updates", updates.to_owned()),
        ]);
        let config = Config::read(&Flags { file: None, values }, &|_| None)?;
        let anchors = Anchors::open(&config);
        anchors.trust()?;
        Ok(anchors)
    }

    fn announce(
        &self,
        anchors: &Anchors,
        over: &Server,
        certificates: &[Vec<u8>],
        retired: &[Vec<u8>],
    ) -> TrustState {
        let list = TrustAnchors {
            certificates: certificates.to_vec(),
            retired: retired.iter().map(|der| hash(der)).collect(),
        };
        anchors.announced(list, Arc::new(over.clone()));
        anchors.take(&self.dir);
        anchors.trusted().borrow().state.clone()
    }
}

/// A server with a certificate of this authority.
fn server(authority: &Authority) -> Result<Server> {
    let identity = authority.issue_server(&["localhost"])?;
    Ok(Server {
        chain: vec![identity.cert_der.into()],
        name: ServerName::try_from("localhost")?,
    })
}

fn hashes(of: &[&Vec<u8>]) -> Vec<Vec<u8>> {
    of.iter().map(|der| hash(der)).collect()
}

#[test]
fn an_anchor_is_taken_only_over_a_connection_that_a_present_anchor_verifies() -> Result<()> {
    let host = Host::new()?;
    let (configured, new) = (der(&host.configured)?, Authority::new("new")?);
    let (good, next) = (server(&host.configured)?, server(&new)?);
    let new = der(&new)?;
    let anchors = host.anchors("on")?;
    let renamed = Server {
        name: ServerName::try_from("elsewhere")?,
        ..good.clone()
    };
    let none = Server {
        chain: Vec::new(),
        ..good.clone()
    };
    // A certificate that nobody trusts cannot announce the authority that signed it.
    for (over, what) in [(&next, "unknown"), (&renamed, "name"), (&none, "none")] {
        let said = host.announce(&anchors, over, std::slice::from_ref(&new), &[]);
        assert_eq!(said.anchors, hashes(&[&configured]), "{what}");
        ensure!(
            said.problem.contains("no present anchor verifies"),
            "{said:?}"
        );
        ensure!(!anchors.trust()?.verifies(&next) && !host.file().exists());
    }
    let said = host.announce(&anchors, &good, std::slice::from_ref(&new), &[]);
    assert_eq!(
        (said.anchors, &*said.problem),
        (hashes(&[&new, &configured]), "")
    );
    ensure!(anchors.trust()?.verifies(&next), "without a restart");
    let restarted = host.anchors("on")?;
    ensure!(restarted.trust()?.verifies(&next) && restarted.trust()?.verifies(&good));

    // The configuration no longer trusts what verified the connection when it was opened.
    let (other, third) = (Authority::new("other")?, der(&Authority::new("third")?)?);
    fs::write(host.folder.path().join("ca.pem"), other.cert_pem())?;
    let said = host.announce(&restarted, &good, &[third], &[]);
    assert_eq!(said.anchors, hashes(&[&new, &der(&other)?]));
    ensure!(
        said.problem.contains("no present anchor verifies"),
        "{said:?}"
    );
    Ok(())
}

#[test]
fn announcements_that_make_no_sense_change_nothing_and_are_bounded() -> Result<()> {
    let host = Host::new()?;
    let (anchors, over) = (host.anchors("on")?, server(&host.configured)?);
    let configured = der(&host.configured)?;
    let mut many = Vec::new();
    for number in 0..9 {
        many.push(der(&Authority::new(&number.to_string())?)?);
    }
    let hundred = vec![many[0].clone(); 100];
    let said = host.announce(&anchors, &over, &hundred, &[]);
    ensure!(
        said.problem.contains("100 anchors are announced"),
        "{said:?}"
    );
    let mut longer = many[1].clone();
    longer.push(0);
    let garbage = [Vec::new(), vec![0x30; 200], vec![0; 9000], longer];
    for bad in garbage {
        let said = host.announce(&anchors, &over, std::slice::from_ref(&bad), &[]);
        let problem = format!("{} bytes are no certificate", bad.len());
        assert_eq!(
            (said.anchors, said.problem),
            (hashes(&[&configured]), problem)
        );
    }
    ensure!(!host.file().exists(), "nothing was written");
    // A bad one does not keep a good one out.
    let said = host.announce(&anchors, &over, &[vec![7; 50], many[0].clone()], &[]);
    assert_eq!(said.anchors, hashes(&[&many[0], &configured]));
    host.announce(&anchors, &over, &many[..8], &[]);
    let said = host.announce(&anchors, &over, &many[8..], &[]);
    assert_eq!(said.problem, "8 are kept already");
    assert_eq!(said.anchors.len(), 9);
    let said = host.announce(&anchors, &over, &many[8..], &many[..1]);
    ensure!(
        said.problem.is_empty() && said.anchors.contains(&hash(&many[8])),
        "{said:?}"
    );
    Ok(())
}

#[test]
fn a_retired_anchor_is_dropped_only_if_another_one_verifies_the_connection() -> Result<()> {
    let host = Host::new()?;
    let (configured, over) = (der(&host.configured)?, server(&host.configured)?);
    let (one, two) = (Authority::new("one")?, Authority::new("two")?);
    let over_one = server(&one)?;
    let (one, two) = (der(&one)?, der(&two)?);
    let anchors = host.anchors("on")?;
    host.announce(&anchors, &over, &[one.clone(), two.clone()], &[]);
    // The service has a certificate of `one`, and wants all of them gone.
    let all = [one.clone(), two, configured.clone()];
    let said = host.announce(&anchors, &over_one, &[], &all);
    assert_eq!(said.anchors, hashes(&[&one, &configured]));
    ensure!(
        host.anchors("on")?.trust()?.verifies(&over_one),
        "on disk, too"
    );
    let said = host.announce(&anchors, &over, &[], &all);
    assert_eq!(
        said.anchors,
        hashes(&[&configured]),
        "the configuration's stays"
    );
    let ca = fs::read_to_string(host.folder.path().join("ca.pem"))?;
    assert_eq!(ca, host.configured.cert_pem());
    ensure!(!host.anchors("on")?.trust()?.verifies(&over_one));
    Ok(())
}

#[test]
fn a_damaged_file_costs_what_is_damaged_and_off_refuses_all_of_it() -> Result<()> {
    let host = Host::new()?;
    let (one, two) = (Authority::new("one")?, Authority::new("two")?);
    let (over, over_two) = (server(&host.configured)?, server(&two)?);
    let both = [der(&one)?, der(&two)?];
    host.announce(&host.anchors("on")?, &over, &both, &[]);
    let text = fs::read_to_string(host.file())?;
    fs::write(host.file(), text.replacen("MII", "M!!", 1))?;
    let anchors = host.anchors("on")?;
    ensure!(
        anchors.trust()?.verifies(&over_two),
        "the second block is whole"
    );
    let said = anchors.trusted().borrow().state.clone();
    assert_eq!(said.anchors, hashes(&[&both[1], &der(&host.configured)?]));
    for noise in [
        &b"\xff\xfe\0"[..],
        b"",
        b"-----BEGIN CERTIFICATE-----\nAAAA",
    ] {
        fs::write(host.file(), noise)?;
        let anchors = host.anchors("on")?;
        ensure!(anchors.trust()?.verifies(&over) && !anchors.trust()?.verifies(&over_two));
        let said = host.announce(&anchors, &over, &both, &[]);
        assert_eq!(said.anchors.len(), 3, "it is announced again");
    }

    let off = host.anchors("off")?;
    ensure!(
        !off.trust()?.verifies(&over_two),
        "the configuration alone decides"
    );
    let before = fs::read(host.file())?;
    let said = host.announce(&off, &over, &[], &both);
    assert_eq!(
        (said.anchors, &*said.problem),
        (hashes(&[&der(&host.configured)?]), "off")
    );
    assert_eq!(fs::read(host.file())?, before);
    Ok(())
}

#[tokio::test]
async fn the_service_changes_its_authority_and_agents_that_took_the_new_one_lose_nothing()
-> Result<()> {
    let site = Site::new().await?;
    let (old, new) = (Authority::new("old")?, Authority::new("new authority")?);
    let names = ["localhost", "127.0.0.1"];
    old.issue_server(&names)?.write(site.folder(), "served")?;
    fs::write(site.path("old.pem"), old.cert_pem())?;
    fs::write(site.path("new.pem"), new.cert_pem())?;
    let service = site
        .instance()
        .set("INGEST_TLS_CERT", site.path("served.crt"))
        .set("INGEST_TLS_KEY", site.path("served.key"))
        .timing(|timing| {
            timing.offers = Duration::from_millis(200);
            timing.certificate_poll = Duration::from_millis(50);
        })
        .start()
        .await?;
    let secret = token(&site, AUTO).await?;
    let mut takes = Installed::new(&site, 1, &[service.grpc], &secret)?;
    takes.ca_cert_file = site.path("old.pem");
    let network = takes.behind_proxy().await?;
    let agent = takes.start()?;
    site.becomes(EPOCH, "online|1").await?;
    let mut refuses = Installed::new(&site, 2, &[service.grpc], &secret)?;
    refuses.ca_cert_file = site.path("old.pem");
    refuses.settings = vec![("trust_updates", "off".into())];
    let refusing = refuses.start()?;
    site.becomes("SELECT count(*) FROM agent_trust", "2")
        .await?;

    let added = der(&new)?;
    let add = format!(
        "SELECT add_trust_anchor(decode('{}', 'hex'), 'CN=new authority', now() + interval '1 day', 'ann')",
        hex(&added)
    );
    site.psql(&add).await?;
    let state = format!(
        "SELECT string_agg((anchors @> ARRAY['{}']) || ' ' || problem, ', ' ORDER BY problem) FROM agent_trust",
        hex(&hash(&added))
    );
    site.becomes(&state, "true , false off").await?;
    takes
        .status_becomes("the anchor is shown", |status| {
            let shown = |line: &String| line.contains("CN=new authority");
            status.rare.trust.len() == 2 && status.rare.trust.iter().any(shown)
        })
        .await?;

    new.issue_server(&names)?.write(site.folder(), "served")?;
    let address = service.grpc.to_string();
    eventually("the new certificate is served", async || {
        let tried = tried_within(&site, &address, Some("new.pem"), Timeouts::default());
        matches!(tried.await, Ok(Ok(())))
    })
    .await?;
    network.cut_all();
    site.becomes(
        "SELECT max(epoch) FROM agent_state WHERE presence = 'online'",
        "2",
    )
    .await?;
    agent.stop().await?;
    refusing.stop().await?;
    let restarted = refuses.start()?;
    refuses.fails_with("nobody that this agent trusts").await?;
    restarted.stop().await?;
    site.expect("SELECT count(*) FROM metric_gaps", "0").await?;
    books_balance(&site).await
}
