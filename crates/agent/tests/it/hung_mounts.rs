//! File systems that hang, by the kernel: FUSE on block devices, whose server never answers.
//!
//! They are mounted in a namespace of the agent's own, so nothing else on the machine sees them, and they end with the agent,
//! which holds their server's side. `make test-root` runs the test.

use std::path::Path;

use anyhow::{Result, ensure};
use svc_testkit::{AUTO, Program, Site, Usage, token};

use crate::installation::{EPOCH, Installed, books_balance};

const MOUNT: &str = r#"
folder=$1; shift
for fd in 5 6 7 8 9; do
    mkdir -p "$folder/$fd"
    truncate --size 1M "$folder/$fd.image"
    device=$(losetup --find --show "$folder/$fd.image")
    eval "exec $fd<>/dev/fuse"
    mount -i -t fuseblk -o "fd=$fd,rootmode=40000,user_id=0,group_id=0" "$device" "$folder/$fd" || failed=1
    losetup --detach "$device" # As soon as it is not mounted any more.
done
[ -z "$failed" ] && exec "$@"
"#;

/// A program that sees five file systems in this folder, all of which hang.
fn beside_hung(folder: &Path, command: &[&str]) -> Program {
    let folder = folder.display().to_string();
    let shell = ["--mount", "sh", "-c", MOUNT, "sh", &folder];
    Program::at("/usr/bin/unshare").arguments(shell.iter().chain(command).copied())
}

#[tokio::test]
#[ignore = "needs root: run by make test-root"]
async fn beside_hung_file_systems_the_others_are_measured_and_the_host_is_online() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mounted = beside_hung(folder.path(), &["true"]).run().await?;
    ensure!(mounted.code == Some(0), "it cannot mount: {mounted:?}");
    let site = Site::new().await?;
    let service = site.instance().set("INGEST_HEARTBEAT_INTERVAL", "1s");
    let service = service.start().await?;
    let installed = Installed::new(&site, 1, &[service.grpc], &token(&site, AUTO).await?)?;
    let binary = Program::named("svc-agent")?;
    let command = [binary.path().to_string_lossy(), "run".into()];
    let agent = beside_hung(folder.path(), &command.each_ref().map(|text| &**text));
    let agent = installed.with_settings(agent).start()?;

    // Its first sample may be late on a busy machine; this is about all that follow.
    let named = "SELECT jsonb_array_length(unreadable_mounts) FROM host_vitals";
    site.becomes(named, "5").await?;
    let later = "SELECT acked_seq >= 8 FROM agent_state";
    site.becomes(later, "t").await?;
    let measured = "SELECT count(*) > 0 FROM host_vitals WHERE fullest_disk_percent IS NOT NULL";
    site.becomes(measured, "t").await?;
    site.expect(named, "5").await?;
    site.expect(EPOCH, "online|1").await?;
    let threads = Usage::of(agent.pid())?.threads;
    ensure!(threads <= 5 + 4, "{threads} threads");
    agent.stop().await?;
    books_balance(&site).await
}
