//! The commands for an installation: `migrate`, `doctor`, `key show`.

use anyhow::{Context, Result};
use serde_json::Value;
use svc_ingest::signing;
use svc_sandbox::Identity;
use svc_testkit::{
    Finished, ServiceBuilder, Site, assert_contains, eventually, get, write_private,
};

async fn json_of(site: &Site, arguments: &[&str]) -> Result<Value> {
    let arguments = [arguments, &["--output", "json"]].concat();
    let ended = site.process().arguments(&arguments).run().await?;
    Ok(serde_json::from_str(&ended.stdout)?)
}

#[tokio::test]
async fn migrate_applies_each_missing_migration_once() -> Result<()> {
    let site = Site::unmigrated().await?;
    let migrate = || site.command_process(&["migrate"]).exits(0);
    let first = migrate().await?;
    assert_contains(&first.stdout, "applied 0001_baseline");
    assert_eq!(migrate().await?.stdout, "the schema is up to date\n");
    let json = json_of(&site, &["migrate"]).await?;
    assert_eq!(json["applied"], serde_json::json!([]));
    Ok(())
}

/// `doctor`'s findings: (verdict, subject, finding).
struct Diagnosis {
    code: Option<i32>,
    findings: Vec<(String, String, String)>,
}

impl Diagnosis {
    async fn of(process: ServiceBuilder) -> Result<Self> {
        let Finished {
            code,
            stdout,
            stderr,
        } = process.arguments(&["doctor"]).run().await?;
        let line = |line: &str| {
            let (verdict, rest) = line.split_at_checked(6).context(line.to_owned())?;
            let (subject, finding) = rest.split_once("  ").context(line.to_owned())?;
            Ok([verdict, subject, finding]
                .map(|text| text.trim().to_owned())
                .into())
        };
        let findings = stdout.lines().map(line).collect::<Result<_>>();
        Ok(Self {
            code,
            findings: findings.with_context(|| format!("{stdout}{stderr}"))?,
        })
    }

    fn verdict(&self, subject: &str) -> Result<(&str, &str)> {
        let mut found = self
            .findings
            .iter()
            .filter(|(_, about, _)| about == subject);
        let (verdict, _, finding) = found.next().with_context(|| format!("no {subject}"))?;
        assert!(found.next().is_none(), "{subject} twice");
        Ok((verdict, finding))
    }
}

#[tokio::test]
async fn the_doctor_passes_a_good_installation() -> Result<()> {
    let site = Site::new().await?;
    let healthy = Diagnosis::of(site.process()).await?;
    let findings = healthy.findings.iter();
    let subjects: Vec<_> = findings.map(|(_, subject, _)| subject.as_str()).collect();
    let expected = [
        "variables",
        "certificate",
        "signing key",
        "INGEST_GRPC_PORT",
        "INGEST_HTTP_PORT",
        "connections",
        "database",
        "server",
        "schema",
        "clock",
        "instances",
        "history",
    ];
    assert_eq!(subjects, expected);
    assert!(
        healthy.findings.iter().all(|(verdict, ..)| verdict == "ok"),
        "{:?}",
        healthy.findings
    );
    assert_eq!(healthy.code, Some(0));
    let key = signing::read(&site.path("jwt_key.pem"))?.context("a key")?;
    assert!(healthy.verdict("signing key")?.1.contains(key.kid()));

    let json = json_of(&site, &["doctor"]).await?;
    assert_eq!(json[0]["verdict"], "ok");
    assert_eq!(json.as_array().map(Vec::len), Some(expected.len()));
    Ok(())
}

#[tokio::test]
async fn the_doctor_warns_of_future_problems_and_exits_with_0() -> Result<()> {
    let site = Site::unmigrated().await?;
    Identity::expired_server(&["localhost"])?.write(site.folder(), "server")?;
    let builder = site
        .instance()
        .set("INGEST_JWT_KEY_FILE", site.path("its.pem"));
    let running = builder.start().await?;
    // The running service uses the schema, so the statement may deadlock.
    let emptied = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    eventually("the schema is dropped", async || {
        site.psql(emptied).await.is_ok()
    })
    .await?;
    let diagnosis = Diagnosis::of(
        site.process()
            .set("INGEST_JWT_KEY_FILE", site.path("new.pem"))
            .set("INGEST_GRPC_PORT", running.grpc.port().to_string()),
    )
    .await?;
    for subject in ["certificate", "signing key", "INGEST_GRPC_PORT", "schema"] {
        assert_eq!(diagnosis.verdict(subject)?.0, "warn", "{subject}");
    }
    assert_contains(diagnosis.verdict("schema")?.1, "0001_baseline");
    assert_eq!(diagnosis.code, Some(0));
    assert!(!site.path("new.pem").exists(), "it changes nothing");
    site.expect("SELECT to_regclass('schema_migrations') IS NULL", "t")
        .await
}

