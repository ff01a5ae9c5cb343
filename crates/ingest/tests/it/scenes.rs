//! Faults that are shown twice: briefly by `cargo test`, and at full length, with
//! strict figures, by `make chaos`.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use svc_proto::v1::{heartbeat_request::Message as Say, heartbeat_response::Message as Hear};
use tokio::{net::TcpStream, task::JoinSet, time::sleep};

use crate::{
    agents::{AUTO, FakeAgent, TokenRules, machine, token},
    beats::{Beat, saying},
    fleet::{Fleet, Pace, Sampler, times_offline},
    harness::{PATIENCE, Process, ProcessBuilder, Site, Tls, eventually, get},
};

/// What happens to PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub enum Database {
    Stopped,
    Frozen,
}

/// PostgreSQL goes away under load and comes back: no acknowledgement meanwhile,
/// the same streams throughout, nobody offline at any instant. Returns how long
/// after its return everybody was acknowledged again.
pub async fn database_away(
    site: &mut Site,
    addresses: &[SocketAddr],
    (agents, pace): (u32, Pace),
    fault: Database,
    length: Duration,
) -> Result<Duration> {
    let fleet = Fleet::start(site, addresses, 0, agents, pace).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let (streams, sampler) = (fleet.streams(), Sampler::start(site)?);
    match fault {
        Database::Stopped => site.server().stop_immediate().await?,
        Database::Frozen => site.server().freeze()?,
    }
    // What was committed before may still be on its way.
    sleep(length / 2).await;
    let on_their_way = Instant::now();
    sleep(length / 2).await;
    let meanwhile = fleet.acks_between(on_their_way, Instant::now());
    ensure!(meanwhile == 0, "{meanwhile} acknowledgements of nothing");
    match fault {
        Database::Stopped => site.server().start_again().await?,
        Database::Frozen => site.server().thaw()?,
    }
    let back = Instant::now();
    fleet.all_acked_since(back).await?;
    let recovered = back.elapsed();
    fleet.audit(site).await?;
    ensure!(fleet.streams() == streams, "streams were not kept");
    let (looks, worst) = sampler.stop().await?;
    ensure!(looks > 0 && worst == 0, "{worst} offline in {looks} looks");
    ensure!(times_offline(site).await? == 0);
    Ok(recovered)
}

/// Starts a service on the ports of one that is gone, or on free ones.
pub async fn start_process(site: &Site, like: Option<&Process>) -> Result<Process> {
    let builder = site
        .process()
        .set("INGEST_LOG", "warn")
        .set("INGEST_HEARTBEAT_INTERVAL", "5s");
    let on = |builder: ProcessBuilder, (name, address): (&str, SocketAddr)| {
        builder.set(name, address.port().to_string())
    };
    let builder = match like {
        None => builder,
        Some(gone) => [
            ("INGEST_GRPC_PORT", gone.grpc),
            ("INGEST_HTTP_PORT", gone.http),
        ]
        .into_iter()
        .fold(builder, on),
    };
    builder.start().await
}

/// Kills one of two instances in turn, and starts it again. Returns how long
/// agents were away.
pub async fn killed(site: &Site, agents: u32, times: usize, pace: Pace) -> Result<Vec<Duration>> {
    let mut instances = [
        start_process(site, None).await?,
        start_process(site, None).await?,
    ];
    let addresses: Vec<SocketAddr> = instances.iter().map(|instance| instance.grpc).collect();
    let proxy = svc_sandbox::Proxy::start(addresses).await?;
    let fleet = Fleet::start(site, &[proxy.address()], 0, agents, pace).await?;
    fleet.all_acked_since(Instant::now()).await?;
    for round in 0..times {
        let victim = &mut instances[round % 2];
        victim.signal(Signal::KILL)?;
        victim.ended().await?;
        let killed = Instant::now();
        fleet.all_acked_since(killed).await?;
        let again = start_process(site, Some(victim)).await?;
        instances[round % 2] = again;
        fleet.all_connected().await?;
    }
    fleet.audit(site).await?;
    let absences = fleet
        .ledgers()
        .into_iter()
        .flat_map(|ledger| ledger.absences);
    Ok(absences.collect())
}

/// SIGTERM under load, among clients that never speak, clients that say nothing
/// after the handshake, and clients that open a stream and never say Hello.
/// Returns how long the process took to exit with code 0.
pub async fn terminated(site: &Site, agents: u32, pace: Pace) -> Result<Duration> {
    let mut leaving = start_process(site, None).await?;
    let staying = start_process(site, None).await?;
    let addresses = [leaving.grpc, staying.grpc];
    let fleet = Fleet::start(site, &addresses, 0, agents, pace).await?;
    fleet.all_acked_since(Instant::now()).await?;
    let stranger = FakeAgent::on(machine(900_000))?;
    let jwt = stranger
        .jwt(leaving.grpc, &token(site, AUTO).await?)
        .await?;
    let never_speaks = TcpStream::connect(leaving.grpc).await?;
    let says_nothing = Tls::with(&stranger.identity).connect(leaving.grpc).await?;
    let no_hello = stranger.stream(leaving.grpc, &jwt).await??;
    // It reports no more and reads nothing.
    let stalled = stranger.beat(leaving.grpc, &jwt).await?;
    let asked = Instant::now();
    leaving.stop().await?;
    let took = asked.elapsed();
    drop((never_speaks, says_nothing, no_hello, stalled));
    ensure!(
        times_offline(site).await? == 0,
        "a drain left agents offline"
    );
    fleet.audit(site).await?;
    Ok(took)
}

