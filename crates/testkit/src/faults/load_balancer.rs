//! A real load balancer between the agents and two instances, with the settings of deploy/.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use svc_ingest::enrol::EnrolmentToken;
use svc_proto::v1::ingest_service_client::IngestServiceClient;
use svc_sandbox::{Process, dying_with_us, free_port};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Endpoint, Uri};
use tower::service_fn;

use crate::{
    FakeAgent, Fleet, ONE_USE, PATIENCE, Pace, ServiceProcess, Site, Tls, eventually, machine,
    times_offline, token,
};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Where a client connects from, so that its address is not the load balancer's.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancer {
    HaProxy,
    Nginx,
}

impl LoadBalancer {
    /// How long an instance serves on after its health check has failed: HAProxy notices within 2 s.
    fn drain_delay(self) -> &'static str {
        match self {
            Self::HaProxy => "3s",
            Self::Nginx => "0s",
        }
    }

    fn settings(self) -> PathBuf {
        let file = match self {
            Self::HaProxy => "haproxy/haproxy.cfg",
            Self::Nginx => "nginx/nginx.conf",
        };
        Path::new(REPOSITORY).join("deploy").join(file)
    }

    fn command(self, settings: &Path) -> Command {
        let (program, arguments): (_, &[&str]) = match self {
            Self::HaProxy => ("haproxy", &["-db", "-f"]),
            Self::Nginx => ("nginx", &["-e", "stderr", "-g", "daemon off;", "-c"]),
        };
        let mut command = dying_with_us(Path::new(program));
        command.args(arguments).arg(settings);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts it before these instances, with the settings of deploy/ and the addresses of the test.
    async fn start(
        self,
        site: &Site,
        instances: &[ServiceProcess; 2],
    ) -> Result<(Process, SocketAddr)> {
        let port = free_port()?;
        let mut text = std::fs::read_to_string(self.settings())?;
        let mut replace = |from: &str, to: String| -> Result<()> {
            ensure!(text.contains(from), "{self:?}: the settings have no {from}");
            text = text.replace(from, &to);
            Ok(())
        };
        replace("0.0.0.0:9443", format!("127.0.0.1:{port}"))?;
        let addresses = ["10.0.0.11:9443", "10.0.0.12:9443"]
            .into_iter()
            .zip(instances);
        match self {
            Self::HaProxy => {
                replace("maxconn 50000", "maxconn 1000".into())?; // Test machines allow few open files.
                for (address, instance) in addresses {
                    let (grpc, health) = (instance.grpc, instance.http.port());
                    replace(
                        &format!("{address} port 8080"),
                        format!("{grpc} port {health}"),
                    )?;
                }
            }
            Self::Nginx => {
                replace(
                    "/run/nginx.pid",
                    site.path("nginx.pid").display().to_string(),
                )?;
                replace("/var/log/nginx/error.log", "stderr".into())?;
                for (address, instance) in addresses {
                    replace(address, instance.grpc.to_string())?;
                }
            }
        }
        let settings = site.path("load-balancer.conf");
        std::fs::write(&settings, text)?;
        let process =
            Process::spawn(self.command(&settings)).context("scripts/deps installs it")?;
        let address = (Ipv4Addr::LOCALHOST, port).into();
        eventually("the load balancer listens", async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await?;
        Ok((process, address))
    }
}

/// Stops one of two instances under a fleet that reaches them through a load balancer. Logs and events have the clients'
/// own addresses. Returns how long agents were away.
pub async fn instance_leaves_load_balancer(
    site: &Site,
    kind: LoadBalancer,
    agents: u32,
    pace: Pace,
) -> Result<Vec<Duration>> {
    let service = site
        .server_process()
        .set("INGEST_PROXY_PROTOCOL_FROM", "127.0.0.1")
        .set("INGEST_DRAIN_DELAY", kind.drain_delay());
    let instances = service.start_pair().await?;
    let (_running, address) = kind.start(site, &instances).await?;
    let fleet = Fleet::reporting(site, &[address], agents, pace).await?;
    real_address_is_recorded(site, address, &instances).await?;
    instances[0].stop().await?;
    fleet.all_connected().await?;
    fleet.all_acked_again().await?;
    ensure!(times_offline(site).await? == 0, "agents were offline");
    fleet.audit(site).await?;
    Ok(fleet.absences())
}

/// A refused registration is logged with the address of its client, which here is not the load balancer's. The event of
/// an accepted one has it too.
async fn real_address_is_recorded(
    site: &Site,
    address: SocketAddr,
    instances: &[ServiceProcess; 2],
) -> Result<()> {
    let stranger = FakeAgent::on(machine(900_000))?;
    let tls = TlsConnector::from(Arc::new(Tls::with(&stranger.identity).config()?));
    let connector = service_fn(move |_: Uri| {
        let tls = tls.clone();
        async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind((CLIENT, 0).into())?;
            let stream = socket.connect(address).await?;
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("https://localhost").timeout(PATIENCE);
    let channel = endpoint.connect_with_connector(connector).await?;
    let unknown = stranger.request(EnrolmentToken::generate()?.expose());
    let mut client = IngestServiceClient::new(channel);
    let refused = client.register(unknown).await;
    ensure!(refused.is_err(), "an unknown token was accepted");
    let token = token(site, ONE_USE).await?;
    client.register(stranger.request(&token)).await?;
    let registered =
        format!("SELECT count(*) FROM agent_events WHERE kind = 'status' AND address = '{CLIENT}'");
    site.expect(&registered, "1").await?;
    let others = "SELECT count(*) FROM agent_events WHERE kind = 'presence' AND to_status = 'online' AND address IS NULL";
    site.expect(others, "0").await?;
    eventually("the client's own address is in a log", async || {
        let logged = format!("peer={CLIENT}:");
        let mut logs = instances.iter().map(|instance| instance.logs());
        logs.any(|log| log.contains(&logged))
    })
    .await
}
