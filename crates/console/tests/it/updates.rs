//! Updates of agents as the console has them: the program by its content, and the pages of rollouts.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use svc_store::{NewRelease, Role};
use svc_testkit::Site;
use tokio::time::Instant;

use crate::support::{Console, seed_hosts, sha256};

/// A console with a folder of releases.
async fn console(folder: &Path, rate: &str) -> Result<Console> {
    let set = [
        ("CONSOLE_DOWNLOAD_DIR", folder.display().to_string()),
        ("CONSOLE_DOWNLOAD_RATE", rate.to_owned()),
    ];
    Console::on(Site::new().await?, &set).await
}

/// Puts a program into the folder.
fn place(folder: &Path, version: &str, arch: &str, program: &[u8]) -> Result<PathBuf> {
    let folder = folder.join(version).join("linux").join(arch);
    fs::create_dir_all(&folder)?;
    let file = folder.join("svc-agent");
    fs::write(&file, program)?;
    Ok(file)
}

fn address(program: &[u8]) -> String {
    let sum = sha256(program).map(|byte| format!("{byte:02x}"));
    format!("/download/{}", sum.concat())
}

#[tokio::test]
async fn a_program_is_found_by_its_content_and_served_in_parts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let console = console(folder.path(), "50").await?;
    let client = console.client();
    let (old, new) = (b"0123456789", b"another program");
    let path = address(old);
    assert_eq!(client.status(&path).await?, 404, "the folder is empty");
    let file = place(folder.path(), "1.0.0", "x86_64", old)?;
    place(folder.path(), "1.1.0", "aarch64", b"a third one")?;
    for _ in 0..2 {
        let page = client.get(&path).await?;
        assert_eq!((page.status, &*page.body), (200, "0123456789"));
        assert_eq!(page.header("content-length"), Some("10"));
        assert_eq!(page.header("accept-ranges"), Some("bytes"));
    }
    let tag = client.get(&path).await?;
    let tag = tag.header("etag").context("no tag")?.to_owned();
    assert_eq!(path, format!("/download/{}", tag.trim_matches('"')));
    for (headers, status, body, range) in [
        (
            "Range: bytes=4-".to_owned(),
            206,
            "456789",
            Some("bytes 4-9/10"),
        ),
        ("Range: bytes=-2".into(), 206, "89", Some("bytes 8-9/10")),
        ("Range: bytes=0-0".into(), 206, "0", Some("bytes 0-0/10")),
        ("Range: bytes=10-".into(), 416, "", Some("bytes */10")),
        ("Range: bytes=0-1,4-5".into(), 200, "0123456789", None),
        (
            format!("Range: bytes=8-\r\nIf-Range: {tag}"),
            206,
            "89",
            Some("bytes 8-9/10"),
        ),
        (
            "Range: bytes=8-\r\nIf-Range: \"other\"".into(),
            200,
            "0123456789",
            None,
        ),
    ] {
        let page = client
            .send("GET", &path, &format!("{headers}\r\n"), "")
            .await?;
        assert_eq!((page.status, &*page.body), (status, body), "{headers}");
        assert_eq!(page.header("content-range"), range, "{headers}");
    }
    fs::write(file, new)?;
    assert_eq!(client.status(&path).await?, 404, "it is another one now");
    assert_eq!(client.get(&address(new)).await?.body, "another program");
    for wrong in [
        "/download/abc".to_owned(),
        address(new)
            .to_uppercase()
            .replacen("DOWNLOAD", "download", 1),
        format!("/download/{}", "%2e".repeat(64)),
        address(b"nobody has this"),
    ] {
        assert_eq!(client.status(&wrong).await?, 404, "{wrong}");
    }
    Ok(())
}

#[tokio::test]
async fn all_downloads_share_one_rate_and_pages_do_not_wait_for_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let console = console(folder.path(), "1").await?;
    let (client, program) = (console.client(), vec![b'x'; 1 << 20]);
    place(folder.path(), "1.0.0", "x86_64", &program)?;
    let path = address(&program);
    let began = Instant::now();
    let download = async || -> Result<usize> { Ok(client.get(&path).await?.body.len()) };
    let beside = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let status = client.status("/healthz").await?;
        Ok((status, began.elapsed()))
    };
    let (one, two, three, beside) = tokio::try_join!(download(), download(), download(), beside)?;
    assert_eq!((one, two, three), (1 << 20, 1 << 20, 1 << 20));
    let took = began.elapsed();
    assert!(took > Duration::from_millis(2500), "{took:?}");
    assert_eq!(beside.0, 200);
    assert!(beside.1 < took, "{beside:?} {took:?}");
    Ok(())
}

