//! Counts the rows that statements read, from the plans that `auto_explain` writes into the server's log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    pin::Pin,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use svc_store::StoreError;

/// Statements of the store that the test does not run, after the reason.
const ELSEWHERE: &str = "
    people, in tables of a few rows, which know nothing of agents: console_browser_known console_browser_remember console_has_users console_link console_link_create console_link_redeem
        console_password_set console_session console_session_close console_session_open console_session_touch console_sessions
        console_sessions_end people_event console_user_add console_user_disable console_user_login console_user_role console_users;
    the table of migrations: migrate schema_check;
    installation: database_create database_exists database_grant_create role role_create role_exists role_password role_may_create
        runtime_role web_role;
    settings of the server: database_clock server_facts server_identity;
    they read nothing: ping lock try_lock;
    samples, in steps of so many rows: compaction compaction_lists compaction_retry compaction_set_aside compaction_step;
    the catalog: partitions_create partitions_drop;
    the table of hours: hours_create hours_drop hours_prune hours_seal;
    the table of kinds: kinds_known";

#[derive(Debug, Default)]
pub struct Reads {
    log: PathBuf,
    /// How much of the log has been read.
    position: u64,
    situation: String,
    /// The most rows that each call has read.
    most: BTreeMap<&'static str, u64>,
    seen: BTreeSet<String>,
    /// Calls that read more than they may.
    pub excess: Vec<String>,
}

impl Reads {
    pub fn new(log: PathBuf) -> Reads {
        Reads {
            log,
            ..Reads::default()
        }
    }

    /// Another state of the fleet begins.
    pub fn begin(&mut self, situation: String) {
        self.situation = situation;
        self.begin_again();
    }

    /// Nothing that was logged before counts.
    pub fn begin_again(&mut self) {
        self.position = fs::metadata(&self.log).map_or(0, |log| log.len());
    }

    /// Runs a call, and counts what it reads. Boxed, because the futures of a build for tests are large, and
    /// those of all calls together do not fit on a thread's stack.
    pub fn call<'a, T>(
        &'a mut self,
        name: &'static str,
        allowed: u64,
        call: impl Future<Output = Result<T, StoreError>> + 'a,
    ) -> Pin<Box<dyn Future<Output = Result<T>> + 'a>> {
        let call = Box::pin(call);
        Box::pin(async move {
            let outcome = call.await;
            let (rows, plan) = self.logged()?;
            let most = self.most.entry(name).or_default();
            *most = rows.max(*most);
            if rows > allowed {
                let situation = &self.situation;
                self.excess
                    .push(format!("{name}: {rows} rows, {situation}\n{plan}"));
            }
            outcome.with_context(|| format!("{name}, {}", self.situation))
        })
    }

    /// The rows of all plans that were logged since the last look, and the largest plan.
    fn logged(&mut self) -> Result<(u64, String)> {
        let mut log = File::open(&self.log)?;
        log.seek(SeekFrom::Start(self.position))?;
        let mut text = String::new();
        self.position += log.read_to_string(&mut text)? as u64;
        let (mut total, mut largest) = (0, (0, String::new()));
        for plan in plans(&text) {
            let explained: Value = serde_json::from_str(&plan).context("a plan")?;
            let query = explained["Query Text"].as_str().unwrap_or_default();
            self.seen.extend(name_of(query).map(ToOwned::to_owned));
            let rows = rows_of(&explained["Plan"]);
            total += rows;
            if rows > largest.0 {
                largest = (rows, plan);
            }
        }
        Ok((total, largest.1))
    }

    pub fn print_most(&self) {
        for (name, rows) in &self.most {
            println!("{name:24} {rows:8} rows");
        }
    }

    /// Every statement of the store was run, or is excused.
    pub fn ensure_complete(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        statements(Path::new(source), &mut names)?;
        let excused = ELSEWHERE
            .split(';')
            .filter_map(|line| line.split_once(": "));
        for name in excused.flat_map(|(_, names)| names.split_whitespace()) {
            ensure!(names.remove(name), "{name} does not exist");
        }
        names.retain(|name| !self.seen.contains(name));
        ensure!(names.is_empty(), "these statements were not run: {names:?}");
        Ok(())
    }
}

/// The plans in a log. Their lines are indented.
fn plans(log: &str) -> impl Iterator<Item = String> {
    log.split("plan:\n").skip(1).map(|rest| {
        let lines = rest.lines().take_while(|line| line.starts_with('\t'));
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// The rows that this node and those below it returned or looked at.
fn rows_of(node: &Value) -> u64 {
    let number = |name: &str| node[name].as_f64().unwrap_or_default();
    let looked_at = number("Actual Rows")
        + number("Rows Removed by Filter")
        + number("Rows Removed by Index Recheck")
        + number("Rows Removed by Join Filter");
    let below = node["Plans"].as_array().into_iter().flatten().map(rows_of);
    (looked_at * number("Actual Loops")) as u64 + below.sum::<u64>()
}

/// The name that a statement of the store begins with.
fn name_of(sql: &str) -> Option<&str> {
    sql.trim_start().strip_prefix("-- ")?.lines().next()
}

/// The names of the statements in all source files of a folder.
fn statements(folder: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            statements(&path, names)?;
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for rest in text.split("\"-- ").skip(1) {
            let name = rest
                .split(|c: char| c != '_' && !c.is_ascii_lowercase())
                .next();
            // A name that is put in is one of the others.
            names.extend(name.filter(|name| !name.is_empty()).map(ToOwned::to_owned));
        }
    }
    Ok(())
}
