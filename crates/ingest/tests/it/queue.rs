//! The contract of the metrics queue, held by both kinds; and what JetStream adds.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull},
    stream::{Config, DiscardPolicy, RetentionPolicy},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use nkeys::KeyPair;
use serde_json::json;
use svc_ingest::{
    config::{Queue as Settings, QueueUrl},
    queue::{
        BATCH, Batch, Bounds, Delivery, InProcess, Origin, Parcel, Queue, Receiver, SHARDS,
        shard_of,
    },
};
use svc_sandbox::{Authority, Nats, NatsOptions};
use svc_store::{AgentId, HostId, Range, SampleRow};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::harness::{Environment, PATIENCE, eventually};

const METRICS: &str = "SVC_INGEST_METRICS";
const DEAD: &str = "SVC_INGEST_DEAD_LETTERS";
/// Long enough for something to happen that must not.
const A_WHILE: Duration = Duration::from_millis(500);

/// A queue, and the server that it may need.
struct Rig {
    kind: &'static str,
    queue: Queue,
    _nats: Option<Nats>,
}

/// Both kinds, with room for everything.
async fn both() -> Result<[Rig; 2]> {
    let nats = Nats::start(NatsOptions::default()).await?;
    Ok([
        Rig {
            kind: "in process",
            queue: Queue::InProcess(InProcess::new(Bounds::default())),
            _nats: None,
        },
        Rig {
            kind: "JetStream",
            queue: open(&nats).await?,
            _nats: Some(nats),
        },
    ])
}

fn settings(url: &str) -> Result<Settings> {
    let environment = Environment::default().set("INGEST_QUEUE_URL", url);
    Ok(Settings::read(&|name| environment.get(name))?)
}

async fn open(nats: &Nats) -> Result<Queue> {
    let settings = settings(&nats.url())?;
    let opening = Queue::open(&settings);
    Ok(timeout(PATIENCE, opening)
        .await
        .context("it does not open")??)
}

fn agent(number: u128) -> AgentId {
    AgentId(Uuid::from_u128(number))
}

fn parcel(agent_id: AgentId, first_seq: i64, last_seq: i64) -> Parcel {
    let sample = |seq| SampleRow {
        seq,
        sampled_at: Timestamp::UNIX_EPOCH,
        cpu_percent: 1.0,
        load: [0.0; 3],
        memory_used_bytes: 1,
        memory_total_bytes: 2,
        swap_used_bytes: 0,
        swap_total_bytes: 0,
        uptime_seconds: 0,
        process_count: 0,
        network_rx_bytes: 0,
        network_tx_bytes: 0,
        disks: vec![],
    };
    let range = Range {
        agent_id,
        host_id: HostId(Uuid::nil()),
        first_seq,
        last_seq,
        samples: (first_seq..=last_seq).map(sample).collect(),
        gaps: vec![],
    };
    let origin = Origin {
        epoch: 1,
        instance: Uuid::nil(),
    };
    Parcel { range, origin }
}

/// Takes from all shards until `count` have come.
async fn take(receivers: &mut [Receiver], count: usize) -> Result<Vec<Delivery>> {
    let mut taken = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while taken.len() < count {
        ensure!(Instant::now() < deadline, "{} of {count} came", taken.len());
        for receiver in &mut *receivers {
            taken.extend(receiver.batch(BATCH).await);
        }
    }
    Ok(taken)
}

async fn settle(deliveries: Vec<Delivery>) {
    for delivery in deliveries {
        delivery.receipt.settle().await;
    }
}

/// What comes although nothing should.
async fn strays(receivers: &mut [Receiver]) -> Vec<Parcel> {
    let mut strays = Vec::new();
    let deadline = Instant::now() + A_WHILE;
    while Instant::now() < deadline {
        for receiver in &mut *receivers {
            let batch = receiver.batch(BATCH).await;
            strays.extend(batch.into_iter().map(|delivery| delivery.parcel));
        }
    }
    strays
}

