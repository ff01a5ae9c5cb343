//! A console on a site of its own, connected as the web role.

mod client;
mod seed;

use std::{collections::HashMap, ffi::OsString, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use svc_console::{config::Config, server::Server};
use svc_sandbox::free_port;
use svc_store::{LinkKind, Role, WebRole};
use svc_testkit::{Instance, PATIENCE, Process, Program, Site, eventually};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::{
    client::{Client, Page},
    seed::{disk, seed_fleet, seed_history, seed_hosts, seed_samples},
};

/// A running console. Dropping it asks it to stop.
pub struct Console {
    pub site: Site,
    pub address: SocketAddr,
    pub origin: String,
    pub environment: HashMap<&'static str, OsString>,
    stop: CancellationToken,
    task: Option<JoinHandle<Result<()>>>,
}

impl Console {
    pub async fn start() -> Result<Self> {
        Self::on(Site::new().await?, &[]).await
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
        let (address, stop, task) = launch(&environment).await?;
        let console = Self {
            origin: format!("http://localhost:{}", address.port()),
            site,
            address,
            environment,
            stop,
            task: Some(task),
        };
        console.healthy().await?;
        Ok(console)
    }

    pub async fn healthy(&self) -> Result<()> {
        let client = self.client();
        eventually("the console is healthy", async || {
            client
                .get("/healthz")
                .await
                .is_ok_and(|page| page.status == 200)
        })
        .await
    }

    /// Asks it to stop, and waits.
    pub async fn stop(mut self) -> Result<()> {
        self.end().await
    }

    async fn end(&mut self) -> Result<()> {
        self.stop.cancel();
        let task = self.task.take().context("stopped twice")?;
        timeout(PATIENCE, task).await.context("it did not stop")??
    }

    /// Stops it, and starts another one in its place, on another port: the old one may be taken.
    pub async fn restart(&mut self) -> Result<()> {
        self.end().await?;
        let port = free_port()?;
        self.origin = format!("http://localhost:{port}");
        let settings = [
            ("CONSOLE_PORT", port.to_string().into()),
            ("CONSOLE_BASE_URL", self.origin.clone().into()),
        ];
        self.environment.extend(settings);
        let (address, stop, task) = launch(&self.environment).await?;
        (self.address, self.stop, self.task) = (address, stop, Some(task));
        self.healthy().await
    }

    /// Ends the console in this process, and runs the real binary in its place.
    pub async fn run_as_process(&mut self) -> Result<Process> {
        self.end().await?;
        let process = Program::named("svc-console")?
            .environment(self.environment.clone())
            .start()?;
        self.healthy().await?;
        Ok(process)
    }

    /// A client that has not signed in.
    pub fn client(&self) -> Client {
        Client {
            address: self.address,
            origin: self.origin.clone(),
            cookie: None,
        }
    }

    /// The code of a link that signs a new person in.
    pub async fn link(&self, name: &str, role: Role, kind: LinkKind) -> Result<String> {
        let store = self.site.store()?;
        if store.console_user_login(name).await?.is_none() {
            store.console_user_add(name, role, "test").await?;
        }
        let secret = [name.as_bytes(), &rand_bytes()].concat();
        let code = base64_url(&sha256(&secret));
        let hash = sha256(code.as_bytes());
        let life = Duration::from_secs(600);
        ensure!(
            store
                .console_link_create(name, kind, &hash, life, "test")
                .await?
        );
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

type Launched = (SocketAddr, CancellationToken, JoinHandle<Result<()>>);

async fn launch(environment: &HashMap<&'static str, OsString>) -> Result<Launched> {
    let config = Config::read(&|name| environment.get(name).cloned())?;
    let server = Server::bind(config).await?;
    let (address, stop) = (server.address()?, CancellationToken::new());
    let task = tokio::spawn(server.run(stop.clone()));
    Ok((address, stop, task))
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
    let role = format!("web_{}_{}", database.trim(), uuid::Uuid::new_v4().simple());
    site.psql(&format!("CREATE ROLE {role} LOGIN")).await?;
    let grant = format!("GRANT CREATE ON DATABASE \"{}\" TO {role}", database.trim());
    site.psql(&grant).await?;
    ensure!(site.store()?.web_role_grant(&role).await? == WebRole::Granted);
    let port = free_port()?;
    let mut environment: HashMap<&'static str, OsString> = HashMap::from([
        (
            "DATABASE_URL",
            site.database_url()
                .replacen("svc@", &format!("{role}@"), 1)
                .into(),
        ),
        (
            "CONSOLE_BASE_URL",
            format!("http://localhost:{port}").into(),
        ),
        ("CONSOLE_PORT", port.to_string().into()),
        ("CONSOLE_BIND_ADDRESS", "127.0.0.1".into()),
        ("CONSOLE_JWKS_URL", "http://127.0.0.1:1/jwks.json".into()),
    ]);
    environment.extend(set.iter().map(|(name, value)| (*name, value.into())));
    Ok(environment)
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().unwrap()
}

fn rand_bytes() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

fn base64_url(bytes: &[u8]) -> String {
    use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
