//! What one client may ask for: guesses, sizes, times, connections.

use anyhow::{Context, Result};
use svc_store::{LinkKind, Role};
use svc_testkit::{PATIENCE, Site, eventually};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::support::{Client, Console, Page};

/// Sends guesses at a password, all at once, and counts those that were refused for their number. One after the other they
/// would be slow by themselves on a slow machine.
async fn limited(
    stranger: &Client,
    guesses: u8,
    name: fn(u8) -> String,
    headers: fn(u8) -> String,
) -> Result<usize> {
    let mut answers = JoinSet::new();
    for guess in 0..guesses {
        let stranger = stranger.clone();
        let headers = headers(guess) + &stranger.same_origin();
        let form = format!("name={}&password=guess+number+{guess}", name(guess));
        answers.spawn(async move { stranger.send("POST", "/sign-in", &headers, &form).await });
    }
    let answers: Result<Vec<Page>> = answers.join_all().await.into_iter().collect();
    let limited = answers?.into_iter().filter(|answer| answer.status == 429);
    Ok(limited.count())
}

#[tokio::test]
async fn guessing_passwords_is_slowed_down_and_does_not_end_sessions() -> Result<()> {
    let console = Console::start().await?;
    let signed_in = console.signed_in("ann", Role::Viewer).await?;
    let limited = limited(&console.client(), 12, |_| "ann".into(), |_| String::new()).await?;
    assert!(limited >= 5, "{limited}");
    assert_eq!(signed_in.status("/").await?, 200);
    Ok(())
}

#[tokio::test]
async fn large_bodies_and_heads_are_refused() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let large = "x".repeat(300 * 1024);
    let status = client.submit("/tokens", &[("label", &large)]).await?;
    assert_eq!(status, 413);
    let head = format!("X-Large: {}\r\n", "x".repeat(200 * 1024));
    let refused = client.send("GET", "/", &head, "").await;
    assert!(refused.is_err() || refused.is_ok_and(|page| page.status == 431));
    assert_eq!(client.status("/").await?, 200);
    Ok(())
}

/// Everything that the console answers on a connection, until it closes it.
async fn until_closed(mut connection: impl AsyncRead + Unpin) -> Result<String> {
    let mut answer = Vec::new();
    let ended = timeout(PATIENCE, connection.read_to_end(&mut answer)).await;
    // A reset closes a connection too.
    drop(ended.context("the connection is still open")?);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_request_that_is_never_finished_is_cut_off() -> Result<()> {
    let console = Console::start().await?;
    let slow = console.client().begin("GET /", "X-Slow: ").await?;
    until_closed(slow).await.map(drop)
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_off() -> Result<()> {
    let (_console, client) = Console::signed_in_as("ann", Role::Admin).await?;
    let begun = client.same_origin() + "Content-Length: 1000\r\n\r\nlabel=";
    let slow = client.begin("POST /tokens", &begun).await?;
    let answer = until_closed(slow).await?;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_claimed_address_escapes_no_limit() -> Result<()> {
    let console = Console::start().await?;
    let claim = |guess| format!("X-Forwarded-For: 10.0.0.{guess}\r\n");
    let limited = limited(&console.client(), 12, |_| "ann".into(), claim).await?;
    assert!(limited >= 5, "{limited}");
    Ok(())
}

/// Behind a proxy that is trusted, the addresses are the clients' own.
#[tokio::test]
async fn one_address_that_guesses_many_names_slows_down_only_itself() -> Result<()> {
    let set = [("CONSOLE_TRUSTED_PROXIES", "127.0.0.1".to_owned())];
    let console = Console::on(Site::new().await?, &set).await?;
    let guesser = |_| "X-Forwarded-For: 10.0.0.1\r\n".to_owned();
    let names = |guess| format!("person-{guess}");
    let many = limited(&console.client(), 60, names, guesser).await?;
    assert!(many >= 5, "{many}");
    let other = |_| "X-Forwarded-For: 10.0.0.2\r\n".to_owned();
    let others = limited(&console.client(), 3, names, other).await?;
    assert_eq!(others, 0);
    Ok(())
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() -> Result<()> {
    let console = Console::start().await?;
    let connect = async || -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, 9], 0).into())?;
        Ok(socket.connect(console.address).await?)
    };
    let mut idle = Vec::new();
    for _ in 0..256 {
        idle.push(connect().await?);
    }
    let answer = until_closed(connect().await?).await?;
    assert!(answer.is_empty(), "it was served");
    assert_eq!(console.client().status("/healthz").await?, 200);
    Ok(())
}

