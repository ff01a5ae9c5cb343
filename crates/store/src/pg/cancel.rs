//! Cancelling the statement that runs on a connection.
//!
//! A cancel request is a connection of its own, to the same address and with the same TLS. The server
//! closes it once it has acted on the request. The driver closes it right after sending, and a
//! PgBouncer takes that as a change of mind; so this waits for the server to close first.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_postgres::{CancelToken, Client, Config, config::Host, tls::MakeTlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Can cancel the statements of one connection.
#[derive(Clone)]
pub(crate) struct Canceller {
    token: CancelToken,
    address: Address,
    /// The name in the server's certificate.
    name: String,
    tls: MakeRustlsConnect,
}

#[derive(Clone)]
enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Canceller {
    /// For a client that is connected to the one server of `config`.
    pub(crate) fn new(client: &Client, config: &Config, tls: MakeRustlsConnect) -> Canceller {
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let (address, name) = match config.get_hosts().first() {
            Some(Host::Unix(folder)) => {
                let socket = folder.join(format!(".s.PGSQL.{port}"));
                (Address::Unix(socket), String::new())
            }
            Some(Host::Tcp(name)) => {
                let given = config.get_hostaddrs().first();
                let host = given.map_or_else(|| name.clone(), ToString::to_string);
                (Address::Tcp(host, port), name.clone())
            }
            None => (Address::Tcp(String::new(), port), String::new()),
        };
        let token = client.cancel_token();
        Canceller {
            token,
            address,
            name,
            tls,
        }
    }

    /// Returns once the server has acted on the request, or has ignored it: it does not say.
    pub(crate) async fn cancel(&self) -> Result<(), Failed> {
        match &self.address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                self.send(stream).await
            }
            Address::Unix(path) => self.send(UnixStream::connect(path).await?).await,
        }
    }

    async fn send<S>(&self, stream: S) -> Result<(), Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut tls = self.tls.clone();
        let tls = MakeTlsConnect::<UntilClosed<S>>::make_tls_connect(&mut tls, &self.name)?;
        Ok(self
            .token
            .cancel_query_raw(UntilClosed(stream), tls)
            .await?)
    }
}

/// A stream whose shutdown waits until the other side has closed it.
struct UntilClosed<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for UntilClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for UntilClosed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut piece = [0; 256];
            let mut piece = ReadBuf::new(&mut piece);
            let read = ready!(Pin::new(&mut self.0).poll_read(cx, &mut piece));
            if read.is_err() || piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