#[tokio::test]
async fn an_agents_ranges_come_as_they_were_pushed_and_in_order() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=20 {
            for number in 1..=5 {
                rig.queue.push(parcel(agent(number), seq, seq)).await;
            }
        }
        let mut receivers = rig.queue.receivers();
        assert_eq!(receivers.len(), SHARDS);
        let taken = take(&mut receivers, 100).await?;
        let mut seen: BTreeMap<AgentId, Vec<i64>> = BTreeMap::new();
        for delivery in &taken {
            let range = &delivery.parcel.range;
            assert_eq!(
                delivery.parcel,
                parcel(range.agent_id, range.first_seq, range.last_seq)
            );
            seen.entry(range.agent_id).or_default().push(range.last_seq);
        }
        let in_order: Vec<i64> = (1..=20).collect();
        assert_eq!(seen.len(), 5, "{}", rig.kind);
        assert!(
            seen.values().all(|seqs| *seqs == in_order),
            "{}: {seen:?}",
            rig.kind
        );
        settle(taken).await;
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_has_one_shard_and_the_agents_have_all() {
    let shards: Vec<usize> = (0..256).map(|number| shard_of(agent(number))).collect();
    assert!((0..SHARDS).all(|shard| shards.contains(&shard)));
    assert_eq!(shard_of(agent(7)), shard_of(agent(7)));
}

#[tokio::test]
async fn what_is_put_back_comes_again_and_what_is_settled_never() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=3 {
            rig.queue.push(parcel(agent(1), seq, seq)).await;
        }
        let mut receivers = rig.queue.receivers();
        for round in 0..3 {
            let taken = take(&mut receivers, 3 - round).await?;
            for (index, Delivery { parcel, receipt }) in taken.into_iter().enumerate() {
                assert_eq!(receipt.again, round > 0, "{}", rig.kind);
                match index {
                    0 => receipt.settle().await,
                    _ => receipt.put_back(parcel).await,
                }
            }
        }
        assert_eq!(strays(&mut receivers).await, [], "{}", rig.kind);
    }
    Ok(())
}