/// An instance stands still (SIGSTOP), and goes on: its agents have moved or are
/// there still, and whatever it wrote late has changed nothing.
pub async fn stands_still(site: &Site, agents: u32, length: Duration, pace: Pace) -> Result<()> {
    let still = start_process(site, None).await?;
    let sibling = start_process(site, None).await?;
    let addresses = [still.grpc, sibling.grpc];
    let fleet = Fleet::start(site, &addresses, 0, agents, pace).await?;
    fleet.all_acked_since(Instant::now()).await?;
    still.signal(Signal::STOP)?;
    let stopped = Instant::now();
    sleep(length).await;
    let moved = fleet.acks_between(stopped + length / 2, Instant::now());
    still.signal(Signal::CONT)?;
    ensure!(moved > 0, "the sibling's agents were held up too");
    let continued = Instant::now();
    fleet.all_acked_since(continued).await?;
    fleet.audit(site).await?;
    all_online_where_they_are(site, &fleet).await
}

/// Everybody is online, on an instance that lives.
async fn all_online_where_they_are(site: &Site, fleet: &Fleet) -> Result<()> {
    let sql = "SELECT count(*) FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id
                WHERE s.presence = 'online' AND NOT i.fenced AND i.stopped_at IS NULL AND i.expires_at > now()";
    let wanted = fleet.members.len().to_string();
    eventually("all agents are online on live instances", async || {
        site.psql(sql).await.is_ok_and(|count| count == wanted)
    })
    .await
}

/// Agents move from one instance to the other and back, the old stream ending at
/// any moment around the opening of the new one. Presence must be right each time.
pub async fn hops(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: u32,
    rounds: usize,
) -> Result<()> {
    let secret = token(site, many()).await?;
    let mut hopping = Vec::new();
    for number in 0..agents {
        let agent = FakeAgent::on(machine(number))?;
        let jwt = agent.jwt(addresses[0], &secret).await?;
        let beat = agent.beat(addresses[0], &jwt).await?;
        hopping.push((agent, jwt, beat));
    }
    for round in 1..=rounds {
        let mut tasks = JoinSet::new();
        for (agent, jwt, old) in hopping.drain(..) {
            tasks.spawn(hop(agent, jwt, old, addresses[round % 2]));
        }
        for hopped in tasks.join_all().await {
            hopping.push(hopped?);
        }
        let right = format!(
            "SELECT count(*) FROM agent_state s JOIN ingest_instances i ON i.id = s.instance_id
              WHERE s.presence = 'online' AND s.epoch = {} AND i.grpc_address = '{}'",
            round + 1,
            addresses[round % 2]
        );
        // Whatever the old streams still write is written within this.
        sleep(Duration::from_millis(400)).await;
        let count = site.psql(&right).await?;
        ensure!(count == agents.to_string(), "round {round}: {count} right");
    }
    drop(hopping);
    eventually("all are offline in the end", async || {
        let gone = "SELECT count(*) FROM agent_state WHERE presence = 'offline' AND cause = 'lost'";
        site.psql(gone)
            .await
            .is_ok_and(|count| count == agents.to_string())
    })
    .await
}

async fn hop(
    agent: FakeAgent,
    jwt: String,
    old: Beat,
    to: SocketAddr,
) -> Result<(FakeAgent, String, Beat)> {
    let pause = || sleep(Duration::from_millis(rand::random_range(0..60)));
    let leave = async {
        pause().await;
        drop(old);
    };
    let come = async {
        pause().await;
        agent.beat(to, &jwt).await
    };
    let ((), new) = tokio::join!(leave, come);
    Ok((agent, jwt, new?))
}

