//! A real PgBouncer in transaction mode in front of a PostgreSQL, on loopback.
//!
//! Invariant: it has fewer connections to the server than its clients have to it, so that each
//! transaction may use another one.

use std::net::Ipv4Addr;

use anyhow::Context;
use tokio::net::TcpStream;

use crate::{
    child,
    folder::{Folder, Medium, private_folder},
    ports::free_port,
    programs,
    server::Server,
};

const SERVER_CONNECTIONS: u32 = 4;
const CLIENTS: u32 = 500;

/// A running pooler; dropping it stops it.
#[derive(Debug)]
pub struct PgBouncer {
    // Dropped in this order: the pooler before its folder.
    _server: Server,
    _folder: Option<Folder>,
    port: u16,
}

impl PgBouncer {
    /// Starts it in front of the PostgreSQL on this port of loopback.
    pub async fn start(postgres: u16) -> anyhow::Result<PgBouncer> {
        let user = programs::unprivileged_user()?;
        let (path, folder) = Folder::given_or_new(None, "pgbouncer", Medium::Disk)?;
        private_folder(&path, user)?;
        let port = free_port()?;
        let file = path.join("pgbouncer.ini");
        std::fs::write(&file, settings(postgres, port))?;
        let mut command = child::command(&programs::pgbouncer()?, user, "KILL");
        command.arg("-q").arg(&file);
        if let Some(folder) = &folder {
            command.stdin(folder.lock()?);
        }
        let server = Server::spawn(command, &path.join("server.log"))?;
        let accepts = || async move {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_ok()
        };
        server.wait_until(accepts).await.context("PgBouncer")?;
        Ok(PgBouncer {
            _server: server,
            _folder: folder,
            port,
        })
    }

    /// A connection string through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://svc@127.0.0.1:{}/{database}", self.port)
    }
}

fn settings(postgres: u16, port: u16) -> String {
    format!(
        "[databases]\n* = host=127.0.0.1 port={postgres} user=svc\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = {CLIENTS}\n"
    )
}
