//! A service under a hostile hand: it speaks the protocol, welcomes every agent, offers whatever a test wants, and serves downloads as
//! well or as badly as a test wants. The real service would not make most of these offers.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context, Result};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use prost_types::Timestamp;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use svc_proto::{
    ClientMessage, ServerMessage,
    v1::{
        Ack, AgentSettings, AgentStatus, Credential, Goodbye, HeartbeatRequest, HeartbeatResponse,
        Hello, RegisterRequest, RegisterResponse, Sample, Settings, SettingsState, UpdateOffer,
        UpdateState, Welcome,
        ingest_service_server::{IngestService, IngestServiceServer},
    },
};
use svc_testkit::{Site, provider};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// How downloads are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downloads {
    Good,
    /// The connection ends after half of what was asked for.
    Cut,
    /// Bytes of another file, of the same length.
    Swapped,
    /// More bytes than the file has.
    Longer,
    /// 503, and a hint to return after a second.
    Busy,
    /// A redirect to somewhere else.
    Moved,
}

#[derive(Debug)]
pub struct Service {
    /// Of the gRPC port.
    pub address: SocketAddr,
    pub downloads: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    offer: watch::Sender<Option<UpdateOffer>>,
    settings: watch::Sender<Option<AgentSettings>>,
    acked: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
pub struct Seen {
    /// A version that gets no Welcome.
    pub unwelcome: Option<&'static str>,
    pub hellos: Vec<Hello>,
    pub states: Vec<UpdateState>,
    pub stated: Vec<SettingsState>,
    pub samples: Vec<Sample>,
    pub goodbyes: Vec<Goodbye>,
    pub files: BTreeMap<String, Arc<Vec<u8>>>,
    pub served: Downloads,
    /// The first byte that each download asked for.
    pub ranges: Vec<usize>,
}

impl Service {
    /// With the certificate of the site's instances.
    pub async fn start(site: &Site) -> Result<Self> {
        let certificate = CertificateDer::from_pem_file(site.path("server.crt"))?;
        let key = PrivateKeyDer::from_pem_file(site.path("server.key"))?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let state = Arc::new(State {
            offer: watch::Sender::new(None),
            settings: watch::Sender::new(None),
            acked: AtomicU64::new(0),
            seen: Mutex::new(Seen {
                unwelcome: None,
                hellos: Vec::new(),
                states: Vec::new(),
                stated: Vec::new(),
                samples: Vec::new(),
                goodbyes: Vec::new(),
                files: BTreeMap::new(),
                served: Downloads::Good,
                ranges: Vec::new(),
            }),
        });
        let grpc = TcpListener::bind("127.0.0.1:0").await?;
        let files = TcpListener::bind("127.0.0.1:0").await?;
        let service = Self {
            address: grpc.local_addr()?,
            downloads: files.local_addr()?,
            state: state.clone(),
        };
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let calls = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = grpc.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, Calls(calls.clone())));
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = files.accept().await {
                tokio::spawn(send(stream, state.clone()));
            }
        });
        Ok(service)
    }

    /// To all agents, now and after every Hello.
    pub fn offer(&self, offer: UpdateOffer) {
        self.state.offer.send_replace(Some(offer));
    }

    /// To all agents, now and in every Welcome.
    pub fn settings(&self, settings: AgentSettings) {
        self.state.settings.send_replace(Some(settings));
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.state.seen()
    }
}

impl State {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, calls: Calls) -> Result<()> {
    let stream = acceptor.accept(stream).await?;
    let service = TowerToHyperService::new(IngestServiceServer::new(calls));
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    Ok(server
        .serve_connection(TokioIo::new(stream), service)
        .await?)
}

struct Calls(Arc<State>);

type Answers<T> = ReceiverStream<Result<T, Status>>;

#[tonic::async_trait]
impl IngestService for Calls {
    type RegisterStream = Answers<RegisterResponse>;
    type HeartbeatStream = Answers<HeartbeatResponse>;

