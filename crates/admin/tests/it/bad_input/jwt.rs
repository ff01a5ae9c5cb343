//! JWTs that open no heartbeat stream.

use anyhow::{Context, Result};
use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeyPair,
    signature::{KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256, RsaEncoding},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use svc_ingest::signing::{self, SigningKey};
use svc_testkit::{ActiveAgent, FakeAgent, MANUAL, Site, machine, token};
use tonic::Code;

use super::{AgentConnection, Enrolled, admitted};

/// An attacker with the signing key of the site, who signs any header and claims.
struct Forger {
    pair: KeyPair,
    kid: String,
}

impl Forger {
    fn at(site: &Site) -> Result<Self> {
        let path = site.path("jwt_key.pem");
        let key = PrivatePkcs8KeyDer::from_pem_file(&path)?;
        Ok(Self {
            pair: KeyPair::from_pkcs8(key.secret_pkcs8_der())?,
            kid: site_key(site)?.kid().to_owned(),
        })
    }

    fn header(&self, algorithm: &str, more: &str) -> String {
        let kid = &self.kid;
        format!(r#"{{"alg":"{algorithm}","typ":"JWT","kid":"{kid}"{more}}}"#)
    }

    fn signed(&self, header: &str, claims: &str) -> Result<String> {
        self.signed_by(&RSA_PKCS1_SHA256, header, claims)
    }

    fn signed_by(
        &self,
        algorithm: &'static dyn RsaEncoding,
        header: &str,
        claims: &str,
    ) -> Result<String> {
        let mut signature = vec![0; self.pair.public_modulus_len()];
        let text = unsigned(header, claims);
        let random = SystemRandom::new();
        self.pair
            .sign(algorithm, &random, text.as_bytes(), &mut signature)?;
        Ok(joined(&text, &signature))
    }

    /// As a verifier would take it that uses the public key as an HMAC secret.
    fn with_hmac(&self, header: &str, claims: &str) -> String {
        let text = unsigned(header, claims);
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.pair.public_key().as_ref());
        joined(&text, hmac::sign(&key, text.as_bytes()).as_ref())
    }

    /// Other algorithms, headers, claims and forms. The unit tests of `signing::jwt` have many more of each.
    fn forged(&self, good: &str, claims: &str) -> Result<Vec<String>> {
        let (none, hs256) = (self.header("none", ""), self.header("HS256", ""));
        let (rs256, rs384) = (self.header("RS256", ""), self.header("RS384", ""));
        let elsewhere = self.header("RS256", r#","jku":"https://evil.example/jwks.json""#);
        let no_key = r#"{"alg":"RS256","typ":"JWT","kid":"' OR 1=1 --"}"#;
        Ok(vec![
            format!("{}.", unsigned(&none, claims)),
            self.with_hmac(&hs256, claims),
            self.with_hmac(&rs256, claims),
            self.signed_by(&RSA_PKCS1_SHA384, &rs384, claims)?,
            self.signed_by(&RSA_PSS_SHA256, &rs256, claims)?,
            self.signed(&elsewhere, claims)?,
            self.signed(no_key, claims)?,
            self.signed(&rs256, &claims.replace("svc-ingest", "another"))?,
            self.signed(&rs256, &claims.replace("\"exp\"", "\"nbf\""))?,
            self.signed(&rs256, &claims.replace('}', ",\"admin\":true}"))?,
            self.signed(&rs256, "[]")?,
            String::new(),
            format!("{good}.{good}"),
            good.replace('.', ","),
        ])
    }
}

fn site_key(site: &Site) -> Result<SigningKey> {
    signing::read(&site.path("jwt_key.pem"))?.context("the site's key")
}

fn unsigned(header: &str, claims: &str) -> String {
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}", encode(header), encode(claims))
}

fn joined(text: &str, signature: &[u8]) -> String {
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn a_forged_jwt_opens_no_stream_and_all_get_the_same_message() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    let forger = Forger::at(&enrolled.site)?;
    let sub = enrolled.active.id.clone();
    let exp = Timestamp::now().as_second() + 3600;
    let claims = format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":{exp}}}"#);
    let foreign = tempfile::tempdir()?;
    let foreign = signing::create(&foreign.path().join("key.pem"))?;
    let mut forged = forger.forged(&enrolled.active.jwt, &claims)?;
    forged.push(foreign.sign(&sub, Timestamp::now())?.text);
    let mut messages = std::collections::BTreeSet::new();
    for jwt in forged {
        let refused = enrolled.connection.heartbeat_with_jwt(&jwt).await?;
        refused.assert(Code::Unauthenticated, "JWT_INVALID");
        messages.insert(refused.message);
    }
    assert_eq!(messages.len(), 1, "one text for all: {messages:?}");

    let control = forger.signed(&forger.header("RS256", ""), &claims)?;
    let end = enrolled.connection.heartbeat_with_jwt(&control).await?;
    assert!(admitted(&end), "the forger can make a good one: {end:?}");
    Ok(())
}

#[tokio::test]
async fn an_expired_jwt_is_refused_as_expired() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    let forger = Forger::at(&enrolled.site)?;
    let (sub, now) = (enrolled.active.id.clone(), Timestamp::now().as_second());
    for exp in [now - 60, 0, -1, i64::MIN] {
        let claims = format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":{exp}}}"#);
        let jwt = forger.signed(&forger.header("RS256", ""), &claims)?;
        let refused = enrolled.connection.heartbeat_with_jwt(&jwt).await?;
        refused.assert(Code::Unauthenticated, "JWT_EXPIRED");
    }
    Ok(())
}

#[tokio::test]
async fn the_jwt_of_another_agent_is_useless_without_its_key() -> Result<()> {
    let mut enrolled = Enrolled::new().await?;
    let other = ActiveAgent::new(&enrolled.site, enrolled.instance.grpc, 2).await?;
    let thief = FakeAgent::on(machine(2))?;
    let mut thief = AgentConnection::open(&enrolled.instance, thief).await?;
    for connection in [&mut enrolled.connection, &mut thief] {
        let refused = connection.heartbeat_with_jwt(&other.jwt).await?;
        refused.assert(Code::Unauthenticated, "KEY_MISMATCH");
    }
    Ok(())
}

/// The JWTs are valid; the status of the agent refuses them.
#[tokio::test]
async fn only_an_active_agent_opens_a_stream() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let secret = token(&site, MANUAL).await?;
    let id = agent.register(instance.grpc, &secret).await?.agent_id;
    let jwt = site_key(&site)?.sign(&id, Timestamp::now())?.text;
    let mut connection = AgentConnection::open(&instance, agent).await?;
    let denied = |reason| Some((Code::PermissionDenied, reason));
    for (change, expected) in [
        ("SELECT", denied("AGENT_PENDING")),
        ("SELECT reject_agent(id, 'ann')", denied("AGENT_REJECTED")),
        ("SELECT reopen_agent(id, 'ann')", denied("AGENT_PENDING")),
        ("SELECT approve_agent(id, 'ann')", None),
        ("SELECT revoke_agent(id, 'ann')", denied("AGENT_REVOKED")),
        ("DELETE", Some((Code::NotFound, ""))),
    ] {
        site.psql(&format!("{change} FROM agents")).await?;
        let end = connection.heartbeat_with_jwt(&jwt).await?;
        match expected {
            Some(expected) => assert_eq!((end.code, end.reason.as_str()), expected, "{change}"),
            None => assert!(admitted(&end), "{change}: {end:?}"),
        }
    }
    Ok(())
}