/// Six hosts, of which three are of production and take updates, and two releases.
async fn seed(console: &Console) -> Result<()> {
    seed_hosts(&console.site, 6).await?;
    let store = console.site.store()?;
    for (serial, version) in [(7, "1.5.0"), (8, "0.1.0")] {
        let release = NewRelease {
            serial,
            version,
            platforms: &["linux/x86_64"],
            manifest: version.as_bytes(),
            signature: &[7; 64],
        };
        store.release_add(&release, "ann").await?;
    }
    let updates = "INSERT INTO agent_updates (agent_id, platform)
         SELECT a.id, 'linux/x86_64' FROM agents a JOIN hosts h ON h.id = a.host_id WHERE h.labels @> '{\"env\": \"prod\"}'";
    console.site.psql(updates).await?;
    Ok(())
}

const PREVIEW: &str =
    "/updates?serial=7&labels=env%3Dprod&stages=5%2C100%25&soak=30m&hours=mon-fri+08:00-16:00";

#[tokio::test]
async fn an_operator_starts_stops_and_takes_back_a_rollout_for_a_reason() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    let site = &console.site;
    let empty = client.get("/updates").await?;
    empty.shows(&["No releases yet"]);
    seed(&console).await?;
    for wrong in [
        "serial=7&stages=5&soak=1m",
        "serial=7&labels=env%3Dprod&all=yes&stages=5&soak=1m",
        "serial=7&all=yes&stages=10%25,5&soak=1m",
        "serial=7&all=yes&stages=5&soak=soon",
        "serial=7&all=yes&stages=5&soak=1m&hours=never",
        "serial=x&all=yes&stages=5&soak=1m",
        "serial=7&labels=env&stages=5&soak=1m",
    ] {
        let status = client.status(&format!("/updates?{wrong}")).await?;
        assert_eq!(status, 400, "{wrong}");
    }
    assert_eq!(
        client
            .status("/updates?serial=9&all=yes&stages=5&soak=1m")
            .await?,
        404
    );
    let all = client
        .get("/updates?serial=7&all=yes&stages=5&soak=1m")
        .await?;
    all.shows(&[
        "<strong>All hosts</strong>: 6 hosts. 3 of them have agents that take this release",
    ]);
    let preview = client.get(PREVIEW).await?;
    preview.shows(&["release 7, version 1.5.0", ": 3 hosts. 3 of them"]);
    site.expect("SELECT count(*) FROM rollouts", "0").await?;
    let form = preview.hidden();
    let started = client.post("/updates", &form).await?;
    assert_eq!(started.header("location"), Some("/updates/7"));
    assert_eq!(client.submit("/updates", &form).await?, 409);
    let page = client.get("/updates/7").await?;
    page.shows(&[
        "<td>5</td>",
        "<td>100%</td>",
        "env=prod",
        "mon-fri 08:00-16:00",
        ">running</span>",
    ]);
    let set = async |action: &str, reason: &str| {
        let form = [("action", action), ("reason", reason)];
        client.submit("/updates/7", &form).await
    };
    assert_eq!(set("pause", "").await?, 400, "a reason is asked");
    assert_eq!(set("done", "why").await?, 400);
    assert_eq!(set("pause", "lunch").await?, 303);
    assert_eq!(set("pause", "again").await?, 409);
    let state = "SELECT state || ', ' || reason FROM rollouts WHERE serial = 7";
    site.expect(state, "paused, lunch").await?;
    assert_eq!(set("resume", "lunch is over").await?, 303);
    for (host, reason, status) in [
        ("web-000", "", 400),
        ("nobody", "noisy", 404),
        ("web-000", "noisy", 303),
    ] {
        let form = [("action", "skip"), ("host", host), ("reason", reason)];
        let answer = client.submit("/updates/7", &form).await?;
        assert_eq!(answer, status, "{host}");
    }
    let back = async |to: &str| {
        let form = [("action", "back"), ("to", to), ("reason", "it panics")];
        client.post("/updates/7", &form).await
    };
    assert_eq!(back("7").await?.status, 400, "agents refuse lower serials");
    assert_eq!(back("8").await?.header("location"), Some("/updates/8"));
    let states = "SELECT string_agg(state, ' ' ORDER BY serial) FROM rollouts";
    site.expect(states, "paused running").await?;
    client.get("/updates/8").await?.shows(&["release 7</a>"]);
    let activity = client.get("/activity").await?;
    activity.shows(&[
        "release added",
        "rollout started",
        "rollout paused",
        "lunch is over",
        "host skipped",
        "noisy",
        "taken back by release 8: it panics",
        "olga",
    ]);
    Ok(())
}

