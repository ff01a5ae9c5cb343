//! Every sslmode against a server with TLS.

use std::{
    fs::Permissions,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::Result;
use svc_sandbox::{
    Authority, Identity, Postgres, PostgresOptions, becomes, eventually, shared_postgres,
};
use tokio::time::timeout;

use crate::support::*;

struct Secured {
    server: Postgres,
    authority: Authority,
}

impl Secured {
    /// A server with a certificate for `localhost` alone.
    async fn start() -> Result<Secured> {
        let secured = Secured {
            server: Postgres::start(PostgresOptions::default()).await?,
            authority: Authority::new("database CA")?,
        };
        secured.put("root.crt", secured.authority.cert_pem())?;
        let stranger = Authority::new("another CA")?;
        secured.put("stranger.crt", stranger.cert_pem())?;
        let hba = "hostssl all certified all cert\nhost all all all trust\n";
        secured.put("pg_hba.conf", hba)?;
        let identity = secured.authority.issue_server(&["localhost"])?;
        secured.present(&identity).await?;
        Ok(secured)
    }

    /// Makes the server present `identity` from now on.
    async fn present(&self, identity: &Identity) -> Result<()> {
        self.put("server.crt", &identity.cert_pem)?;
        self.put("server.key", &identity.key_pem)?;
        for sql in [
            "ALTER SYSTEM SET ssl_ca_file = 'root.crt'",
            "ALTER SYSTEM SET ssl = on",
            "SELECT pg_reload_conf()",
        ] {
            self.server.psql("postgres", sql).await?;
        }
        let root = self.server.data_dir().join("pinned.crt");
        self.put("pinned.crt", &identity.cert_pem)?;
        let query = format!("sslmode=verify-ca&sslrootcert={}", root.display());
        eventually("the server presents it", PATIENCE, async || {
            let outcome = self.encrypted("localhost", &query).await;
            outcome.is_ok() || format!("{:#}", outcome.unwrap_err()).contains("xpired")
        })
        .await
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let folder = self.server.data_dir();
        let (path, owner) = (folder.join(name), folder.metadata()?);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        Ok(())
    }

    fn file(&self, name: &str) -> String {
        self.server.data_dir().join(name).display().to_string()
    }

    fn url(&self, host: &str, query: &str) -> String {
        let port = self.server.port();
        format!("postgres://svc@{host}:{port}/postgres?hostaddr=127.0.0.1&{query}")
    }

    async fn encrypted(&self, host: &str, query: &str) -> Result<bool> {
        encrypted(&self.server, &self.url(host, query)).await
    }

    /// The whole chain of the expected error.
    async fn refusal(&self, host: &str, query: &str) -> String {
        let outcome = self.encrypted(host, query).await;
        format!("{:#}", outcome.expect_err("the connection must fail"))
    }
}

/// Whether the store's connection is encrypted. The server tells; the application name
/// identifies the connection.
async fn encrypted(server: &Postgres, url: &str) -> Result<bool> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("tls test {}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let store = TestStore::open(&format!("{url}&application_name={name}"), 3)?;
    store.ping().await?;
    let ssl =
        "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name";
    let ssl = format!("{ssl} = '{name}'");
    Ok(server.psql("postgres", &ssl).await? == "t")
}

#[tokio::test]
async fn every_sslmode_behaves_as_in_libpq() -> Result<()> {
    let secured = Secured::start().await?;
    let root = format!("sslrootcert={}", secured.file("root.crt"));
    let stranger = format!("sslrootcert={}", secured.file("stranger.crt"));
    let (any, named) = ("127.0.0.1", "localhost");
    let with = |mode: &str, root: &str| format!("sslmode={mode}&{root}");
    for (mode, encrypted) in [
        ("disable", false),
        ("allow", true),
        ("prefer", true),
        ("require", true),
    ] {
        let found = secured.encrypted(any, &format!("sslmode={mode}")).await?;
        assert_eq!(found, encrypted, "{mode}");
    }
    for (host, mode) in [(any, "require"), (any, "verify-ca"), (named, "verify-full")] {
        assert!(secured.encrypted(host, &with(mode, &root)).await?, "{mode}");
    }
    for (host, mode, root, reason) in [
        (any, "verify-full", &root, "not valid for name"),
        (named, "require", &stranger, "UnknownIssuer"),
        (named, "verify-ca", &stranger, "UnknownIssuer"),
        (named, "verify-full", &stranger, "UnknownIssuer"),
    ] {
        let text = secured.refusal(host, &with(mode, root)).await;
        assert!(text.contains(reason), "{mode}: {text}");
    }
    let store = TestStore::open(&secured.url(named, &with("verify-full", &root)), 4)?;
    store.listen(&store.direct()?, "changes").await?;
    Ok(())
}

#[tokio::test]
async fn each_of_several_hosts_is_verified_by_its_own_name() -> Result<()> {
    let secured = Secured::start().await?;
    let root = secured.file("root.crt");
    let full = format!("sslmode=verify-full&sslrootcert={root}&hostaddr=127.0.0.1,127.0.0.1");
    let port = secured.server.port();
    let hosts = format!("127.0.0.1:{port},localhost");
    assert!(secured.encrypted(&hosts, &full).await?);
    let hosts = format!("127.0.0.1:{port},127.0.0.1");
    let text = secured.refusal(&hosts, &full).await;
    assert!(text.contains("not valid for name"), "{text}");
    Ok(())
}

/// The statement could run for a minute.
#[tokio::test]
async fn an_abandoned_statement_is_cancelled_over_tls() -> Result<()> {
    let secured = Secured::start().await?;
    let slow = "CREATE VIEW ingest_instances AS
        SELECT NULL::uuid AS id, '' AS kid, '{}'::text[] AS extra_kids, '' AS hostname, '' AS version, '' AS grpc_address, '' AS http_address,
               now() AS started_at, now() AS renewed_at, now() AS expires_at, true AS fenced, now() AS stopped_at, NULL::jsonb AS load
          FROM pg_sleep(60)";
    secured.server.psql("postgres", slow).await?;
    let root = secured.file("root.crt");
    let full = format!("sslmode=verify-full&sslrootcert={root}");
    let store = TestStore::open(&secured.url("localhost", &full), 4)?;
    store.ping().await?;
    let abandoned = timeout(Duration::from_secs(1), store.instances_list(1));
    assert!(abandoned.await.is_err());
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    becomes(&secured.server.url("postgres"), sleeping, "0").await?;
    store.ping().await?;
    Ok(())
}

#[tokio::test]
async fn a_server_certificate_in_sslrootcert_is_trusted_while_it_is_valid() -> Result<()> {
    let secured = Secured::start().await?;
    secured.present(&Identity::server(&["localhost"])?).await?;
    let pinned = secured.file("pinned.crt");
    let full = format!("sslmode=verify-full&sslrootcert={pinned}");
    assert!(secured.encrypted("localhost", &full).await?);
    let text = secured.refusal("127.0.0.1", &full).await;
    assert!(text.contains("not valid for name"), "{text}");
    let expired = Identity::expired_server(&["localhost"])?;
    secured.present(&expired).await?;
    let text = secured.refusal("localhost", &full).await;
    assert!(text.contains("xpired"), "{text}");
    Ok(())
}

#[tokio::test]
async fn the_client_certificate_is_sent_to_the_server() -> Result<()> {
    let secured = Secured::start().await?;
    let role = "CREATE ROLE certified LOGIN";
    secured.server.psql("postgres", role).await?;
    let client = secured.authority.issue_client("certified")?;
    secured.put("client.crt", &client.cert_pem)?;
    secured.put("client.key", &client.key_pem)?;
    let without = "sslmode=require&user=certified";
    let text = secured.refusal("localhost", without).await;
    assert!(text.contains("certificate"), "{text}");
    let (cert, key) = (secured.file("client.crt"), secured.file("client.key"));
    let with = format!("{without}&sslcert={cert}&sslkey={key}");
    assert!(secured.encrypted("localhost", &with).await?);
    Ok(())
}

#[tokio::test]
async fn a_server_without_tls_is_refused_if_tls_is_required() -> Result<()> {
    let server = shared_postgres().await?;
    let url = server.url("postgres");
    assert!(!encrypted(server, &format!("{url}?sslmode=prefer")).await?);
    let store = TestStore::open(&format!("{url}?sslmode=require"), 3)?;
    let error = anyhow::Error::from(store.ping().await.unwrap_err());
    let text = format!("{error:#}");
    assert!(text.contains("does not support TLS"), "{text}");
    Ok(())
}