#[tokio::test]
async fn the_doctor_fails_what_prevents_a_start_and_exits_with_1() -> Result<()> {
    let site = Site::new().await?;
    let broken = site
        .process()
        .set("INGEST_GRPC_PORT", "9443x")
        .set("INGEST_TLS_CERT", "/no/such/file")
        .set("DATABASE_URL", "postgres://svc:hunter2@127.0.0.1:1/svc");
    let diagnosis = Diagnosis::of(broken).await?;
    for subject in ["INGEST_GRPC_PORT", "INGEST_TLS_CERT", "database"] {
        let (verdict, finding) = diagnosis.verdict(subject)?;
        assert_eq!(verdict, "FAIL", "{subject}: {finding}");
        assert!(!finding.contains("hunter2"), "{finding}");
    }
    assert_eq!(diagnosis.code, Some(1));

    site.psql("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1")
        .await?;
    let unreleased = Diagnosis::of(site.process()).await?;
    assert_eq!(unreleased.verdict("schema")?.0, "FAIL");
    assert_eq!(unreleased.code, Some(1));
    Ok(())
}

#[tokio::test]
async fn the_doctor_warns_of_a_web_role_that_may_create_objects() -> Result<()> {
    let site = Site::new().await?;
    let role = site.psql("SELECT 'web_' || current_database()").await?;
    let diagnose = || Diagnosis::of(site.process().set("INGEST_WEB_ROLE", &role));
    assert_eq!(diagnose().await?.verdict("web role")?.0, "FAIL");
    site.psql(&format!("CREATE ROLE {role}")).await?;
    assert_eq!(diagnose().await?.verdict("web role")?.0, "warn");
    site.store()?.web_role_grant(&role).await?;
    assert_eq!(diagnose().await?.verdict("web role")?.0, "ok");
    site.psql("GRANT CREATE ON SCHEMA public TO PUBLIC").await?;
    let diagnosis = diagnose().await?;
    for subject in ["web role", "server"] {
        let (verdict, finding) = diagnosis.verdict(subject)?;
        assert_eq!(verdict, "warn");
        assert_contains(finding, "REVOKE CREATE ON SCHEMA");
    }
    Ok(())
}

#[tokio::test]
async fn the_doctor_fails_a_key_that_differs_from_the_sibling() -> Result<()> {
    let site = Site::new().await?;
    let sibling = site.instance().start().await?;
    let path = site.path("other.pem");
    write_private(&path, include_str!("../fixtures/rsa2048_pkcs1.pem"))?;
    let diagnosis = Diagnosis::of(site.process().set("INGEST_JWT_KEY_FILE", &path)).await?;
    let (verdict, finding) = diagnosis.verdict("instances")?;
    assert_eq!(verdict, "FAIL", "{finding}");
    assert_eq!(diagnosis.code, Some(1));
    sibling.stop().await
}

#[tokio::test]
async fn key_show_shows_the_key_that_the_service_publishes() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let published: Value =
        serde_json::from_str(&get(instance.http, "/.well-known/jwks.json").await?.body)?;
    let kid = published["keys"][0]["kid"].as_str().context("kid")?;
    let show = site.process().unset("DATABASE_URL");
    let show = show.arguments(&["key", "show"]).exits(0).await?;
    assert_contains(&show.stdout, kid);
    assert_contains(&show.stdout, "2048 bits");

    let json = json_of(&site, &["key", "show"]).await?;
    let expected = serde_json::json!({
        "file": site.path("jwt_key.pem"), "kid": kid, "bits": 2048, "jwks": published,
    });
    assert_eq!(json, expected);
    instance.stop().await
}

#[tokio::test]
async fn key_show_creates_no_key_and_names_a_bad_one() -> Result<()> {
    let site = Site::new().await?;
    let path = site.path("none.pem");
    let show = || {
        site.process()
            .set("INGEST_JWT_KEY_FILE", &path)
            .arguments(&["key", "show"])
    };
    let missing = show().exits(1).await?;
    assert_contains(&missing.stderr, "does not exist yet");
    assert!(!path.exists());
    write_private(&path, "nonsense")?;
    let bad = show().exits(2).await?;
    assert_contains(&bad.stderr, "svc-ingest: INGEST_JWT_KEY_FILE: ");
    assert_eq!(bad.stdout, "");
    Ok(())
}

#[tokio::test]
async fn a_usage_error_exits_with_2_and_help_and_version_with_0() -> Result<()> {
    let site = Site::new().await?;
    for (arguments, code) in [
        (&["nonsense"][..], 2),
        (&["serve", "--port", "1"], 2),
        (&["--help"], 0),
        (&["--version"], 0),
    ] {
        site.process().arguments(arguments).exits(code).await?;
    }
    Ok(())
}
