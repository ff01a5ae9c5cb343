//! A console on a site of its own, connected as the web role.

mod client;
mod seed;

use std::{collections::HashMap, ffi::OsString, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use svc_console::{config::Config, server::Server};
use svc_sandbox::free_port;
use svc_store::{LinkKind, Role, WebRole};
use svc_testkit::{
    FakeAgent, Instance, MANUAL, PATIENCE, Process, Program, Registering, Site, eventually, token,
};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

pub use self::{
    client::{Client, Connection, FORM, Page},
    seed::{
        disk, seed_fleet, seed_history, seed_hostile, seed_hosts, seed_pictures, seed_rollout,
        seed_rollups, seed_samples, seed_trust,
    },
};

/// The pages of the menu.
pub const PAGES: [&str; 11] = [
    "/",
    "/hosts",
    "/approvals",
    "/tokens",
    "/updates",
    "/settings",
    "/trust",
    "/activity",
    "/service",
    "/people",
    "/me",
];

/// A running console. Dropping it asks it to stop.
pub struct Console {
    pub site: Site,
    pub address: SocketAddr,
    pub origin: String,
    environment: HashMap<&'static str, OsString>,
    stop: CancellationToken,
    task: Option<JoinHandle<Result<()>>>,
}

impl Console {
    pub async fn start() -> Result<Self> {
        Self::on(Site::new().await?, &[]).await
    }

    /// A console, and a client that is signed in.
    pub async fn signed_in_as(name: &str, role: Role) -> Result<(Self, Client)> {
        let console = Self::start().await?;
        let client = console.signed_in(name, role).await?;
        Ok((console, client))
    }

    /// A console and an instance of the service, whose keys the console fetches.
    pub async fn with_service() -> Result<(Self, Instance)> {
        let (site, instance) = Site::with_instance().await?;
        let jwks = format!("http://{}/.well-known/jwks.json", instance.http);
        let console = Self::on(site, &[("CONSOLE_JWKS_URL", jwks)]).await?;
        Ok((console, instance))
    }

    pub async fn on(site: Site, set: &[(&'static str, String)]) -> Result<Self> {
        let environment = environment(&site, set).await?;
        let server = Server::bind(Config::read(&|name| environment.get(name).cloned())?).await?;
        let (address, stop) = (server.address()?, CancellationToken::new());
        let tls = environment.contains_key("CONSOLE_TLS_CERT");
        let console = Self {
            origin: format!("http://localhost:{}", address.port()),
            site,
            address,
            environment,
            task: Some(tokio::spawn(server.run(stop.clone()))),
            stop,
        };
        if !tls {
            console.healthy().await?;
        }
        Ok(console)
    }

    /// A second console with the settings of this one, which need not be healthy.
    pub async fn beside(&self) -> Result<Beside> {
        let mut environment = self.environment.clone();
        environment.insert("CONSOLE_PORT", free_port()?.to_string().into());
        let server = Server::bind(Config::read(&|name| environment.get(name).cloned())?).await?;
        let (address, stop) = (server.address()?, CancellationToken::new());
        tokio::spawn(server.run(stop.clone()));
        let _stop = stop.drop_guard();
        Ok(Beside { address, _stop })
    }

    async fn healthy(&self) -> Result<()> {
        let client = self.client();
        eventually("the console is healthy", async || {
            let status = client.status("/healthz").await;
            status.is_ok_and(|status| status == 200)
        })
        .await
    }

    /// Registers an agent that then waits for approval.
    pub async fn waiting(&self, instance: &Instance, agent: FakeAgent) -> Result<Registering> {
        let secret = token(&self.site, MANUAL).await?;
        agent.pending(instance.grpc, &secret).await
    }

    /// Asks it to stop, and waits.
    pub async fn stop(&mut self) -> Result<()> {
        self.stop.cancel();
        let task = self.task.take().context("stopped twice")?;
        timeout(PATIENCE, task).await.context("it did not stop")??
    }

    /// The real binary with the settings of this console.
    pub fn program(&self) -> Result<Program> {
        Ok(Program::named("svc-console")?.environment(self.environment.clone()))
    }

    /// Runs the real binary in the place of the console in this process, which has stopped.
    pub async fn start_process(&self) -> Result<Process> {
        let process = self.program()?.start()?;
        self.healthy().await?;
        Ok(process)
    }

    /// A client that has not signed in.
    pub fn client(&self) -> Client {
        Client {
            address: self.address,
            origin: self.origin.clone(),
            cookie: None,
            tls: None,
        }
    }

    /// The code of a link for a person, who is added if missing.
    pub async fn link(&self, name: &str, role: Role, kind: LinkKind) -> Result<String> {
        let store = self.site.store()?;
        if store.console_user_login(name).await?.is_none() {
            store.console_user_add(name, role, "test").await?;
        }
        let code = BASE64_URL_SAFE_NO_PAD.encode(sha256(Uuid::new_v4().as_bytes()));
        let (hash, life) = (sha256(code.as_bytes()), Duration::from_secs(600));
        let created = store.console_link_create(name, kind, &hash, life, "test");
        ensure!(created.await?, "no link for {name}");
        Ok(code)
    }

    /// A client that is signed in.
    pub async fn signed_in(&self, name: &str, role: Role) -> Result<Client> {
        let code = self.link(name, role, LinkKind::SignIn).await?;
        let mut client = self.client();
        let answer = client.post("/welcome", &[("code", &code)]).await?;
        ensure!(answer.status == 303, "{answer:?}");
        client.keep_cookie(&answer);
        Ok(client)
    }
}

/// A console beside another one. Dropping it stops it.
pub struct Beside {
    pub address: SocketAddr,
    _stop: DropGuard,
}

impl Drop for Console {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The web role of a site: it owns nothing and may create the console's schema.
async fn environment(
    site: &Site,
    set: &[(&'static str, String)],
) -> Result<HashMap<&'static str, OsString>> {
    let database = site.psql("SELECT current_database()").await?;
    let role = format!("web_{}_{}", database.trim(), Uuid::new_v4().simple());
    site.psql(&format!("CREATE ROLE {role} LOGIN")).await?;
    let grant = format!("GRANT CREATE ON DATABASE \"{}\" TO {role}", database.trim());
    site.psql(&grant).await?;
    ensure!(site.store()?.web_role_grant(&role).await? == WebRole::Granted);
    let (url, port) = (site.database_url(), free_port()?);
    let defaults = [
        ("DATABASE_URL", url.replacen("svc@", &format!("{role}@"), 1)),
        ("CONSOLE_BASE_URL", format!("http://localhost:{port}")),
        ("CONSOLE_PORT", port.to_string()),
        ("CONSOLE_BIND_ADDRESS", "127.0.0.1".into()),
        ("CONSOLE_JWKS_URL", "http://127.0.0.1:1/jwks.json".into()),
    ];
    let set = defaults.into_iter().chain(set.iter().cloned());
    Ok(set.map(|(name, value)| (name, value.into())).collect())
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().unwrap()
}