    async fn register(
        &self,
        _: Request<RegisterRequest>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let (answers, stream) = mpsc::channel(1);
        let credential = Credential {
            jwt: "a.b.c".into(),
            expires_at: Some(Timestamp {
                seconds: 4_000_000_000,
                nanos: 0,
            }),
        };
        let response = RegisterResponse {
            agent_id: "agent".into(),
            status: AgentStatus::Active.into(),
            credential: Some(credential),
            ..RegisterResponse::default()
        };
        drop(answers.send(Ok(response)).await);
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let (answers, stream) = mpsc::channel(16);
        tokio::spawn(converse(self.0.clone(), request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn converse(
    state: Arc<State>,
    mut requests: Streaming<HeartbeatRequest>,
    answers: mpsc::Sender<Result<HeartbeatResponse, Status>>,
) -> Result<()> {
    let (mut offers, mut is_welcome) = (state.offer.subscribe(), false);
    offers.mark_changed();
    let mut settings = state.settings.subscribe();
    loop {
        let answer = tokio::select! {
            request = requests.message() => {
                let message = request?.and_then(|request| request.message);
                let message = message.context("the stream ended")?;
                let is_last = matches!(message, ClientMessage::Goodbye(_));
                let answer = heard(&state, message);
                if is_last {
                    return Ok(());
                }
                answer
            }
            Ok(()) = offers.changed(), if is_welcome => {
                offers.borrow_and_update().clone().map(ServerMessage::Offer)
            }
            Ok(()) = settings.changed(), if is_welcome => {
                let agent = settings.borrow_and_update().clone();
                Some(ServerMessage::Settings(Settings { agent, ..Settings::default() }))
            }
        };
        is_welcome |= matches!(answer, Some(ServerMessage::Welcome(_)));
        if let Some(message) = answer {
            let message = Some(message);
            answers.send(Ok(HeartbeatResponse { message })).await?;
        }
    }
}

fn heard(state: &State, message: ClientMessage) -> Option<ServerMessage> {
    match message {
        ClientMessage::Hello(hello) => {
            let mut seen = state.seen();
            seen.states.extend(hello.update.clone());
            seen.stated.extend(hello.settings.clone());
            let version = hello.agent.as_ref().map(|agent| agent.version.clone());
            seen.hellos.push(hello);
            (version.as_deref() != seen.unwelcome).then(|| ServerMessage::Welcome(welcome(state)))
        }
        ClientMessage::Report(report) => {
            let mut seen = state.seen();
            seen.states.extend(report.update);
            seen.stated.extend(report.settings);
            seen.samples.extend(report.samples.iter().cloned());
            drop(seen);
            let last = report.samples.last().map(|sample| sample.seq);
            let last = last.max(report.gaps.last().map(|gap| gap.last_seq))?;
            let up_to_seq = state.acked.fetch_max(last, Relaxed).max(last);
            Some(ServerMessage::Ack(Ack {
                up_to_seq,
                rejected: Vec::new(),
            }))
        }
        ClientMessage::Goodbye(goodbye) => {
            state.seen().goodbyes.push(goodbye);
            None
        }
        ClientMessage::NewKey(_) => None,
    }
}

fn welcome(state: &State) -> Welcome {
    let interval = prost_types::Duration {
        seconds: 1,
        nanos: 0,
    };
    Welcome {
        agent_id: "agent".into(),
        server_time: Some(std::time::SystemTime::now().into()),
        settings: Some(Settings {
            heartbeat_interval: Some(interval),
            release: None,
            agent: state.settings.borrow().clone(),
        }),
        acked_seq: state.acked.load(Relaxed),
        ..Welcome::default()
    }
}

/// One download.
async fn send(mut stream: TcpStream, state: Arc<State>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?.to_lowercase();
    let path = head.split(' ').nth(1).context("a path")?;
    let sha256 = path.trim_start_matches("/download/");
    let start = head.split("range: bytes=").nth(1);
    let start = start.and_then(|range| range.split('-').next());
    let start: usize = start.unwrap_or("0").parse()?;
    let (file, served) = {
        let mut seen = state.seen();
        seen.ranges.push(start);
        (seen.files.get(sha256).cloned(), seen.served)
    };
    let Some(file) = file.as_ref().and_then(|file| file.get(start..)) else {
        let none = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
        return Ok(stream.write_all(none).await?);
    };
    let (status, mut body) = match served {
        Downloads::Busy => ("503 Busy\r\nRetry-After: 1".into(), Vec::new()),
        Downloads::Moved => (
            "302 Found\r\nLocation: http://127.0.0.1:1/".into(),
            Vec::new(),
        ),
        Downloads::Longer => ("200 OK".into(), [file, b"and more"].concat()),
        _ if start == 0 => ("200 OK".into(), file.to_vec()),
        _ => {
            let last = start + file.len() - 1;
            let status = format!("206 Part\r\nContent-Range: bytes {start}-{last}/*");
            (status, file.to_vec())
        }
    };
    let length = body.len();
    match served {
        Downloads::Cut => body.truncate(length / 2),
        Downloads::Swapped => body.iter_mut().for_each(|byte| *byte ^= 1),
        _ => {}
    }
    let head: String = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    Ok(stream.shutdown().await?)
}
