//! Concurrent starts without a signing key: all end with the same key.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use svc_ingest::signing;
use svc_testkit::faults::{self, assert_one_private_file};

const AT_ONCE: usize = 8;
const FEW_ROUNDS: usize = 12;
const ALL_ROUNDS: usize = 100;
const SERVICE_ROUNDS: usize = 3;

/// The variable that marks a process of a race, and the prefix of its answers.
const RACE_PROCESS: &str = "SVC_KEY_RACER";

#[test]
fn concurrent_processes_on_an_empty_path_create_one_key() -> Result<()> {
    race(FEW_ROUNDS)
}

#[test]
#[ignore = "makes 800 keys: a minute on two idle cores"]
fn concurrent_processes_on_an_empty_path_create_one_key_a_hundred_times() -> Result<()> {
    race(ALL_ROUNDS)
}

fn race(rounds: usize) -> Result<()> {
    let mut processes = (0..AT_ONCE)
        .map(|_| RaceProcess::start())
        .collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("key.pem");
        for process in &mut processes {
            writeln!(process.input, "{}", path.display())?;
        }
        let kids: BTreeSet<_> = processes
            .iter_mut()
            .map(RaceProcess::kid)
            .collect::<Result<_>>()?;
        ensure!(kids.len() == 1, "round {round}: {kids:?}");
        assert_one_private_file(&path)?;
    }
    Ok(())
}

/// Not a test but a process of the two above: reads paths and prints the key id of each.
#[test]
#[ignore = "run by the two above, in a process of its own"]
fn race_process() -> Result<()> {
    ensure!(
        std::env::var_os(RACE_PROCESS).is_some(),
        "no test: the two above run it"
    );
    for path in std::io::stdin().lines() {
        let path = path?;
        let path = Path::new(&path);
        let key = match signing::read(path)? {
            Some(key) => key,
            None => signing::create(path)?,
        };
        println!("{RACE_PROCESS} {}", key.kid());
    }
    Ok(())
}

/// This binary as a process that creates keys as an instance does at its start.
struct RaceProcess {
    process: Child,
    input: ChildStdin,
    answers: std::io::Lines<BufReader<ChildStdout>>,
}

impl RaceProcess {
    fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([
                "--ignored",
                "--exact",
                "signing_key_races::race_process",
                "--nocapture",
            ])
            .env(RACE_PROCESS, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("its stdin")?;
        let answers = BufReader::new(process.stdout.take().context("its stdout")?).lines();
        Ok(Self {
            process,
            input,
            answers,
        })
    }

    fn kid(&mut self) -> Result<String> {
        loop {
            let line = self.answers.next().context("a process ended")??;
            if let Some((_, kid)) = line.split_once(&format!("{RACE_PROCESS} ")) {
                return Ok(kid.to_owned());
            }
        }
    }
}

impl Drop for RaceProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn concurrent_services_on_an_empty_path_and_database_share_one_key() -> Result<()> {
    faults::cold_starts(SERVICE_ROUNDS).await.map(drop)
}
