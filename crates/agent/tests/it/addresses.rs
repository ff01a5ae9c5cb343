//! One name with several IP addresses: no address, however it fails, keeps the agent from another.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_agent::wire::Names;
use svc_testkit::{AUTO, Instance, Site, token};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use crate::installation::{EPOCH, Installed, TIMES_OFFLINE, books_balance, installed};

type Records = Arc<Mutex<Vec<IpAddr>>>;

fn loopback(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// Lets the agent look up `localhost`, which the service's certificate names.
fn by_name(installed: &mut Installed, port: u16, records: &[IpAddr]) -> Records {
    let records: Records = Arc::new(Mutex::new(records.to_vec()));
    installed.surroundings.names = Names::Given(records.clone());
    installed.settings = vec![("ingest_address", format!("localhost:{port}"))];
    records
}

/// An address that drops every packet: a listener whose queue of connections is full.
struct BlackHole {
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

async fn black_hole(ip: IpAddr, port: u16) -> Result<BlackHole> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((ip, port).into())?;
    let listener = socket.listen(1)?;
    let mut queued = Vec::new();
    let connect = || timeout(Duration::from_millis(300), TcpStream::connect((ip, port)));
    while let Ok(connected) = connect().await {
        queued.push(connected?);
    }
    Ok(BlackHole {
        _listener: listener,
        _queued: queued,
    })
}

/// Passes connections on to an instance.
async fn forward(from: SocketAddr, to: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(from).await?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut service) = TcpStream::connect(to).await {
                    let _ = copy_bidirectional(&mut client, &mut service).await;
                }
            });
        }
    });
    Ok(())
}

/// Connects past two records that drop every packet; returns how long the agent needed.
async fn past_dead_records() -> Result<Duration> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let port = service.grpc.port();
    let _dead = [
        black_hole(loopback(2), port).await?,
        black_hole(loopback(3), port).await?,
    ];
    by_name(&mut installed, port, &[2, 3, 1].map(loopback));
    let began = Instant::now();
    let agent = installed.start()?;
    installed
        .status_becomes("it is admitted", |status| status.agent_id.is_some())
        .await?;
    let took = began.elapsed();
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await?;
    Ok(took)
}

#[tokio::test]
async fn dead_records_do_not_use_up_the_time_of_the_others() -> Result<()> {
    past_dead_records().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "a strict time: run by `make chaos`"]
async fn dead_records_cost_less_than_a_second() -> Result<()> {
    let took = past_dead_records().await?;
    println!("registered past two dead records after {took:.1?}");
    ensure!(took < Duration::from_secs(1), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn an_address_that_never_completes_the_handshake_is_passed_over() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let port = service.grpc.port();
    let _silent = TcpListener::bind((loopback(2), port)).await?;
    installed.surroundings.timing.timeouts.handshake = Duration::from_secs(2);
    by_name(&mut installed, port, &[2, 1].map(loopback));
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await
}

#[tokio::test]
async fn a_name_is_looked_up_again_after_a_failure() -> Result<()> {
    let (site, service, mut installed) = installed(AUTO).await?;
    let records = by_name(&mut installed, service.grpc.port(), &[loopback(9)]);
    let agent = installed.start()?;
    installed.fails_with("127.0.0.9").await?;
    *records.lock().unwrap_or_else(|error| error.into_inner()) = vec![loopback(1)];
    site.becomes(EPOCH, "online|1").await?;
    agent.stop().await
}

/// The resolver always returns the drained instance first.
#[tokio::test]
async fn a_drained_agent_moves_to_another_address_of_the_same_name() -> Result<()> {
    let site = Site::new().await?;
    let [first, second]: [Instance; 2] = site.instance().start_pair().await?;
    let port = first.grpc.port();
    forward((loopback(2), port).into(), second.grpc).await?;
    let mut installed = Installed::new(&site, 1, &[], &token(&site, AUTO).await?)?;
    by_name(&mut installed, port, &[1, 2].map(loopback));
    let agent = installed.start()?;
    site.becomes(EPOCH, "online|1").await?;
    first.stop().await?;
    site.becomes(EPOCH, "online|2").await?;
    site.expect(TIMES_OFFLINE, "0").await?;
    agent.stop().await?;
    books_balance(&site).await
}
