//! More clients than the connection limit, and more handshakes than cores.

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
use svc_testkit::{AUTO, PATIENCE, Site, Tls, Usage, channel, get, token};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};

use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::witness::Witness;

#[tokio::test]
async fn the_oldest_silent_connection_gives_way_above_the_limit() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().limits(|limits| limits.connections = 10);
    let instance = instance.start().await?;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(TcpStream::connect(instance.grpc).await?);
    }
    let identity = Identity::self_signed("agent")?;
    let asked = channel(instance.grpc, &identity).await?;
    HealthClient::new(asked)
        .check(HealthCheckRequest::default())
        .await?;
    let closed = timeout(PATIENCE, held[0].read(&mut [0; 1])).await?;
    ensure!(!matches!(closed, Ok(1..)), "the oldest goes first");
    Ok(())
}

/// Clients that handshake, disconnect and connect again until the deadline.
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
    crowd.join_all().await;
    Ok(done.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_port_answers_while_many_clients_handshake() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let reader = Witness::reader(process.http);
    let agent = Witness::agent(process.grpc, token(&site, AUTO).await?);
    let done = handshakes(process.grpc, 100, Duration::from_secs(4)).await?;
    let (reader, agent) = (reader.finish()?, agent.finish()?);
    println!("{done} handshakes; HTTP {reader}; agent {agent}");
    ensure!(done > 0 && reader.count() > 0 && agent.count() > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn the_http_port_stays_fast_while_1500_clients_handshake() -> Result<()> {
    let (site, process) = Site::with_process().await?;
    let before = Usage::of(process.pid())?.resident_mib();
    let reader = Witness::reader(process.http);
    let agent = Witness::agent(process.grpc, token(&site, AUTO).await?);
    let attack = handshakes(process.grpc, 1500, Duration::from_secs(20));
    let (done, cores) = Usage::cores(process.pid(), attack).await?;
    let (reader, agent) = (reader.finish()?, agent.finish()?);
    let after = Usage::of(process.pid())?.resident_mib();
    println!(
        "1500 clients, {} handshakes in 20 s, {cores:.2} cores; HTTP {reader}; agent {agent}; {before} to {after} MiB",
        done?
    );
    ensure!(reader.quantile(0.99) < Duration::from_millis(500));
    Ok(())
}

/// Clients of the HTTP port that send nothing and reconnect when they are closed.
async fn silent_clients(address: SocketAddr, clients: usize, length: Duration) -> Result<()> {
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
    crowd.join_all().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_silent_http_client_is_closed_for_a_new_one() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
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
async fn the_http_port_answers_while_it_has_1000_silent_clients() -> Result<()> {
    let (_site, process) = Site::with_process().await?;
    let reader = Witness::reader(process.http);
    silent_clients(process.http, 1000, Duration::from_secs(20)).await?;
    let reader = reader.finish()?;
    println!("1000 silent clients of the HTTP port; HTTP {reader}");
    ensure!(reader.quantile(0.99) < Duration::from_secs(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_client_hello_is_cut_off() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let mut stream = TcpStream::connect(instance.grpc).await?;
    let large_hello = [&[1, 0, 0xff, 0xff][..], &[0; 60_000]].concat();
    for piece in large_hello.chunks(8000) {
        let length = u16::try_from(piece.len())?.to_be_bytes();
        let record = [&[0x16, 3, 1][..], &length, piece].concat();
        if stream.write_all(&record).await.is_err() {
            return Ok(());
        }
    }
    let read = timeout(Duration::from_secs(9), stream.read_to_end(&mut Vec::new())).await;
    ensure!(read.is_ok(), "still open, before its deadline of 10 s");
    Ok(())
}
