//! A third party that verifies agents' JWTs, as a web application does for its webhooks.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;

use crate::get;

/// It knows the instances' HTTP ports and nothing else. It keeps its copy of the JWKS document for a fixed time and
/// refuses a JWT of a key that is not in the copy: the strictest behaviour that the document's `max-age` allows.
#[derive(Debug)]
pub struct Verifier {
    addresses: Vec<SocketAddr>,
    cache: Duration,
    fetched_at: Option<Instant>,
    keys: BTreeMap<String, RsaPublicKeyComponents<Vec<u8>>>,
}

impl Verifier {
    pub fn new(addresses: &[SocketAddr], cache: Duration) -> Self {
        Self {
            addresses: addresses.to_vec(),
            cache,
            fetched_at: None,
            keys: BTreeMap::new(),
        }
    }

    /// Whether each of the JWTs has a valid signature.
    pub async fn verify(&mut self, jwts: &[String]) -> Result<Vec<bool>> {
        if self.fetched_at.is_none_or(|at| at.elapsed() > self.cache) {
            self.fetch().await?;
        }
        let verified = |jwt: &String| self.verified(jwt).is_some();
        Ok(jwts.iter().map(verified).collect())
    }

    /// Asks the instances in turn. One that restarts does not answer.
    async fn fetch(&mut self) -> Result<()> {
        self.addresses.rotate_left(1);
        for address in &self.addresses {
            let answer = get(*address, "/.well-known/jwks.json").await;
            if let Ok(answer) = answer
                && answer.status == 200
            {
                let document: Value = serde_json::from_str(&answer.body)?;
                let keys = document["keys"].as_array().context("no keys")?;
                self.keys = keys
                    .iter()
                    .map(key)
                    .collect::<Option<_>>()
                    .context("a bad key")?;
                self.fetched_at = Some(Instant::now());
                return Ok(());
            }
        }
        Ok(())
    }

    fn verified(&self, jwt: &str) -> Option<()> {
        let key = self.keys.get(&kid(jwt)?)?;
        let (signed, signature) = jwt.rsplit_once('.')?;
        let (algorithm, signature) = (&RSA_PKCS1_2048_8192_SHA256, decoded(signature)?);
        key.verify(algorithm, signed.as_bytes(), &signature).ok()
    }
}

/// The `kid` in the header of a JWT.
pub fn kid(jwt: &str) -> Option<String> {
    let header = decoded(jwt.split('.').next()?)?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    header["kid"].as_str().map(str::to_owned)
}

fn key(key: &Value) -> Option<(String, RsaPublicKeyComponents<Vec<u8>>)> {
    let (n, e) = (decoded(key["n"].as_str()?)?, decoded(key["e"].as_str()?)?);
    Some((
        key["kid"].as_str()?.to_owned(),
        RsaPublicKeyComponents { n, e },
    ))
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}