/// Signs ben in by a password, and returns the answer.
async fn sign_in(client: &Client, from: &str) -> Result<Page> {
    let headers = format!("X-Forwarded-For: {from}\r\n{}", client.same_origin());
    let form = "name=ben&password=correct+horse+battery";
    client.send("POST", "/sign-in", &headers, form).await
}

/// Many networks together use up the attempts at a name. A browser in which its person has signed in before has its own.
#[tokio::test]
async fn nobody_can_lock_a_person_out_of_a_browser_that_they_have_used() -> Result<()> {
    let set = [("CONSOLE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned())];
    let console = Console::on(Site::new().await?, &set).await?;
    let code = console.link("ben", Role::Viewer, LinkKind::SetPassword);
    let (code, password) = (code.await?, "correct horse battery");
    let fields = [
        ("code", &*code),
        ("password", password),
        ("again", password),
    ];
    let mut known = console.client();
    let entered = known.post("/welcome/password", &fields).await?;
    let cookies = entered
        .head
        .lines()
        .filter_map(|line| line.split_once("et-cookie: "));
    let mut cookies = cookies.filter_map(|(_, cookie)| cookie.split(';').next());
    let browser = cookies.find(|cookie| cookie.starts_with("console-browser="));
    known.cookie = browser.map(str::to_owned);
    assert!(known.cookie.is_some(), "{}", entered.head);
    let stored = "SELECT count(*) FROM console.browsers WHERE octet_length(hash) = 32";
    console.site.expect(stored, "1").await?;

    let mut attack = Vec::new();
    let (stranger, form) = (console.client(), "name=ben&password=a+wrong+guess");
    for guess in 0..200 {
        let (headers, length) = (stranger.same_origin(), form.len());
        let from = format!("X-Forwarded-For: 10.0.{guess}.1\r\n{headers}");
        let rest = format!("{from}Content-Length: {length}\r\n\r\n{form}");
        attack.push(stranger.begin("POST /sign-in", &rest).await?);
    }
    // The last one is refused without work. The others still wait for it.
    let mut status = [0; 12];
    let last = attack.last_mut().context("no attack")?;
    timeout(PATIENCE, last.read_exact(&mut status)).await??;
    assert_eq!(&status, b"HTTP/1.1 429");
    drop(attack);
    let mut made_up = console.client();
    made_up.cookie = Some(format!("console-browser={}", "A".repeat(43)));
    let mut limited = None;
    for from in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        let answer = sign_in(&made_up, from).await?;
        limited = limited.or((answer.status == 429).then_some(answer));
    }
    let limited = limited.context("the attempts at the name are not used up")?;
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
    assert_eq!(sign_in(&known, "192.0.2.1").await?.status, 303);
    Ok(())
}

/// A console with one release that does not fit into the buffers of a connection, behind a trusted proxy.
async fn with_large_release(folder: &std::path::Path) -> Result<Console> {
    let release = folder.join("1.0.0/linux/x86_64");
    std::fs::create_dir_all(&release)?;
    std::fs::write(release.join("svc-agent"), vec![b'x'; 16 << 20])?;
    let set = [
        ("CONSOLE_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
        ("CONSOLE_DOWNLOAD_DIR", folder.display().to_string()),
    ];
    Console::on(Site::new().await?, &set).await
}

/// Slow readers, which a trusted proxy brings, are counted by their own network.
#[tokio::test]
async fn one_network_behind_a_proxy_does_not_take_all_downloads() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let console = with_large_release(folder.path()).await?;
    let client = console.client();
    let path = "/download/svc-agent/1.0.0/linux/x86_64/svc-agent";
    let from = |address: &str| format!("X-Forwarded-For: {address}\r\n");
    // Computed while nobody else reads the disk, and kept.
    let sum = format!("{path}.sha256");
    assert_eq!(client.send("GET", &sum, "", "").await?.status, 200);
    let mut unread = Vec::new();
    for _ in 0..128 {
        let headers = from("192.0.2.1") + "\r\n";
        unread.push(client.begin(&format!("GET {path}"), &headers).await?);
    }
    // A checksum takes a place like any other download, and is short.
    let refused = async || client.send("GET", &sum, &from("192.0.2.1"), "").await;
    eventually("the network has all its downloads", async || {
        refused().await.is_ok_and(|page| page.status == 429)
    })
    .await?;
    let page = refused().await?;
    assert_eq!(page.header("retry-after"), Some("5"), "{}", page.head);
    let other = client.send("GET", &sum, &from("192.0.2.2"), "").await?;
    assert_eq!(other.status, 200);
    drop(unread);
    eventually("the places are free again", async || {
        let page = client.send("GET", &sum, &from("192.0.2.1"), "").await;
        page.is_ok_and(|page| page.status == 200)
    })
    .await
}

#[tokio::test]
async fn a_download_is_never_compressed_on_the_fly() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let console = with_large_release(folder.path()).await?;
    let path = "/download/svc-agent/1.0.0/linux/x86_64/svc-agent";
    let client = console.client();
    let page = client
        .send("GET", path, "Accept-Encoding: gzip\r\n", "")
        .await?;
    assert_eq!(page.header("content-encoding"), None);
    assert_eq!(page.header("content-length"), Some("16777216"));
    Ok(())
}