#[tokio::test]
async fn pages_show_what_became_of_each_agent_and_why() -> Result<()> {
    let (console, client) = Console::signed_in_as("olga", Role::Operator).await?;
    seed(&console).await?;
    let preview = client.get(PREVIEW).await?;
    client.post("/updates", &preview.hidden()).await?;
    let steps = "UPDATE agent_updates u
            SET offered_serial = 7, offered_at = now(), serial = 7, version = '1.5.0', step = s.step, reason = s.reason, log_tail = s.log
           FROM (VALUES ('web-000', 'approved', '', ''), ('web-002', 'refused', 'no heartbeat', E'begins\\n<script>panicked'),
                        ('web-004', 'unable', 'its folder is read-only', '')) AS s(hostname, step, reason, log)
           JOIN hosts h USING (hostname) JOIN agents a ON a.host_id = h.id WHERE a.id = u.agent_id";
    console.site.psql(steps).await?;
    let page = client.get("/updates/7").await?;
    page.shows(&[
        "no heartbeat",
        "The end of the log of web-002",
        "its folder is read-only",
        "--only-upgrade svc-agent",
    ]);
    assert!(page.has("panicked") && !page.has("<script>"), "{page:?}");
    let list = client.get("/updates").await?;
    list.shows(&["7: 1.5.0", ">running</span>"]);
    let host = async |name: &str| {
        let id = format!("SELECT id FROM hosts WHERE hostname = '{name}'");
        let id = console.site.psql(&id).await?;
        client.get(&format!("/hosts/{id}")).await
    };
    host("web-000")
        .await?
        .shows(&[">approved</span>", "release 7</a>"]);
    let unable = host("web-004").await?;
    unable.shows(&["its folder is read-only", "--only-upgrade svc-agent"]);
    host("web-002").await?.shows(&["no heartbeat", "panicked"]);
    assert!(!host("web-001").await?.has("/updates/7"));
    Ok(())
}

#[tokio::test]
async fn a_viewer_sees_rollouts_and_changes_none() -> Result<()> {
    let (console, operator) = Console::signed_in_as("olga", Role::Operator).await?;
    seed(&console).await?;
    let preview = operator.get(PREVIEW).await?;
    operator.post("/updates", &preview.hidden()).await?;
    let viewer = console.signed_in("vic", Role::Viewer).await?;
    let shown = viewer.get(PREVIEW).await?;
    assert!(shown.has("7: 1.5.0") && !shown.has("<form method=\"post\" action=\"/updates\""));
    assert!(!viewer.get("/updates/7").await?.has("name=\"reason\""));
    let form = [
        ("serial", "8"),
        ("all", "yes"),
        ("stages", "100%"),
        ("soak", "30m"),
        ("action", "pause"),
        ("host", "web-000"),
        ("to", "8"),
        ("reason", "why"),
    ];
    for path in ["/updates", "/updates/7"] {
        assert_eq!(viewer.submit(path, &form).await?, 403, "{path}");
    }
    let rollouts = "SELECT string_agg(serial || ' ' || state, ', ') FROM rollouts";
    console.site.expect(rollouts, "7 running").await?;
    assert_eq!(console.client().get("/updates").await?.status, 303);
    assert_eq!(viewer.status("/updates/9").await?, 404);
    Ok(())
}
