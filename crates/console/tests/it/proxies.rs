//! Behind a reverse proxy: the files of deploy/ in real proxies, and whom the limits count.

use std::{fs, net::Ipv4Addr, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use svc_sandbox::{Identity, Process, dying_with_us, free_port};
use svc_store::Role;
use svc_testkit::{PATIENCE, Site, assert_contains, eventually};
use tokio::{io::AsyncReadExt, time::timeout};

use crate::support::{Client, Console};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Starts a proxy with a file of deploy/ and the addresses of the test.
fn start(site: &Site, file: &str, command: &[&str], set: &[(&str, String)]) -> Result<Process> {
    let mut text = fs::read_to_string(Path::new(REPOSITORY).join("deploy").join(file))?;
    for (from, to) in set {
        ensure!(text.contains(from), "{file} has no {from}");
        text = text.replace(from, to);
    }
    let settings = site.path("proxy.conf");
    fs::write(&settings, text)?;
    let (program, arguments) = command.split_first().context("no program")?;
    let mut command = dying_with_us(Path::new(program));
    command.args(arguments).arg(&settings);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Process::spawn(command).context("scripts/deps installs it")
}

/// A console behind a proxy, and a client that reaches it through the proxy alone.
async fn behind(
    start: impl FnOnce(&Site, u16, u16, &Identity) -> Result<Process>,
) -> Result<(Console, Process, Client)> {
    let (port, console_port) = (free_port()?, free_port()?);
    let site = Site::new().await?;
    let identity = Identity::server(&["localhost"])?;
    let process = start(&site, port, console_port, &identity)?;
    let set = [
        ("CONSOLE_BASE_URL", format!("https://localhost:{port}")),
        ("CONSOLE_PORT", console_port.to_string()),
        ("CONSOLE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()),
    ];
    let console = Console::on(site, &set).await?;
    let mut client = console.client().trusting(&identity)?;
    client.address = (Ipv4Addr::LOCALHOST, port).into();
    client.origin = format!("https://localhost:{port}");
    eventually("the proxy reaches the console", async || {
        client
            .status("/healthz")
            .await
            .is_ok_and(|status| status == 200)
    })
    .await?;
    Ok((console, process, client))
}

/// Signs in, reads a page and a live stream, and claims to be others.
async fn works_through(console: &Console, mut client: Client) -> Result<()> {
    let code = console.link("ann", Role::Viewer, svc_store::LinkKind::SignIn);
    let entered = client.post("/welcome", &[("code", &code.await?)]).await?;
    assert_eq!(entered.status, 303, "{entered:?}");
    let cookie = entered.header("set-cookie").unwrap_or_default();
    assert!(
        cookie.starts_with("__Host-console=") && cookie.contains("Secure"),
        "{cookie}"
    );
    client.keep_cookie(&entered);
    assert_eq!(client.status("/hosts").await?, 200);
    let mut live = client.begin("GET /live?view=fleet", "\r\n").await?;
    let mut answer = String::new();
    let sends = async {
        let mut chunk = [0; 4096];
        while !answer.contains("data:") {
            let length = live.read(&mut chunk).await?;
            ensure!(length > 0, "the stream ended: {answer}");
            answer += &String::from_utf8_lossy(&chunk[..length]);
        }
        Ok(())
    };
    timeout(PATIENCE, sends).await??;
    assert_contains(&answer, "text/event-stream");
    let hidden = client.status("/metrics").await?;
    assert_eq!(hidden, 404, "a proxied request is one from outside");
    let mut refused = 0;
    for guess in 0..12 {
        let headers = format!(
            "X-Forwarded-For: 10.0.0.{guess}\r\n{}",
            client.same_origin()
        );
        let form = "name=ben&password=a+wrong+password";
        refused += usize::from(
            client
                .send("POST", "/sign-in", &headers, form)
                .await?
                .status
                == 429,
        );
    }
    assert!(
        refused >= 3,
        "a claimed address escaped the limit: {refused}"
    );
    Ok(())
}

#[tokio::test]
async fn the_console_works_behind_haproxy_with_the_file_of_deploy() -> Result<()> {
    let (console, _proxy, client) = behind(|site, port, console, identity| {
        let pem = site.path("console.pem");
        fs::write(&pem, format!("{}{}", identity.cert_pem, identity.key_pem))?;
        let set = [
            ("/etc/haproxy/console.pem", pem.display().to_string()),
            ("bind 0.0.0.0:443", format!("bind 127.0.0.1:{port}")),
            (
                "bind 0.0.0.0:80",
                format!("bind 127.0.0.1:{}", free_port()?),
            ),
            (
                "console 127.0.0.1:3000",
                format!("console 127.0.0.1:{console}"),
            ),
        ];
        start(
            site,
            "haproxy/svc-console.cfg",
            &["haproxy", "-db", "-f"],
            &set,
        )
    })
    .await?;
    works_through(&console, client).await
}

#[tokio::test]
async fn the_console_works_behind_nginx_with_the_file_of_deploy() -> Result<()> {
    let (console, _proxy, client) = behind(|site, port, console, identity| {
        let (certificate, key) = identity.write(site.folder(), "proxy")?;
        let set = [
            (
                "/run/nginx-console.pid",
                site.path("nginx.pid").display().to_string(),
            ),
            ("/var/log/nginx/error.log", "stderr".into()),
            ("/etc/nginx/console.crt", certificate.display().to_string()),
            ("/etc/nginx/console.key", key.display().to_string()),
            ("listen 0.0.0.0:443", format!("listen 127.0.0.1:{port}")),
            (
                "listen 0.0.0.0:80;",
                format!("listen 127.0.0.1:{};", free_port()?),
            ),
            (
                "http://127.0.0.1:3000",
                format!("http://127.0.0.1:{console}"),
            ),
        ];
        let command = ["nginx", "-e", "stderr", "-g", "daemon off;", "-c"];
        start(site, "nginx/svc-console.conf", &command, &set)
    })
    .await?;
    works_through(&console, client).await
}

#[tokio::test]
async fn a_proxy_that_is_not_listed_is_reported_once_with_the_remedy() -> Result<()> {
    let mut console = Console::start().await?;
    console.stop().await?;
    let process = console.start_process().await?;
    let client = console.client();
    let forwarded = "X-Forwarded-For: 192.0.2.1\r\n";
    for _ in 0..3 {
        assert_eq!(
            client.send("GET", "/sign-in", forwarded, "").await?.status,
            200
        );
    }
    eventually("the log names the setting", async || {
        process
            .logs()
            .contains("CONSOLE_TRUSTED_PROXIES does not list")
    })
    .await?;
    let lines = process
        .logs()
        .matches("CONSOLE_TRUSTED_PROXIES does not list")
        .count();
    assert_eq!(lines, 1);
    Ok(())
}