/// One person's slow queries leave the other pages their connections, and what is busy does not call itself broken.
#[tokio::test]
async fn one_person_does_not_take_all_pages() -> Result<()> {
    let console = Console::start().await?;
    let greedy = console.signed_in("eve", Role::Viewer).await?;
    let other = console.signed_in("ann", Role::Viewer).await?;
    let locked = console.site.hold("LOCK TABLE people_events").await?;
    let mut waiting = JoinSet::new();
    for _ in 0..40 {
        let greedy = greedy.clone();
        waiting.spawn(async move { greedy.get("/activity").await });
    }
    assert_eq!(other.status("/hosts").await?, 200);
    let answers: Result<Vec<Page>> = waiting.join_all().await.into_iter().collect();
    for answer in answers?.iter().filter(|answer| answer.status != 200) {
        assert!(matches!(answer.status, 429 | 503), "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{}", answer.head);
    }
    locked.release().await
}

#[tokio::test]
async fn a_full_pool_says_that_the_console_is_busy() -> Result<()> {
    let set = [("CONSOLE_DB_POOL_SIZE", "4".to_owned())];
    let console = Console::on(Site::new().await?, &set).await?;
    let mut people = Vec::new();
    for name in ["ann", "ben", "eve", "olga"] {
        people.push(console.signed_in(name, Role::Viewer).await?);
    }
    let locked = console.site.hold("LOCK TABLE hosts").await?;
    let mut answers = JoinSet::new();
    for person in people {
        answers.spawn(async move { person.get("/hosts").await });
    }
    let answers: Result<Vec<Page>> = answers.join_all().await.into_iter().collect();
    let answers = answers?;
    let busy = answers.iter().find(|page| page.has("The console is busy"));
    let busy = busy.with_context(|| format!("{answers:?}"))?;
    assert_eq!((busy.status, busy.header("retry-after")), (503, Some("2")));
    locked.release().await
}