/// Streams on two instances, revoked one by one. Returns how long each took to end,
/// from before the statement was sent.
pub async fn revoked(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: u32,
) -> Result<Vec<Duration>> {
    let secret = token(site, many()).await?;
    let mut streams = Vec::new();
    for number in 0..agents {
        let agent = FakeAgent::on(machine(number))?;
        let address = addresses[number as usize % 2];
        let jwt = agent.jwt(address, &secret).await?;
        streams.push(agent.beat(address, &jwt).await?);
    }
    let mut ends = JoinSet::new();
    for (number, mut beat) in streams.into_iter().enumerate() {
        let id = beat.welcome.agent_id.clone();
        ends.spawn(async move {
            let refused = beat.end().await?.map(|refused| refused.reason);
            ensure!(refused.as_deref() == Some("AGENT_REVOKED"), "{refused:?}");
            Ok((number, id, Instant::now()))
        });
    }
    let ids = "SELECT string_agg(id::text, ',') FROM agents WHERE status = 'active'";
    let mut asked = BTreeMap::new();
    for id in site.psql(ids).await?.split(',') {
        asked.insert(id.to_owned(), Instant::now());
        let sql = format!("SELECT revoke_agent('{id}', 'chaos')");
        site.psql(&sql).await?;
    }
    let mut latencies = Vec::new();
    for ended in ends.join_all().await {
        let (_, id, at) = ended?;
        latencies.push(at - asked[&id]);
    }
    Ok(latencies)
}

/// Agents whose JWTs are renewed all the time are revoked at random moments.
/// Returns how many JWTs came, and how late the last ones after their agent's
/// revocation was known to be committed.
pub async fn renewals_raced(
    site: &Site,
    addresses: [SocketAddr; 2],
    agents: std::ops::Range<u32>,
) -> Result<(usize, Vec<Duration>)> {
    let secret = token(site, many()).await?;
    let mut races = JoinSet::new();
    let mut revoked_at = BTreeMap::new();
    for number in agents {
        let agent = FakeAgent::on(machine(number))?;
        let address = addresses[number as usize % 2];
        let jwt = agent.jwt(address, &secret).await?;
        let mut beat = agent.beat(address, &jwt).await?;
        revoked_at.insert(beat.welcome.agent_id.clone(), None);
        races.spawn(async move {
            let mut credentials = Vec::new();
            loop {
                match beat.hear().await? {
                    Ok(Some(Hear::Credential(_))) => credentials.push(Instant::now()),
                    Ok(Some(_)) => {}
                    Ok(None) => anyhow::bail!("ended without a reason"),
                    Err(refused) => {
                        ensure!(refused.reason == "AGENT_REVOKED", "{refused:?}");
                        return Ok((beat.welcome.agent_id, credentials));
                    }
                }
            }
        });
    }
    sleep(Duration::from_millis(1500)).await;
    for (id, at) in &mut revoked_at {
        sleep(Duration::from_millis(rand::random_range(0..10))).await;
        site.psql(&format!("SELECT revoke_agent('{id}', 'chaos')"))
            .await?;
        *at = Some(Instant::now());
    }
    let (mut count, mut late) = (0, Vec::new());
    for raced in races.join_all().await {
        let (id, credentials) = raced?;
        count += credentials.len();
        let committed = revoked_at[&id].unwrap_or_else(Instant::now);
        let last = credentials.last();
        late.extend(last.and_then(|at| at.checked_duration_since(committed)));
    }
    Ok((count, late))
}

/// An agent that says Hello and takes no answer. Returns how long it was borne,
/// until its connection was closed and it was offline.
pub async fn stops_reading(site: &Site, address: SocketAddr) -> Result<Duration> {
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent.jwt(address, &token(site, AUTO).await?).await?;
    let stream = Tls::with(&agent.identity).connect(address).await?;
    let mut http2 = h2::client::Builder::new();
    let (requests, connection) = http2.initial_window_size(0).handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::post("https://localhost/svc.ingest.v1.IngestService/Heartbeat")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {jwt}"))
        .body(())?;
    let (answer, mut body) = requests
        .clone()
        .ready()
        .await?
        .send_request(request, false)?;
    body.send_data(framed(&saying(Say::Hello(agent.hello()))), false)?;
    let said = Instant::now();
    let _unread = answer.await?;
    drop(tokio::time::timeout(PATIENCE, connection).await?);
    eventually("it is offline", async || {
        let state = site.psql("SELECT presence, cause FROM agent_state").await;
        state.is_ok_and(|state| state == "offline|lost")
    })
    .await?;
    Ok(said.elapsed())
}

/// A message as gRPC sends it: not compressed, and its length.
pub fn framed(message: &impl prost::Message) -> bytes::Bytes {
    let mut bytes = vec![0];
    let length = u32::try_from(message.encoded_len()).expect("a short message");
    bytes.extend(length.to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes.into()
}

fn many() -> TokenRules {
    TokenRules {
        max_uses: 100_000,
        ..AUTO
    }
}

/// How often the service has asked the database, by the name of what it asked.
pub async fn statements(http: &[SocketAddr]) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for address in http {
        let page = get(*address, "/metrics").await?.body;
        for line in page.lines() {
            let Some(rest) = line.strip_prefix("svc_ingest_database_transactions_total{") else {
                continue;
            };
            let name = rest
                .split("name=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            let count = line
                .rsplit(' ')
                .next()
                .and_then(|count| count.parse::<u64>().ok());
            *counts
                .entry(name.unwrap_or_default().to_owned())
                .or_default() += count.unwrap_or(0);
        }
    }
    Ok(counts)
}
