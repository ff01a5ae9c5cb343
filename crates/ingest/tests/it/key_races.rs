//! Many cold starts at once on one empty path: one key, whoever wins.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use svc_ingest::signing;

use crate::harness::{Site, get};

const AT_ONCE: usize = 8;
const FEW_ROUNDS: usize = 12;
const ALL_ROUNDS: usize = 100;
const SERVICE_ROUNDS: usize = 3;

/// Marks the processes of a race; also what their answers begin with.
const RACER: &str = "SVC_KEY_RACER";

#[test]
fn processes_at_once_on_an_empty_path_end_with_one_key() -> Result<()> {
    race(FEW_ROUNDS)
}

#[test]
#[ignore = "makes 800 keys: a minute on two idle cores"]
fn processes_at_once_on_an_empty_path_end_with_one_key_a_hundred_times() -> Result<()> {
    race(ALL_ROUNDS)
}

fn race(rounds: usize) -> Result<()> {
    let mut racers = (0..AT_ONCE)
        .map(|_| Racer::start())
        .collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("key.pem");
        for racer in &mut racers {
            writeln!(racer.orders, "{}", path.display())?;
        }
        let kids: BTreeSet<_> = racers.iter_mut().map(Racer::kid).collect::<Result<_>>()?;
        ensure!(kids.len() == 1, "round {round}: {kids:?}");
        assert_one_private_file(&path)?;
    }
    Ok(())
}

/// Not a test but a process of the two above: a path a line in, its kid out.
#[test]
#[ignore = "run by the two above, in a process of its own"]
fn a_racer() -> Result<()> {
    if std::env::var_os(RACER).is_none() {
        return Ok(());
    }
    for path in std::io::stdin().lines() {
        let path = path?;
        let path = Path::new(&path);
        let key = match signing::read(path)? {
            Some(key) => key,
            None => signing::create(path)?,
        };
        println!("{RACER} {}", key.kid());
    }
    Ok(())
}

/// This binary again, as a process that makes keys as an instance does at its start.
struct Racer {
    process: Child,
    orders: ChildStdin,
    answers: std::io::Lines<BufReader<ChildStdout>>,
}

impl Racer {
    fn start() -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--ignored", "--exact", "key_races::a_racer", "--nocapture"])
            .env(RACER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = process.stdin.take().context("its stdin")?;
        let answers = BufReader::new(process.stdout.take().context("its stdout")?).lines();
        Ok(Self {
            process,
            orders,
            answers,
        })
    }

    fn kid(&mut self) -> Result<String> {
        loop {
            let line = self.answers.next().context("a racer ended")??;
            if let Some((_, kid)) = line.split_once(&format!("{RACER} ")) {
                return Ok(kid.to_owned());
            }
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn eight_services_at_once_on_an_empty_path_and_database_share_one_key() -> Result<()> {
    for round in 0..SERVICE_ROUNDS {
        let site = Site::unmigrated().await?;
        fs::create_dir(site.path("keys"))?;
        let path = site.path("keys/key.pem");
        let launch = |_| site.process().set("INGEST_JWT_KEY_FILE", &path).launch();
        let mut services = (0..AT_ONCE).map(launch).collect::<Result<Vec<_>>>()?;
        let mut documents = BTreeSet::new();
        for service in &mut services {
            service.serving().await?;
            documents.insert(get(service.http, "/.well-known/jwks.json").await?.body);
        }
        ensure!(documents.len() == 1, "round {round}: {documents:?}");
        assert_one_private_file(&path)?;
        let kids = "SELECT count(*), count(DISTINCT kid) FROM ingest_instances";
        assert_eq!(site.psql(kids).await?, format!("{AT_ONCE}|1"));
    }
    Ok(())
}

/// The key is for its owner alone, and no temporary file stands beside it.
fn assert_one_private_file(path: &Path) -> Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o600, "mode {mode:o}");
    let folder = path.parent().context("a folder")?;
    let files: Vec<_> = fs::read_dir(folder)?.collect();
    ensure!(files.len() == 1, "{files:?}");
    Ok(())
}
