//! HTTPS without a proxy, and what the console does without a certificate.

use anyhow::Result;
use svc_sandbox::{Identity, free_port};
use svc_store::{LinkKind, Role};
use svc_testkit::{Site, assert_contains, eventually};

use crate::support::Console;

/// A console with a certificate of its own.
async fn with_certificate(identity: &Identity) -> Result<Console> {
    let site = Site::new().await?;
    let (certificate, key) = identity.write(site.folder(), "console")?;
    let port = free_port()?;
    let set = [
        ("CONSOLE_BASE_URL", format!("https://localhost:{port}")),
        ("CONSOLE_PORT", port.to_string()),
        ("CONSOLE_TLS_CERT", certificate.display().to_string()),
        ("CONSOLE_TLS_KEY", key.display().to_string()),
    ];
    Console::on(site, &set).await
}

#[tokio::test]
async fn the_console_serves_https_with_secure_cookies_and_a_renewed_certificate() -> Result<()> {
    let first = Identity::server(&["localhost"])?;
    let console = with_certificate(&first).await?;
    let mut client = console.client().trusting(&first)?;
    eventually("the console serves HTTPS", async || {
        client
            .status("/healthz")
            .await
            .is_ok_and(|status| status == 200)
    })
    .await?;
    let code = console.link("ann", Role::Viewer, LinkKind::SignIn).await?;
    let entered = client.post("/welcome", &[("code", &code)]).await?;
    assert_eq!(entered.status, 303, "{entered:?}");
    let cookie = entered.header("set-cookie").unwrap_or_default();
    assert!(
        cookie.starts_with("__Host-console=") && cookie.contains("; Secure"),
        "{cookie}"
    );
    client.keep_cookie(&entered);
    let page = client.get("/hosts").await?;
    assert_eq!(page.status, 200);
    assert!(
        page.header("strict-transport-security").is_some(),
        "{}",
        page.head
    );
    let metrics = client.get("/metrics").await?;
    metrics.shows(&["console_certificate_expiry_timestamp_seconds{certificate=\"server\"}"]);
    let clear = console.client().get("/healthz").await;
    assert!(clear.is_err(), "it answered in clear text: {clear:?}");
    let health = console.program()?.arguments(["healthcheck"]).run().await?;
    assert_eq!(health.code, Some(0), "{health:?}");

    let second = Identity::server(&["localhost"])?;
    second.write(console.site.folder(), "console")?;
    let renewed = console.client().trusting(&second)?;
    eventually("the new certificate is served", async || {
        renewed
            .status("/healthz")
            .await
            .is_ok_and(|status| status == 200)
    })
    .await
}

/// The address that the log of a console without a certificate names.
#[tokio::test]
async fn without_a_certificate_it_listens_on_this_machine_alone_and_says_why() -> Result<()> {
    for (set, line) in [
        (
            "",
            "without a certificate the console listens on this machine alone",
        ),
        (
            "0.0.0.0",
            "the console serves clear text beyond this machine",
        ),
    ] {
        let mut console = Console::start().await?;
        console.stop().await?;
        let program = console
            .program()?
            .environment([("CONSOLE_BIND_ADDRESS", set)]);
        let process = program.start()?;
        eventually("the console says how it listens", async || {
            process.logs().contains(line)
        })
        .await?;
        let address = if set.is_empty() { "127.0.0.1" } else { set };
        eventually("the console says where it serves", async || {
            process.logs().contains(&format!("address={address}:"))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_health_check_asks_the_address_that_is_bound() -> Result<()> {
    for address in ["127.0.0.9", "::1", "0.0.0.0"] {
        let mut console = Console::start().await?;
        console.stop().await?;
        let program = console
            .program()?
            .environment([("CONSOLE_BIND_ADDRESS", address)]);
        let _process = program.clone().start()?;
        eventually("the console is healthy", async || {
            let health = program.clone().arguments(["healthcheck"]).run().await;
            health.is_ok_and(|health| health.code == Some(0))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn half_a_certificate_and_a_base_url_in_clear_text_are_refused() -> Result<()> {
    let console = Console::start().await?;
    let (certificate, key) = Identity::server(&["localhost"])?.write(console.site.folder(), "c")?;
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    let half = [("CONSOLE_TLS_CERT", certificate.clone())];
    let half = console.program()?.environment(half).run().await?;
    assert_eq!(half.code, Some(2), "{half:?}");
    assert_contains(&half.stderr, "CONSOLE_TLS_KEY: is missing");
    let clear = [("CONSOLE_TLS_CERT", certificate), ("CONSOLE_TLS_KEY", key)];
    let clear = console.program()?.environment(clear).run().await?;
    assert_eq!(clear.code, Some(2), "{clear:?}");
    assert_contains(&clear.stderr, "CONSOLE_BASE_URL: is not https://");
    Ok(())
}
