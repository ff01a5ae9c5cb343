//! A console on a site of its own, connected as the web role, and a client with a cookie.

use std::{collections::HashMap, ffi::OsString, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use svc_console::{config::Config, server::Server};
use svc_sandbox::free_port;
use svc_store::{LinkKind, Role, WebRole};
use svc_testkit::{Instance, PATIENCE, Process, Program, Site, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

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
        self.stop.cancel();
        let task = self.task.take().context("stopped twice")?;
        timeout(PATIENCE, task).await.context("it did not stop")??
    }

    /// Stops it, and starts another one in its place, on another port: the old one may be taken.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop.cancel();
        let task = self.task.take().context("stopped twice")?;
        timeout(PATIENCE, task)
            .await
            .context("it did not stop")???;
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
        self.stop.cancel();
        let task = self.task.take().context("stopped twice")?;
        timeout(PATIENCE, task)
            .await
            .context("it did not stop")???;
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

#[derive(Clone, Debug)]
pub struct Client {
    pub address: SocketAddr,
    pub origin: String,
    pub cookie: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Page {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim())
    }

    pub fn has(&self, text: &str) -> bool {
        self.body.contains(text)
    }
}

impl Client {
    pub async fn get(&self, path: &str) -> Result<Page> {
        self.send("GET", path, "", "").await
    }

    /// A form, sent as a browser on the console's own pages sends it.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<Page> {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let headers = format!(
            "Origin: {}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/x-www-form-urlencoded\r\n",
            self.origin
        );
        self.send("POST", path, &headers, &form).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Result<Page> {
        let cookie = self.cookie.as_ref();
        let cookie = cookie.map_or_else(String::new, |cookie| format!("Cookie: {cookie}\r\n"));
        let host = self.origin.trim_start_matches("http://");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{cookie}{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            // A server that refuses a large body closes while it is sent.
            drop(stream.write_all(request.as_bytes()).await);
            let (mut answer, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
            // Some servers keep the connection open although they were asked to close it.
            while !is_complete(&answer) {
                match stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => answer.extend_from_slice(&chunk[..length]),
                }
            }
            parse(&answer)
        };
        timeout(PATIENCE, exchange).await?
    }

    pub fn keep_cookie(&mut self, page: &Page) {
        let cookie = page
            .header("set-cookie")
            .and_then(|text| text.split(';').next());
        self.cookie = cookie.map(str::to_owned);
    }
}

/// Whether the body has the length that the head announces.
fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length: Option<usize> = length.and_then(|length| length.trim().parse().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

fn parse(answer: &[u8]) -> Result<Page> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").context("no end of the head")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Ok(Page {
        status,
        head: head.to_owned(),
        body,
    })
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || after.len() < size {
            break;
        }
        body.push_str(after.get(..size).unwrap_or_default());
        rest = after.get(size + 2..).unwrap_or_default();
    }
    body
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

