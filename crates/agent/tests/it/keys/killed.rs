//! Agents and instances that end as `kill -9` ends them while keys change, at whatever step they are.
//!
//! Each agent is a process on a machine of its own, so the process is this test binary, which can be given the facts of a
//! machine. The real binary would say those of this one.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use svc_agent::{
    agent::{Agent, Surroundings},
    caller::Facts,
    config::{Config, Flags},
    telemetry,
};
use svc_testkit::{
    AUTO, PATIENCE, Process, Program, ServiceBuilder, ServiceProcess, Site, machine, token,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{JoinSet, LocalSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::EVIDENCE;
use crate::installation::{Installed, books_balance, quick};

/// Set for the process of an agent: the number of its machine.
const MACHINE: &str = "SVC_TEST_MACHINE";
/// A round's key is made, announced, stored (within 3 s), used, and its file renamed within this time, or is not.
const LIFE_MS: u64 = 3000;

const ASK: &str = "UPDATE agents SET key_change_at = clock_timestamp() WHERE id =";
const EPOCH: &str = "SELECT coalesce(max(epoch), 0) FROM agent_state WHERE agent_id =";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed' AND agent_id =";
const STORED: &str = "SELECT stored_count FROM agent_state WHERE agent_id =";

struct Victim {
    installed: Installed,
    number: u32,
    site: Arc<Site>,
}

impl Victim {
    fn start(&self) -> Result<Process> {
        let test = "keys::killed::agent_process";
        let program = Program::at(env::current_exe()?)
            .arguments(["--ignored", "--exact", test, "--nocapture"])
            .environment([(MACHINE, self.number.to_string())]);
        self.installed.with_settings(program).start()
    }

    /// Runs a statement for the one agent of its machine; fails if there are two.
    async fn sql(&self, statement: &str) -> Result<String> {
        let number = self.number;
        let agent = format!(
            "(SELECT a.id FROM agents a JOIN hosts h ON h.id = a.host_id WHERE h.hostname = 'web-{number}')"
        );
        self.site.psql(&format!("{statement} {agent}")).await
    }

    async fn count(&self, statement: &str) -> Result<u64> {
        Ok(self.sql(statement).await?.parse()?)
    }

    async fn exceeds(&self, statement: &str, before: u64) -> Result<()> {
        let exceeded = timeout(PATIENCE, async {
            while !self.count(statement).await.is_ok_and(|now| now > before) {
                sleep(Duration::from_millis(50)).await;
            }
        });
        let what = || format!("agent {}: still {before}: {statement}", self.number);
        exceeded.await.with_context(what)
    }

    async fn killed(self, times: u32) -> Result<Self> {
        for _ in 0..times {
            let before = self.count(EPOCH).await?;
            let agent = self.start()?;
            let back = self.exceeds(EPOCH, before).await;
            back.with_context(|| agent.logs())?;
            self.sql(ASK).await?;
            sleep(Duration::from_millis(rand::random_range(0..LIFE_MS))).await;
            agent.kill().await?;
        }
        Ok(self)
    }

    /// Unharmed, the next change succeeds. Returns how many keys it has had.
    async fn changes_once_more(&self, times: u32) -> Result<u64> {
        let before = self.count(CHANGES).await?;
        ensure!(before > 0, "agent {} changed no key", self.number);
        let agent = self.start()?;
        self.sql(ASK).await?;
        let changed = self.exceeds(CHANGES, before).await;
        changed.with_context(|| agent.logs())?;
        self.installed.connected().await?;
        agent.stop().await?;
        let stored = self.count(STORED).await?;
        ensure!(stored >= u64::from(times) / 2, "{stored} samples");
        Ok(before)
    }
}

/// The process of an agent, which ends at SIGTERM.
#[tokio::test]
#[ignore = "the other tests run it as a process of its own"]
async fn agent_process() -> Result<()> {
    let number: u32 = env::var(MACHINE).context("run by another test")?.parse()?;
    let surroundings = Surroundings {
        facts: Facts::Given(Box::new(machine(number))),
        timing: quick(),
        ..Surroundings::default()
    };
    let config = Config::read(&Flags::default(), &|name| env::var_os(name))?;
    telemetry::init(config.log, None);
    let stop = CancellationToken::new();
    let mut asked = signal(SignalKind::terminate())?;
    let running = Agent::open(config, surroundings)?.run(stop.clone());
    let asking = async {
        asked.recv().await;
        stop.cancel();
    };
    Ok(tokio::join!(running, asking).0?)
}

fn instance(site: &Site) -> ServiceBuilder {
    let instance = site.process().set("INGEST_LOG", "warn");
    instance.set("INGEST_HEARTBEAT_INTERVAL", "1s")
}

/// Kills instances until it is told to end; every third time none is left. Those that take their places know no agent, and
/// have opened no stream. Returns how often.
async fn instances_killed(
    site: &Site,
    instances: &mut [ServiceProcess; 2],
    done: &CancellationToken,
) -> Result<u32> {
    let mut kills = 0;
    for round in 0.. {
        let pause = Duration::from_millis(rand::random_range(2000..6000));
        if timeout(pause, done.cancelled()).await.is_ok() {
            break;
        }
        let is_hit = |number| round % 3 == 2 || number == round % 2;
        for number in (0..2).filter(|number| is_hit(*number)) {
            instances[number].kill().await?;
            kills += 1;
        }
        for number in (0..2).filter(|number| is_hit(*number)) {
            let builder = instance(site).on_ports_of(&instances[number]);
            instances[number] = builder.start().await?;
        }
    }
    Ok(kills)
}

/// Kills each of so many agents so many times, and instances meanwhile.
#[expect(clippy::print_stdout, reason = "people read the figures")]
pub async fn killed(agents: u32, times: u32) -> Result<()> {
    let site = Arc::new(Site::new().await?);
    let secret = token(&site, AUTO).await?;
    let mut instances = instance(&site).start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let (mut rounds, here) = (JoinSet::new(), LocalSet::new());
    for number in 1..=agents {
        let victim = Victim {
            installed: Installed::new(&site, number, &addresses, &secret)?,
            number,
            site: site.clone(),
        };
        rounds.spawn_local_on(victim.killed(times), &here);
    }
    let done = CancellationToken::new();
    let survive = async {
        let mut survivors = Vec::new();
        let outcome = loop {
            match rounds.join_next().await {
                None => break Ok(survivors),
                Some(Ok(Ok(survivor))) => survivors.push(survivor),
                Some(Ok(Err(error))) => break Err(error),
                Some(Err(error)) => break Err(error.into()),
            }
        };
        done.cancel();
        outcome
    };
    let fall = instances_killed(&site, &mut instances, &done);
    let (survivors, kills) = here.run_until(async { tokio::join!(survive, fall) }).await;
    // Without instances, no agent survives.
    let (kills, survivors) = (kills?, survivors?);
    let mut changes = 0;
    for survivor in &survivors {
        changes += survivor.changes_once_more(times).await?;
    }
    let one = "SELECT (SELECT count(*) FROM agents), (SELECT count(*) FROM hosts)";
    site.expect(one, &format!("{agents}|{agents}")).await?;
    site.expect(EVIDENCE, "0").await?;
    println!(
        "{agents} agents, each killed {times} times; instances killed {kills} times; {changes} keys changed"
    );
    books_balance(&site).await
}
