//! JWTs that open no heartbeat stream.

use anyhow::{Context, Result};
use aws_lc_rs::{
    encoding::{AsDer, PublicKeyX509Der},
    hmac,
    rand::SystemRandom,
    rsa::KeyPair,
    signature::{KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256, RsaEncoding},
};
use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
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

    /// The public key in the forms that a verifier might use as an HMAC secret.
    fn public_keys(&self) -> Result<[Vec<u8>; 3]> {
        let public = self.pair.public_key();
        let spki: PublicKeyX509Der<'_> = public.as_der()?;
        let lines = BASE64_STANDARD.encode(spki.as_ref());
        let lines: Vec<&str> = lines
            .as_bytes()
            .chunks(64)
            .map(std::str::from_utf8)
            .collect::<Result<_, _>>()?;
        let pem = format!(
            "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
            lines.join("\n")
        );
        Ok([
            pem.into_bytes(),
            spki.as_ref().to_vec(),
            public.as_ref().to_vec(),
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

fn with_hmac(key: &[u8], header: &str, claims: &str) -> String {
    let text = unsigned(header, claims);
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    joined(&text, hmac::sign(&key, text.as_bytes()).as_ref())
}

/// Other algorithms than RS256.
fn by_other_algorithms(forger: &Forger, claims: &str) -> Result<Vec<String>> {
    let none = forger.header("none", "");
    let mut tokens = vec![
        format!("{}.", unsigned(&none, claims)),
        forger.signed(&none, claims)?,
        forger.signed(&forger.header("NONE", ""), claims)?,
        forger.signed(&forger.header("rs256", ""), claims)?,
        forger.signed_by(&RSA_PKCS1_SHA384, &forger.header("RS384", ""), claims)?,
        forger.signed_by(&RSA_PSS_SHA256, &forger.header("PS256", ""), claims)?,
        forger.signed_by(&RSA_PSS_SHA256, &forger.header("RS256", ""), claims)?,
    ];
    for key in forger.public_keys()? {
        tokens.push(with_hmac(&key, &forger.header("HS256", ""), claims));
        tokens.push(with_hmac(&key, &forger.header("RS256", ""), claims));
    }
    Ok(tokens)
}

/// Headers that name another key, or where to find one.
fn with_other_headers(forger: &Forger, claims: &str) -> Result<Vec<String>> {
    let jwk = r#","jwk":{"kty":"RSA","n":"AQAB","e":"AQAB"}"#;
    let headers = [
        forger.header("RS256", r#","jku":"https://evil.example/jwks.json""#),
        forger.header("RS256", jwk),
        forger.header("RS256", r#","x5u":"https://evil.example/x.pem""#),
        forger.header("RS256", r#","crit":["exp"]"#),
        forger.header("RS256", r#","alg":"none""#),
        r#"{"alg":"RS256","typ":"JWT","kid":"../../etc/passwd"}"#.to_owned(),
        r#"{"alg":"RS256","typ":"JWT","kid":"' OR 1=1 --"}"#.to_owned(),
        r#"{"alg":"RS256","typ":"JWT"}"#.to_owned(),
        format!(
            r#"{{"alg":"RS256","typ":"JWT","kid":"{}"}}"#,
            "k".repeat(4000)
        ),
    ];
    headers
        .iter()
        .map(|header| forger.signed(header, claims))
        .collect()
}

/// Other claims than the service issues, with a valid signature.
fn with_other_claims(forger: &Forger, sub: &str, exp: i64) -> Result<Vec<String>> {
    let claims = [
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest"}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":"{exp}"}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":9223372036854775808}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":{exp}.5}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":null}}"#),
        format!(r#"{{"sub":"{sub}","iss":"another","exp":{exp}}}"#),
        format!(r#"{{"sub":"{sub}","iss":["svc-ingest"],"exp":{exp}}}"#),
        format!(r#"{{"sub":"{sub}","exp":{exp}}}"#),
        format!(r#"{{"iss":"svc-ingest","exp":{exp}}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":1,"exp":{exp}}}"#),
        format!(r#"{{"sub":"nobody","sub":"{sub}","iss":"svc-ingest","exp":{exp}}}"#),
        format!(r#"{{"sub":"{sub}","iss":"svc-ingest","exp":{exp},"admin":true}}"#),
        format!(r#"{{"sub":"' OR 1=1 --","iss":"svc-ingest","exp":{exp}}}"#),
        format!(r#"{{"sub":["{sub}"],"iss":"svc-ingest","exp":{exp}}}"#),
        "[]".to_owned(),
    ];
    let header = forger.header("RS256", "");
    claims
        .iter()
        .map(|claims| forger.signed(&header, claims))
        .collect()
}

/// A valid JWT in another form.
fn of_other_forms(good: &str) -> Vec<String> {
    let parts: Vec<&str> = good.split('.').collect();
    let (header, claims, signature) = (parts[0], parts[1], parts[2]);
    vec![
        String::new(),
        "..".to_owned(),
        format!("{header}.{claims}"),
        format!("{header}.{claims}."),
        format!("{header}.{claims}.{signature}.{signature}"),
        format!("{header}.{claims}.{signature}=="),
        format!("{header}=.{claims}.{signature}"),
        format!("{header}.{signature}.{claims}"),
        format!("{header}.{claims} .{signature}"),
        format!(" {good}"),
        good.replace('.', ","),
    ]
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
    let forged = [
        by_other_algorithms(&forger, &claims)?,
        with_other_headers(&forger, &claims)?,
        with_other_claims(&forger, &sub, exp)?,
        of_other_forms(&enrolled.active.jwt),
        vec![foreign.sign(&sub, Timestamp::now())?.text],
    ];
    let mut messages = std::collections::BTreeSet::new();
    for jwt in forged.concat() {
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
