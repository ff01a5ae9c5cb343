//! Crowds: more clients than places, and more handshakes than cores.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use svc_sandbox::Identity;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    agent::Witness,
    harness::{PATIENCE, Site, Tls, channel, eventually, get},
    raw, vitals,
};

#[tokio::test]
async fn newcomers_are_closed_at_once_while_all_places_are_taken() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().limits(|limits| limits.connections = 10);
    let instance = instance.start().await?;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(TcpStream::connect(instance.grpc).await?);
    }
    eventually("newcomers are turned away", async || {
        turned_away(instance.grpc).await
    })
    .await?;
    drop(held);
    let identity = Identity::self_signed("agent")?;
    eventually("there are places again", async || {
        channel(instance.grpc, &identity).await.is_ok()
    })
    .await
}

/// Closed without a word, long before any deadline.
async fn turned_away(address: SocketAddr) -> bool {
    let closed = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.read(&mut [0; 1]).await
    };
    let closed = timeout(Duration::from_secs(2), closed).await;
    closed.is_ok_and(|read| !matches!(read, Ok(1..)))
}

/// Clients that handshake, leave, and come again, until the time is over.
async fn handshakes(address: SocketAddr, clients: usize, length: Duration) -> Result<usize> {
    let until = Instant::now() + length;
    let done = Arc::new(AtomicUsize::new(0));
    let tls = Tls::with(&Identity::self_signed("crowd")?);
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        let (tls, done) = (tls.clone(), done.clone());
        crowd.spawn(async move {
            while Instant::now() < until {
                if tls.connect(address).await.is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(client) = crowd.join_next().await {
        client?;
    }
    Ok(done.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_port_answers_while_a_crowd_handshakes() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let reader = Witness::reader(process.http);
    let agent = Witness::agent(process.grpc);
    let done = handshakes(process.grpc, 100, Duration::from_secs(2)).await?;
    let (reader, agent) = (reader.finish()?, agent.finish()?);
    println!("{done} handshakes; HTTP {reader}; agent {agent}");
    ensure!(done > 0 && reader.count() > 1 && agent.count() > 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn the_http_port_stays_fast_while_1500_clients_handshake() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let before = vitals::resident(&process)?;
    let reader = Witness::reader(process.http);
    let agent = Witness::agent(process.grpc);
    let attack = handshakes(process.grpc, 1500, Duration::from_secs(20));
    let (done, cores) = vitals::cores(&process, attack).await?;
    let (reader, agent) = (reader.finish()?, agent.finish()?);
    let after = vitals::resident(&process)?;
    println!(
        "1500 clients, {} handshakes in 20 s, {cores:.2} cores; HTTP {reader}; agent {agent}; {before} to {after} MiB",
        done?
    );
    ensure!(reader.p99() < Duration::from_millis(500));
    Ok(())
}

/// Clients of the HTTP port that say nothing, and come again when they are closed.
async fn silence(address: SocketAddr, clients: usize, length: Duration) -> Result<()> {
    let until = Instant::now() + length;
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        crowd.spawn(async move {
            while Instant::now() < until {
                let Ok(mut stream) = TcpStream::connect(address).await else {
                    continue;
                };
                drop(tokio::time::timeout_at(until, stream.read(&mut [0; 1])).await);
            }
        });
    }
    while let Some(client) = crowd.join_next().await {
        client?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_of_the_http_port_give_way_to_who_asks() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(instance.http).await?);
    }
    let asked = Instant::now();
    ensure!(get(instance.http, "/healthz").await?.status == 200);
    let mut byte = [0; 1];
    let closed = silent[0].read(&mut byte).await;
    ensure!(
        !matches!(closed, Ok(1..)),
        "the first to be silent goes first"
    );
    println!("answered past 500 silent clients in {:?}", asked.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn the_http_port_answers_while_1000_clients_are_silent_on_it() -> Result<()> {
    let site = Site::new().await?;
    let process = site.process().start().await?;
    let reader = Witness::reader(process.http);
    silence(process.http, 1000, Duration::from_secs(20)).await?;
    let reader = reader.finish()?;
    println!("1000 silent clients of the HTTP port; HTTP {reader}");
    ensure!(reader.p99() < Duration::from_secs(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_an_endless_handshake_is_cut_off() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let mut stream = TcpStream::connect(instance.grpc).await?;
    let large_hello = [&[1, 0, 0xff, 0xff][..], &[0; 60_000]].concat();
    for piece in large_hello.chunks(8000) {
        let length = u16::try_from(piece.len())?.to_be_bytes();
        let record = [&[0x16, 3, 1][..], &length, piece].concat();
        if stream.write_all(&record).await.is_err() {
            return Ok(());
        }
    }
    let read = timeout(Duration::from_secs(5), stream.read_to_end(&mut Vec::new())).await;
    ensure!(read.is_ok(), "still open, before its deadline of 10 s");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_four_connections_and_the_next_are_refused_in_words() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().start().await?;
    let identity = Identity::self_signed("greedy")?;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = Tls::with(&identity).connect(instance.grpc).await?;
        stream.write_all(raw::PREFACE).await?;
        held.push(stream);
    }
    eventually("the fifth is refused", async || {
        let Ok(fifth) = channel(instance.grpc, &identity).await else {
            return false;
        };
        let mut client = tonic_health::pb::health_client::HealthClient::new(fifth);
        let answer = client.check(tonic_health::pb::HealthCheckRequest::default());
        let answer = timeout(PATIENCE, answer).await;
        answer.is_ok_and(|answer| {
            answer.is_err_and(|status| status.code() == tonic::Code::ResourceExhausted)
        })
    })
    .await
}