/// Hosts `web-000`, … with an active agent each; every third is offline.
pub async fn seed_hosts(site: &Site, count: u32) -> Result<()> {
    site.psql(&format!(
        "WITH new AS (
            INSERT INTO hosts (hostname, os, os_version, arch, memory_total_bytes, memory_used_bytes, cpu_percent, load_1m,
                               vitals_at, fullest_disk_percent, fullest_disk_mount_point, labels, ip_addresses, cpu_count,
                               uptime_seconds, process_count, disks)
            SELECT 'web-' || to_char(n, 'FM000'), 'Debian GNU/Linux', '12', 'x86_64', 16::bigint << 30, (n % 16)::bigint << 30,
                   n % 100, 0.5, now(), n % 100, '/', jsonb_build_object('env', CASE n % 2 WHEN 0 THEN 'prod' ELSE 'test' END),
                   ARRAY['10.0.0.' || n], 8, 86400 * n, 100 + n,
                   '[{{\"mount_point\": \"/\", \"device\": \"/dev/sda1\", \"fs_type\": \"ext4\", \"total_bytes\": 1000000, \"used_bytes\": 420000}}]'
              FROM generate_series(0, {count} - 1) AS n RETURNING id, hostname),
         agents AS (
            INSERT INTO agents (host_id, key, status, version, decided_by)
            SELECT id, sha256(hostname::bytea), 'active', '0.1.0', 'test' FROM new RETURNING id, host_id)
         SELECT count(*) FROM agents"
    ))
    .await?;
    site.psql(
        "UPDATE host_vitals v
            SET vitals_at = h.vitals_at, cpu_percent = h.cpu_percent, load_1m = h.load_1m,
                memory_used_bytes = h.memory_used_bytes, memory_total_bytes = h.memory_total_bytes,
                uptime_seconds = h.uptime_seconds, process_count = h.process_count,
                fullest_disk_percent = h.fullest_disk_percent, fullest_disk_mount_point = h.fullest_disk_mount_point
           FROM hosts h WHERE h.id = v.host_id",
    )
    .await?;
    site.psql(
        "UPDATE agent_state s SET presence = 'online', cause = 'connected'
           FROM agents a JOIN hosts h ON h.id = a.host_id
          WHERE a.id = s.agent_id AND right(h.hostname, 3)::int % 3 <> 0",
    )
    .await?;
    Ok(())
}

/// A day of samples for every tenth host, with a gap, a note and changes of presence.
pub async fn seed_history(site: &Site) -> Result<()> {
    site.psql(
        "SELECT metrics_partitions_ensure('7 days');
         SELECT rollups_partition_ensure(now()), rollups_partition_ensure(now() - interval '24 hours');
         INSERT INTO host_metrics
         SELECT h.id, now() - make_interval(secs => 30 * (2880 - n)), a.id, n,
                40 + 30 * sin(n / 180.0) + 8 * sin(n / 7.0), 2 + 1.5 * sin(n / 200.0), 2, 2,
                ((7 + 2 * sin(n / 400.0)) * 1073741824)::bigint, 16::bigint << 30, 0, 0, n * 30, 180,
                n * 900000::bigint + (300000 * sin(n / 50.0))::bigint, n * 300000::bigint,
                jsonb_build_array(jsonb_build_object('mount_point', '/', 'total_bytes', 100000, 'used_bytes', 42000 + n),
                                  jsonb_build_object('mount_point', '/var', 'total_bytes', 100000, 'used_bytes', 70000 + 5 * (n % 700)))
           FROM hosts h JOIN agents a ON a.host_id = h.id, generate_series(1, 2880) AS n
          WHERE h.hostname IN ('web-002', 'web-042') AND n NOT BETWEEN 1200 AND 1400 AND n NOT BETWEEN 2800 AND 2815;
         INSERT INTO metric_gaps (agent_id, first_seq, last_seq, kind, reason)
         SELECT a.id, 1200, 1400, 'declared', 'the spool was full' FROM agents a JOIN hosts h ON h.id = a.host_id WHERE h.hostname = 'web-042';
         UPDATE agent_state s SET acked_seq = 2880, stored_count = 2663, gap_count = 217
           FROM agents a JOIN hosts h ON h.id = a.host_id WHERE a.id = s.agent_id AND h.hostname = 'web-042';
         INSERT INTO host_events (at, host_id, kind, actor, text)
         SELECT now() - interval '25 minutes', id, 'note', 'agent web-042', 'deployed 4.2' FROM hosts WHERE hostname = 'web-042';
         INSERT INTO agent_events (at, agent_id, kind, from_status, to_status, reason)
         SELECT now() - ago, a.id, 'presence', CASE up WHEN 'online' THEN 'offline' ELSE 'online' END, up, why
           FROM agents a JOIN hosts h ON h.id = a.host_id,
                (VALUES (interval '20 hours', 'online', 'connected'), (interval '14 hours', 'offline', 'lost'),
                        (interval '12 hours 20 minutes', 'online', 'connected')) AS changes(ago, up, why)
          WHERE h.hostname = 'web-042'",
    )
    .await?;
    Ok(())
}
