//! Faults of instances: killed, terminated, suspended; and agents that move between them.

use std::{
    fmt::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::TryStreamExt;
use rustix::process::Signal;
use tokio::{net::TcpStream, task::JoinSet, time::sleep};

use crate::{
    AUTO, ActiveAgent, Fleet, HeartbeatCall, Pace, Proxy, QueueKind, ServiceBuilder,
    ServiceProcess, Site, Tls, times_offline, token,
};

/// Kills one of two instances in turn and starts it again. Returns how long agents were away.
pub async fn instances_killed(
    site: &Site,
    agents: u32,
    times: usize,
    pace: Pace,
) -> Result<Vec<Duration>> {
    let mut instances = site.server_process().start_pair().await?;
    let addresses = instances.each_ref().map(|instance| instance.grpc);
    let proxy = Proxy::start(addresses.into()).await?;
    let fleet = Fleet::reporting(site, &[proxy.address()], agents, pace).await?;
    for round in 0..times {
        let victim = &mut instances[round % 2];
        victim.kill().await?;
        fleet.all_acked_again().await?;
        restart(victim, site.server_process()).await?;
        fleet.all_connected().await?;
    }
    fleet.audit(site).await?;
    Ok(fleet.absences())
}

/// Terminates an instance under load, while it also has clients that never start TLS, send nothing
/// after the handshake, never send Hello, or stop reading. Returns how long it took to exit with
/// code 0.
pub async fn instance_terminated(site: &Site, agents: u32, pace: Pace) -> Result<Duration> {
    let [leaving, staying] = site.server_process().start_pair().await?;
    let addresses = [leaving.grpc, staying.grpc];
    let fleet = Fleet::reporting(site, &addresses, agents, pace).await?;
    let other = ActiveAgent::new(site, leaving.grpc, 900_000).await?;
    let no_tls = TcpStream::connect(leaving.grpc).await?;
    let tls = Tls::with(&other.agent.identity);
    let no_request = tls.connect(leaving.grpc).await?;
    let no_hello = other.agent.open_stream(leaving.grpc, &other.jwt).await??;
    let not_reading = other.heartbeat().await?;
    let asked = Instant::now();
    leaving.stop().await?;
    let took = asked.elapsed();
    drop((no_tls, no_request, no_hello, not_reading));
    ensure!(times_offline(site).await? == 0, "agents were offline");
    fleet.audit(site).await?;
    Ok(took)
}

/// Suspends an instance (SIGSTOP) and resumes it. Its agents have moved or are still there, and its
/// late writes change nothing.
pub async fn instance_suspended(
    site: &Site,
    agents: u32,
    length: Duration,
    pace: Pace,
) -> Result<()> {
    let [suspended, sibling] = site.server_process().start_pair().await?;
    let addresses = [suspended.grpc, sibling.grpc];
    let fleet = Fleet::reporting(site, &addresses, agents, pace).await?;
    suspended.signal(Signal::STOP)?;
    let stopped = Instant::now();
    sleep(length).await;
    let acks = fleet.acks_between(stopped + length / 2, Instant::now());
    suspended.signal(Signal::CONT)?;
    ensure!(acks > 0, "the sibling acknowledged nothing either");
    fleet.all_acked_again().await?;
    fleet.audit(site).await?;
    let online =
        "SELECT count(*) FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id
          WHERE s.presence = 'online' AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now()";
    site.becomes(online, &agents.to_string()).await
}

/// Agents move between two instances; the old stream ends at any moment around the opening of the
/// new one. Presence must be right after each round.
pub async fn agents_hop(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: u32,
    rounds: usize,
) -> Result<()> {
    let secret = token(site, AUTO.uses(100_000)).await?;
    let mut hopping = Vec::new();
    for number in 0..agents {
        let agent = ActiveAgent::with_token(addresses[0], number, &secret).await?;
        let call = agent.heartbeat().await?;
        hopping.push((agent, call));
    }
    for round in 1..=rounds {
        let to = addresses[round % 2];
        let hops: JoinSet<_> = hopping
            .drain(..)
            .map(|(agent, old)| hop(agent, old, to))
            .collect();
        hopping = hops.join_all().await.into_iter().collect::<Result<_>>()?;
        // The old streams write their end within this time.
        sleep(Duration::from_millis(400)).await;
        let epoch = round + 1;
        let right = format!(
            "SELECT count(*) FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id
              WHERE s.presence = 'online' AND s.epoch = {epoch} AND i.grpc_address = '{to}'"
        );
        let right = site.psql(&right).await?;
        ensure!(right == agents.to_string(), "round {round}: {right} right");
    }
    drop(hopping);
    let gone = "SELECT count(*) FROM agent_state WHERE instance_id IS NULL";
    site.becomes(gone, &agents.to_string()).await
}

async fn hop(
    agent: ActiveAgent,
    old: HeartbeatCall,
    to: SocketAddr,
) -> Result<(ActiveAgent, HeartbeatCall)> {
    let pause = || sleep(Duration::from_millis(rand::random_range(0..60)));
    let leave = async {
        pause().await;
        drop(old);
    };
    let arrive = async {
        pause().await;
        agent.heartbeat_at(to).await
    };
    let ((), new) = tokio::join!(leave, arrive);
    Ok((agent, new?))
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Server(usize),
    Consumer(usize),
    Postgres,
    Nats,
}

impl Victim {
    fn any(kind: QueueKind) -> Self {
        let choice = match kind {
            QueueKind::Memory => rand::random_range(0..3),
            QueueKind::Nats => rand::random_range(0..6),
        };
        match choice {
            0 | 1 => Self::Server(choice),
            2 => Self::Postgres,
            3 | 4 => Self::Consumer(choice - 3),
            _ => Self::Nats,
        }
    }
}

/// Kills a server, a consumer, PostgreSQL or NATS at a random moment under load and starts it again,
/// so many times, with an audit after each.
pub async fn any_part_killed(kind: QueueKind, agents: u32, rounds: usize) -> Result<()> {
    let mut site = Site::with_own_server().await?.with_queue(kind).await?;
    let server = |site: &Site| match kind {
        QueueKind::Memory => site.server_process(),
        QueueKind::Nats => site.server_process().set("INGEST_CONSUME", "false"),
    };
    let mut servers = server(&site).start_pair().await?;
    let mut consumers = match kind {
        QueueKind::Memory => vec![],
        QueueKind::Nats => site.consumer_process().start_pair().await?.into(),
    };
    let addresses = servers.each_ref().map(|server| server.grpc);
    let fleet = Fleet::start(&site, &addresses, 0, agents, Pace::BRISK).await?;
    let mut victims = Vec::new();
    for round in 0..rounds {
        fleet.resume();
        let victim = Victim::any(kind);
        victims.push(victim);
        sleep(Duration::from_millis(rand::random_range(0..1500))).await;
        match victim {
            Victim::Server(index) => {
                servers[index].kill().await?;
                restart(&mut servers[index], server(&site)).await?;
            }
            Victim::Consumer(index) => {
                consumers[index].kill().await?;
                restart(&mut consumers[index], site.consumer_process()).await?;
            }
            Victim::Postgres => {
                site.postgres().stop_immediate().await?;
                site.postgres().start_again().await?;
            }
            Victim::Nats => {
                site.nats().kill().await?;
                site.nats().start_again().await?;
            }
        }
        if let Err(error) = fleet.audit(&site).await {
            // What cannot be read must not hide the error.
            let shown = |read: Result<String>| read.unwrap_or_else(|error| format!("{error:#}"));
            let queue = match kind {
                QueueKind::Memory => String::new(),
                QueueKind::Nats => shown(jetstream_state(&site.queue_url()).await),
            };
            let balances = fleet.balances().into_iter();
            let unsettled: Vec<_> = balances.filter(|one| one.acked < one.taken).collect();
            let stored = "SELECT agent_id, acked_seq FROM agent_state";
            let stored = shown(site.psql(stored).await);
            let processes = servers.iter().chain(&consumers);
            let logs: Vec<String> = processes
                .map(|process| last_lines(&process.logs()))
                .collect();
            let logs = logs.join("\n---\n");
            return Err(error.context(format!(
                "{kind:?}, round {round}, killed so far: {victims:?}\n{unsettled:?}\n{stored}\n{queue}\n{logs}"
            )));
        }
    }
    Ok(())
}

/// What the stream holds, and what each of its consumers has delivered.
async fn jetstream_state(url: &str) -> Result<String> {
    let context = async_nats::jetstream::new(async_nats::connect(url).await?);
    let mut stream = context.get_stream("SVC_INGEST_METRICS").await?;
    let mut state = format!("{:?}\n", stream.info().await?.state);
    let mut consumers = stream.consumers();
    while let Some(consumer) = consumers.try_next().await? {
        let of_interest = (
            consumer.delivered,
            consumer.ack_floor,
            consumer.num_ack_pending,
            consumer.num_redelivered,
            consumer.num_waiting,
            consumer.num_pending,
        );
        writeln!(
            state,
            "{}: (delivered, floor, unsettled, redelivered, pulls, pending) {of_interest:?}",
            consumer.name
        )?;
    }
    Ok(state)
}

fn last_lines(log: &str) -> String {
    const SHOWN: usize = 30;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Replaces a process that has ended by one on its ports.
async fn restart(ended: &mut ServiceProcess, builder: ServiceBuilder) -> Result<()> {
    *ended = builder.on_ports_of(ended).start().await?;
    Ok(())
}
