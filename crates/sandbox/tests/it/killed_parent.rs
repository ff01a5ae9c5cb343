//! A process that is killed with SIGKILL leaves no running server.
//!
//! The test runs this binary again with a variable set, so that `victim_process` starts the servers
//! and waits to be killed. Without the variable that test does nothing.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use svc_sandbox::{Nats, NatsOptions, Postgres, PostgresOptions, eventually};

const VICTIM: &str = "SVC_SANDBOX_VICTIM";
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn victim_process() {
    let Ok(role) = std::env::var(VICTIM) else {
        return;
    };
    let postgres = tokio::task::spawn(Postgres::start(PostgresOptions::default()));
    let postgres = postgres.await.unwrap().unwrap();
    let nats = Nats::start(NatsOptions::default()).await.unwrap();
    postgres.psql("postgres", "SELECT 1").await.unwrap();
    if role == "frozen" {
        postgres.freeze().unwrap();
        nats.freeze().unwrap();
    }
    println!(
        "\nup {} {}",
        postgres.data_dir().display(),
        nats.data_dir().display()
    );
    std::future::pending::<()>().await;
}

/// Runs the victim in a temporary folder until it is up, and returns the folders of its servers.
fn start_victim(role: &str, tmp: &Path) -> (Child, Vec<PathBuf>) {
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim
        .args(["--exact", "killed_parent::victim_process", "--nocapture"])
        .env(VICTIM, role)
        .env("TMPDIR", tmp);
    let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let up = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("up ").map(str::to_owned));
    let folders = up
        .expect("the victim did not come up")
        .split(' ')
        .map(PathBuf::from)
        .collect();
    (victim, folders)
}

/// The processes that have `folder` in their command line or as their current folder.
fn users_of(folder: &Path) -> usize {
    let name = folder.to_str().unwrap();
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    let uses = |process: &PathBuf| {
        let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let current = std::fs::read_link(process.join("cwd")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(name) || current.starts_with(folder)
    };
    processes.filter(uses).count()
}

async fn assert_nothing_outlives_a_kill(role: &str) {
    let tmp = crate::traversable_folder();
    let (mut victim, folders) = start_victim(role, tmp.path());
    for folder in &folders {
        assert!(users_of(folder) > 0, "nothing runs in {}", folder.display());
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    for folder in &folders {
        let gone = eventually("the server has ended", SOON, async || users_of(folder) == 0).await;
        gone.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    }
    assert_next_start_sweeps(tmp.path(), &folders).await;
}

async fn assert_next_start_sweeps(tmp: &Path, folders: &[PathBuf]) {
    assert!(folders.iter().all(|folder| folder.exists()));
    let (mut next, _) = start_victim("next", tmp);
    assert!(
        !folders.iter().any(|folder| folder.exists()),
        "a killed run's folder is still there"
    );
    next.kill().unwrap();
    next.wait().unwrap();
}

#[tokio::test]
async fn servers_die_with_a_killed_process_and_the_next_one_removes_their_folders() {
    assert_nothing_outlives_a_kill("running").await;
}

#[tokio::test]
async fn frozen_servers_also_die_with_a_killed_process() {
    assert_nothing_outlives_a_kill("frozen").await;
}
