//! `svc-fleet bare-echo`: a server of the same contract over the same TLS on plain tonic, which does nothing.
//!
//! It is the lower bound for a service on this stack: agents register, are welcomed and get
//! acknowledgements as from the real service, but nothing is checked or stored.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use svc_harness::raise_file_limit;
use svc_proto::{
    ClientMessage, ServerMessage,
    contract::REGISTER_PATH,
    v1::{
        Ack, AgentStatus, Credential, HeartbeatRequest, HeartbeatResponse, RegisterRequest,
        RegisterResponse, Welcome,
    },
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, NamedService},
};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// Connections between the TLS handshake and tonic. When it is full, finished handshakes wait.
const ACCEPTED_QUEUE: usize = 256;
const BACKLOG: u32 = 4096;
/// After a failed accept, for example when no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, clap::Args)]
pub struct EchoArgs {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    cert: PathBuf,
    #[arg(long)]
    key: PathBuf,
}

/// Serves until the process is killed.
pub async fn serve(args: EchoArgs) -> anyhow::Result<()> {
    raise_file_limit();
    let tls = crate::tls::server(&std::fs::read(&args.cert)?, &std::fs::read(&args.key)?)?;
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)))?;
    let listener = socket.listen(BACKLOG)?;
    let (secured, incoming) = mpsc::channel(ACCEPTED_QUEUE);
    tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), secured));
    let server = tonic::transport::Server::builder().add_service(Echo);
    let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
    Ok(server.serve_with_incoming(incoming).await?)
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    secured: mpsc::Sender<TlsStream<TcpStream>>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = client.set_nodelay(true);
        let (tls, secured) = (tls.clone(), secured.clone());
        tokio::spawn(async move {
            if let Ok(client) = tls.accept(client).await {
                let _ = secured.send(client).await;
            }
        });
    }
}

/// Written by hand on tonic's own codec: the generated server uses the codec that was tuned for the service.
#[derive(Clone, Debug)]
struct Echo;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl NamedService for Echo {
    const NAME: &'static str = "svc.ingest.v1.IngestService";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(match request.uri().path() {
                REGISTER_PATH => {
                    let mut grpc = Grpc::new(ProstCodec::default());
                    grpc.server_streaming(service_fn(register), request).await
                }
                _ => {
                    let mut grpc = Grpc::new(ProstCodec::default());
                    grpc.streaming(service_fn(heartbeat), request).await
                }
            })
        })
    }
}

async fn register(
    _: Request<RegisterRequest>,
) -> Result<Response<ResponseStream<RegisterResponse>>, Status> {
    let response = RegisterResponse {
        agent_id: "echo".into(),
        status: AgentStatus::Active.into(),
        credential: Some(Credential {
            jwt: "none".into(),
            expires_at: None,
        }),
        ..RegisterResponse::default()
    };
    Ok(Response::new(Box::pin(tokio_stream::once(Ok(response)))))
}

async fn heartbeat(
    request: Request<Streaming<HeartbeatRequest>>,
) -> Result<Response<ResponseStream<HeartbeatResponse>>, Status> {
    let responses = request.into_inner().map(|message| message.map(answer));
    Ok(Response::new(Box::pin(responses)))
}

fn answer(request: HeartbeatRequest) -> HeartbeatResponse {
    let message = match request.message {
        Some(ClientMessage::Report(report)) => ServerMessage::Ack(Ack {
            up_to_seq: report.samples.last().map_or(0, |sample| sample.seq),
            rejected: vec![],
        }),
        _ => ServerMessage::Welcome(Welcome {
            agent_id: "echo".into(),
            ..Welcome::default()
        }),
    };
    HeartbeatResponse {
        message: Some(message),
    }
}