#[tokio::test]
async fn a_ticket_is_gone_when_its_parcel_is_settled_and_not_before() -> Result<()> {
    for rig in both().await? {
        let first = rig.queue.push(parcel(agent(1), 1, 1)).await;
        let second = rig.queue.push(parcel(agent(1), 2, 2)).await;
        let mut receivers = rig.queue.receivers();
        let mut taken = take(&mut receivers, 2).await?;
        assert_eq!(
            rig.queue.gone(&[first, second]).await?.len(),
            0,
            "{}",
            rig.kind
        );
        taken.remove(0).receipt.settle().await;
        eventually("the first is gone", async || {
            let gone = rig.queue.gone(&[first, second]).await;
            gone.is_ok_and(|gone| gone.contains(&first) && !gone.contains(&second))
        })
        .await?;
        settle(taken).await;
        eventually("both are gone, and nothing is left", async || {
            let gone = rig.queue.gone(&[first, second]).await;
            let depth = rig.queue.depth().await;
            gone.is_ok_and(|gone| gone.len() == 2)
                && depth.is_ok_and(|depth| {
                    depth.ranges == 0 && depth.lag == 0 && depth.oldest.is_zero()
                })
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_depth_tells_what_is_not_settled_wherever_it_is() -> Result<()> {
    for rig in both().await? {
        for number in 1..=4 {
            rig.queue.push(parcel(agent(number), 1, 10)).await;
        }
        let mut receivers = rig.queue.receivers();
        let taken = take(&mut receivers, 4).await?;
        let depth = rig.queue.depth().await?;
        assert_eq!((depth.ranges, depth.lag), (4, 4), "{}", rig.kind);
        assert!(
            depth.bytes > 0 && !depth.oldest.is_zero(),
            "{}: {depth:?}",
            rig.kind
        );
        assert!(
            depth.samples.is_none_or(|samples| samples == 40),
            "{depth:?}"
        );
        settle(taken).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_batch_is_bounded() -> Result<()> {
    for rig in both().await? {
        for seq in 1..=20 {
            rig.queue.push(parcel(agent(1), seq, seq)).await;
        }
        let few = Batch {
            ranges: 5,
            samples: 100,
        };
        let receiver = &mut rig.queue.receivers()[shard_of(agent(1))];
        let taken = receiver.batch(few).await;
        assert!(
            (1..=5).contains(&taken.len()),
            "{}: {}",
            rig.kind,
            taken.len()
        );
        settle(taken).await;
    }
    Ok(())
}

/// A stream of this size; the operator's choice is kept.
async fn small_stream(nats: &Nats, max_bytes: i64) -> Result<jetstream::Context> {
    let context = jetstream::new(async_nats::connect(nats.url()).await?);
    let stream = Config {
        name: METRICS.into(),
        subjects: vec!["svc.ingest.metrics.*".into()],
        retention: RetentionPolicy::Interest,
        discard: DiscardPolicy::New,
        max_bytes,
        ..Config::default()
    };
    context.create_stream(stream).await?;
    Ok(context)
}

#[tokio::test]
async fn who_pushes_into_a_full_queue_waits_until_there_is_room() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    small_stream(&nats, 4096).await?;
    let few = Bounds {
        samples: 20,
        ..Bounds::default()
    };
    let little = Bounds {
        bytes: 4096,
        ..Bounds::default()
    };
    for (kind, queue) in [
        ("samples", Queue::InProcess(InProcess::new(few))),
        ("bytes", Queue::InProcess(InProcess::new(little))),
        ("JetStream", open(&nats).await?),
    ] {
        let mut pushed = 0;
        while timeout(
            A_WHILE,
            queue.push(parcel(agent(1), pushed + 1, pushed + 1)),
        )
        .await
        .is_ok()
        {
            pushed += 1;
            ensure!(pushed < 100, "{kind} is not bounded");
        }
        assert!(pushed > 0, "{kind}");
        let mut receivers = queue.receivers();
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.push(parcel(agent(1), 1000, 1000)).await }
        });
        tokio::time::sleep(A_WHILE).await;
        assert!(!waiting.is_finished(), "{kind}");
        settle(take(&mut receivers, usize::try_from(pushed)?).await?).await;
        timeout(PATIENCE, waiting).await.context(kind)??;
        assert_eq!(
            take(&mut receivers, 1).await?[0].parcel.range.last_seq,
            1000,
            "{kind}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_parcel_larger_than_the_bounds_still_passes() -> Result<()> {
    let tiny = Bounds {
        samples: 2,
        bytes: 10,
    };
    let queue = Queue::InProcess(InProcess::new(tiny));
    timeout(PATIENCE, queue.push(parcel(agent(1), 1, 10))).await?;
    assert_eq!(take(&mut queue.receivers(), 1).await?.len(), 1);
    Ok(())
}

/// Consumers that give up on a message after a second, as an operator may have made them.
async fn impatient(nats: &Nats) -> Result<jetstream::Context> {
    let context = small_stream(nats, 1 << 20).await?;
    let stream = context.get_stream(METRICS).await?;
    for shard in 0..SHARDS {
        let consumer = pull::Config {
            durable_name: Some(format!("svc-ingest-{shard}")),
            filter_subject: format!("svc.ingest.metrics.{shard}"),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_secs(1),
            ..pull::Config::default()
        };
        stream.create_consumer(consumer).await?;
    }
    Ok(context)
}

#[tokio::test]
async fn what_a_dead_consumer_had_in_its_hands_comes_to_another() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    impatient(&nats).await?;
    let dead = open(&nats).await?;
    for number in 1..=10 {
        dead.push(parcel(agent(number), 1, 1)).await;
    }
    drop(take(&mut dead.receivers(), 10).await?);
    drop(dead);
    let alive = open(&nats).await?;
    let taken = take(&mut alive.receivers(), 10).await?;
    assert!(taken.iter().all(|delivery| delivery.receipt.again));
    settle(taken).await;
    Ok(())
}

#[tokio::test]
async fn what_is_held_comes_to_nobody_else() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    impatient(&nats).await?;
    let queue = open(&nats).await?;
    queue.push(parcel(agent(1), 1, 1)).await;
    let taken = take(&mut queue.receivers(), 1).await?;
    let mut others = open(&nats).await?.receivers();
    for _ in 0..5 {
        taken[0].receipt.hold().await;
        assert_eq!(strays(&mut others[..1]).await, []);
    }
    settle(taken).await;
    Ok(())
}

#[tokio::test]
async fn several_processes_share_a_shard_and_none_gets_what_another_has() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queues = [open(&nats).await?, open(&nats).await?];
    for number in 1..=50 {
        queues[0].push(parcel(agent(number), 1, 1)).await;
    }
    let few = Batch {
        ranges: 5,
        samples: 100,
    };
    let (mut seen, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    let mut receivers = queues.each_ref().map(Queue::receivers);
    while seen.len() < 50 {
        ensure!(Instant::now() < deadline, "{} came", seen.len());
        for receiver in receivers.iter_mut().flatten() {
            let batch = receiver.batch(few).await;
            seen.extend(batch.iter().map(|delivery| delivery.parcel.range.agent_id));
            settle(batch).await;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 50);
    Ok(())
}

#[tokio::test]
async fn nothing_that_was_pushed_is_lost_when_nats_is_killed_and_started_again() -> Result<()> {
    let mut nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    for seq in 1..=50 {
        queue.push(parcel(agent(1), seq, seq)).await;
    }
    nats.kill().await?;
    let later = tokio::spawn({
        let queue = queue.clone();
        async move {
            for seq in 51..=100 {
                queue.push(parcel(agent(1), seq, seq)).await;
            }
        }
    });
    tokio::time::sleep(A_WHILE).await;
    assert!(!later.is_finished(), "nobody has it");
    nats.start_again().await?;
    timeout(PATIENCE, later).await??;
    let taken = take(&mut queue.receivers(), 100).await?;
    let seqs: Vec<i64> = taken
        .iter()
        .map(|delivery| delivery.parcel.range.last_seq)
        .collect();
    assert_eq!(seqs, (1..=100).collect::<Vec<i64>>());
    settle(taken).await;
    Ok(())
}

#[tokio::test]
async fn a_parcel_that_is_pushed_twice_over_one_stream_is_one_and_over_two_is_two() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let once = parcel(agent(1), 1, 5);
    let mut resent = once.clone();
    resent.origin.epoch = 2;
    let tickets = [
        queue.push(once.clone()).await,
        queue.push(once).await,
        queue.push(resent).await,
    ];
    assert_eq!(tickets[0], tickets[1]);
    assert_ne!(tickets[0], tickets[2]);
    let mut receivers = queue.receivers();
    settle(take(&mut receivers, 2).await?).await;
    assert_eq!(strays(&mut receivers).await, []);
    Ok(())
}

#[tokio::test]
async fn a_stream_with_other_settings_is_an_error_that_names_them_and_is_left_alone() -> Result<()>
{
    for (change, named) in [
        (
            (|config: &mut Config| config.discard = DiscardPolicy::Old) as fn(&mut Config),
            "discard policy is Old and must be New",
        ),
        (
            |config| config.retention = RetentionPolicy::WorkQueue,
            "retention is WorkQueue and must be Interest",
        ),
        (
            |config| config.storage = jetstream::stream::StorageType::Memory,
            "storage is Memory and must be File",
        ),
        (|config| config.max_bytes = -1, "max_bytes is unlimited"),
        (
            |config| config.subjects = vec!["svc.ingest.metrics.1".into()],
            "list of subjects",
        ),
    ] {
        let nats = Nats::start(NatsOptions::default()).await?;
        let context = jetstream::new(async_nats::connect(nats.url()).await?);
        let mut config = Config {
            name: METRICS.into(),
            subjects: vec!["svc.ingest.metrics.*".into()],
            retention: RetentionPolicy::Interest,
            discard: DiscardPolicy::New,
            max_bytes: 1 << 20,
            ..Config::default()
        };
        change(&mut config);
        context.create_stream(config.clone()).await?;
        let error = open(&nats).await.expect_err(named);
        assert!(format!("{error:#}").contains(named), "{error:#}");
        let after = context
            .get_stream(METRICS)
            .await?
            .cached_info()
            .config
            .clone();
        assert_eq!(
            (after.discard, after.retention, after.max_bytes),
            (config.discard, config.retention, config.max_bytes)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_not_ours_is_a_dead_letter() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let queue = open(&nats).await?;
    let context = jetstream::new(async_nats::connect(nats.url()).await?);
    context
        .publish("svc.ingest.metrics.0", "not a protobuf".into())
        .await?
        .await?;
    let mut receivers = queue.receivers();
    eventually("it is buried", async || {
        drop(receivers[0].batch(BATCH).await);
        let dead = context.get_stream(DEAD).await;
        let depth = queue.depth().await;
        dead.is_ok_and(|dead| dead.cached_info().state.messages == 1)
            && depth.is_ok_and(|depth| depth.ranges == 0)
    })
    .await?;
    let dead = context.get_stream(DEAD).await?;
    let letter = dead.get_raw_message(1).await?;
    assert_eq!(letter.payload, "not a protobuf");
    assert!(letter.headers.get("Svc-Ingest-Reason").is_some());
    Ok(())
}

#[tokio::test]
async fn a_queue_waits_for_a_nats_that_is_away() -> Result<()> {
    let port = crate::harness::own_port()?;
    let settings = settings(&format!("nats://127.0.0.1:{port}"))?;
    let opening = tokio::spawn(async move { Queue::open(&settings).await });
    tokio::time::sleep(A_WHILE).await;
    assert!(!opening.is_finished());
    let options = NatsOptions {
        port: Some(port),
        ..NatsOptions::default()
    };
    let _nats = Nats::start(options).await?;
    timeout(PATIENCE, opening).await???;
    Ok(())
}

async fn guarded(arguments: &[&str]) -> Result<Nats> {
    let arguments = arguments.iter().map(Into::into).collect();
    Nats::start(NatsOptions {
        arguments,
        ..NatsOptions::default()
    })
    .await
}

/// Whether it opens at once: who is refused waits.
async fn opens(settings: &Settings) -> bool {
    let opened = timeout(Duration::from_secs(2), Queue::open(settings)).await;
    opened.is_ok_and(|opened| opened.is_ok())
}

#[tokio::test]
async fn credentials_stand_in_the_url_as_nats_users_write_them() -> Result<()> {
    let by_name = guarded(&["--user", "svc", "--pass", "p@ss"]).await?;
    let by_token = guarded(&["--auth", "t0ken"]).await?;
    for (nats, credentials, good) in [
        (&by_name, "svc:p%40ss@", true),
        (&by_name, "svc:wrong@", false),
        (&by_name, "", false),
        (&by_token, "t0ken@", true),
        (&by_token, "wrong@", false),
    ] {
        let url = nats
            .url()
            .replace("nats://", &format!("nats://{credentials}"));
        assert_eq!(opens(&settings(&url)?).await, good, "{credentials}");
    }
    Ok(())
}

#[tokio::test]
async fn tls_trusts_the_given_certificates_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let authority = Authority::new("NATS CA")?;
    let (certificate, key) = authority
        .issue_server(&["localhost"])?
        .write(folder.path(), "nats")?;
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.cert_pem())?;
    let nats = Nats::start(NatsOptions {
        arguments: vec![
            "--tls".into(),
            "--tlscert".into(),
            certificate.into(),
            "--tlskey".into(),
            key.into(),
        ],
        ..NatsOptions::default()
    })
    .await?;
    let url = format!("tls://localhost:{}", nats.port());
    let mut settings = settings(&url)?;
    assert!(
        !opens(&settings).await,
        "nobody on this machine vouches for it"
    );
    settings.nats_ca = Some(ca);
    assert!(opens(&settings).await);
    Ok(())
}

/// A claim as NATS knows it: what is said of `subject`, signed by `issuer`.
fn claim(issuer: &KeyPair, subject: &KeyPair, nats: serde_json::Value) -> Result<String> {
    let encoded = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let header = encoded(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body = encoded(json!({
        "jti": "test", "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    }));
    let signed = format!("{header}.{body}");
    let signature = issuer.sign(signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

#[tokio::test]
async fn a_credentials_file_lets_in_where_nats_demands_one() -> Result<()> {
    let (operator, account, user) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_user(),
    );
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let operator_claim = claim(
        &operator,
        &operator,
        json!({"type": "operator", "version": 2}),
    )?;
    let account_claim = claim(
        &operator,
        &account,
        json!({"type": "account", "version": 2, "limits": limits}),
    )?;
    let user_claim = claim(
        &account,
        &user,
        json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}),
    )?;
    let system = KeyPair::new_account();
    let system_claim = claim(&operator, &system, json!({"type": "account", "version": 2}))?;
    let system_key = system.public_key();
    let folder = tempfile::tempdir()?;
    let (config, creds) = (
        folder.path().join("nats.conf"),
        folder.path().join("svc.creds"),
    );
    let (key, seed) = (account.public_key(), user.seed()?);
    std::fs::write(
        &config,
        format!(
            "operator: {operator_claim}\nsystem_account: {system_key}\nresolver: MEMORY\n\
             resolver_preload: {{ {key}: {account_claim}, {system_key}: {system_claim} }}\n"
        ),
    )?;
    std::fs::write(
        &creds,
        format!(
            "-----BEGIN NATS USER JWT-----\n{user_claim}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        ),
    )?;
    let nats = Nats::start(NatsOptions {
        arguments: vec!["-c".into(), config.into()],
        ..NatsOptions::default()
    })
    .await?;
    let mut settings = settings(&nats.url())?;
    assert!(!opens(&settings).await);
    settings.nats_creds = Some(creds);
    let queue = timeout(PATIENCE, Queue::open(&settings)).await??;
    queue.push(parcel(agent(1), 1, 1)).await;
    settle(take(&mut queue.receivers(), 1).await?).await;
    Ok(())
}

#[tokio::test]
async fn a_credentials_file_that_is_none_is_named() -> Result<()> {
    let nats = Nats::start(NatsOptions::default()).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "not credentials")?;
    let mut settings = settings(&nats.url())?;
    settings.nats_creds = Some(file.path().to_owned());
    let error = Queue::open(&settings).await.expect_err("no credentials");
    let path = file.path().display().to_string();
    assert!(error.to_string().contains(&path), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn memory_is_the_default() -> Result<()> {
    let nothing = Environment::default();
    let settings = Settings::read(&|name| nothing.get(name))?;
    assert!(matches!(settings.url, QueueUrl::Memory));
    Ok(())
}
