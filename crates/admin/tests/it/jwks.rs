//! The JWKS document, as a verifier fetches it.

use std::{slice, time::Duration};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use svc_testkit::{AUTO, FakeAgent, Site, Verifier, get, http, machine, token, write_private};

const PATH: &str = "/.well-known/jwks.json";

/// The modulus of `SIGNING_KEY`, by `openssl rsa -noout -modulus`.
const MODULUS: &str = include_str!("../fixtures/rsa2048.modulus");

#[tokio::test]
async fn the_document_holds_the_public_key_in_the_specified_members_and_no_others() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let answer = get(instance.http, PATH).await?;
    let n = BASE64_URL_SAFE_NO_PAD.encode(from_hex(MODULUS.trim())?);
    let expected = json!({"keys": [{
        "kty": "RSA", "kid": thumbprint(&n, "AQAB"), "use": "sig", "alg": "RS256",
        "n": n, "e": "AQAB",
    }]});
    assert_eq!(answer.status, 200);
    assert_eq!(serde_json::from_str::<Value>(&answer.body)?, expected);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("cache-control"), Some("public, max-age=300"));
    instance.stop().await
}

#[tokio::test]
async fn a_jwt_verifies_with_nothing_but_the_published_document() -> Result<()> {
    let site = Site::new().await?;
    let instance = site
        .instance()
        .set("INGEST_JWT_KEY_FILE", site.path("generated.pem"));
    let instance = instance.start().await?;
    let agent = FakeAgent::on(machine(1))?;
    let jwt = agent.jwt(instance.grpc, &token(&site, AUTO).await?).await?;
    let document: Value = serde_json::from_str(&get(instance.http, PATH).await?.body)?;
    assert_eq!(document["keys"][0]["e"], "AQAB", "of a generated key");
    let mut verifier = Verifier::new(&[instance.http], Duration::ZERO);
    assert_eq!(verifier.verify(slice::from_ref(&jwt)).await?, [true]);

    let part = |part: usize| {
        let part = jwt.split('.').nth(part).unwrap_or_default();
        let part = BASE64_URL_SAFE_NO_PAD.decode(part)?;
        anyhow::Ok(serde_json::from_slice::<Value>(&part)?)
    };
    let (header, claims) = (part(0)?, part(1)?);
    assert_eq!(header["alg"], "RS256");
    let id = site.psql("SELECT id FROM agents").await?;
    assert_eq!(claims["sub"], id);
    assert_eq!(claims["iss"], "svc-ingest");
    instance.stop().await
}

#[tokio::test]
async fn keys_of_every_size_and_exponent_are_published_under_their_thumbprint() -> Result<()> {
    let fixtures = [
        (include_str!("../fixtures/rsa2048_e3.pem"), 256, "Aw"),
        (include_str!("../fixtures/rsa4096_pkcs1.pem"), 512, "AQAB"),
        (include_str!("../fixtures/rsa8192.pem"), 1024, "AQAB"),
    ];
    for (pem, bytes, e) in fixtures {
        let site = Site::new().await?;
        write_private(&site.path("jwt_key.pem"), pem)?;
        let instance = site.instance().start().await?;
        let document: Value = serde_json::from_str(&get(instance.http, PATH).await?.body)?;
        let key = &document["keys"][0];
        let n = key["n"].as_str().context("n")?;
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(n)?.len(), bytes);
        assert_eq!(key["e"], e);
        assert_eq!(key["kid"], thumbprint(n, e));
        instance.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_verifier_with_the_current_document_gets_304() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let etag = get(instance.http, PATH).await?;
    let etag = etag.header("etag").context("an ETag")?;
    let ask = async |tags: &str| {
        let head = format!("GET {PATH} HTTP/1.1\r\nIf-None-Match: {tags}\r\n");
        http(instance.http, &head).await
    };
    for tags in [
        etag,
        "*",
        &format!("W/{etag}"),
        &format!("\"other\", {etag}"),
    ] {
        let fresh = ask(tags).await?;
        assert_eq!((fresh.status, fresh.body.as_str()), (304, ""), "{tags}");
        assert_eq!(fresh.header("etag"), Some(etag));
        assert_eq!(fresh.header("cache-control"), Some("public, max-age=300"));
    }
    let stale = ask("\"other\"").await?;
    assert_eq!(stale.status, 200);
    instance.stop().await
}

#[tokio::test]
async fn head_returns_the_length_without_the_document() -> Result<()> {
    let (_site, instance) = Site::with_instance().await?;
    let whole = get(instance.http, PATH).await?;
    let head = http(instance.http, &format!("HEAD {PATH} HTTP/1.1\r\n")).await?;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let length = whole.body.len().to_string();
    assert_eq!(head.header("content-length"), Some(length.as_str()));
    assert_eq!(head.header("etag"), whole.header("etag"));
    instance.stop().await
}

/// RFC 7638: SHA-256 over the required members in order.
fn thumbprint(n: &str, e: &str) -> String {
    let members = format!("{{\"e\":\"{e}\",\"kty\":\"RSA\",\"n\":\"{n}\"}}");
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, members.as_bytes()))
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let byte = |at: usize| Ok(u8::from_str_radix(&text[at..at + 2], 16)?);
    (0..text.len()).step_by(2).map(byte).collect()
}
