//! Connection strings of an installation: what they say, and how the service's follows from the administrator's.

use anyhow::Context;
use rand::distr::{Alphanumeric, SampleString};
use url::Url;

use super::peer::Login;
use crate::cli::Usage;

const PASSWORD_LENGTH: usize = 32;

/// Role and password of a connection string.
pub fn login_of(url: &Url) -> anyhow::Result<Login> {
    Ok(Login {
        role: decoded(url.username())?,
        password: decoded(url.password().unwrap_or_default())?,
        new: false,
        ours: false,
    })
}

/// The administrator's connection string with another role and database. Over a Unix socket most servers accept no
/// password, so the service connects to the same server over TCP.
pub fn service_url(
    admin_url: &str,
    role: &str,
    password: &str,
    database: &str,
) -> anyhow::Result<String> {
    let form = "the administrator's connection string must have the form postgres://ROLE@HOST/DATABASE, with one host";
    let mut url = Url::parse(admin_url).map_err(|_| Usage(form.into()))?;
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    let in_query = url
        .query_pairs()
        .any(|(name, _)| matches!(&*name, "host" | "user" | "dbname"));
    if host.is_empty() || in_query {
        return Err(Usage(form.into()).into());
    }
    if host.starts_with("%2f") {
        url.set_host(Some("127.0.0.1"))?;
    }
    let set = url
        .set_username(role)
        .and_then(|()| url.set_password(Some(password)));
    set.map_err(|()| Usage(form.into()))?;
    url.set_path(database);
    Ok(url.into())
}

pub fn new_password() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), PASSWORD_LENGTH)
}

pub fn decoded(text: &str) -> anyhow::Result<String> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    Ok(text.context("DATABASE_URL is not UTF-8")?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_gets_the_administrators_server() {
        for (admin, wanted) in [
            (
                "postgres://postgres@%2Fvar%2Frun%2Fpostgresql/postgres",
                "postgres://svc:pw@127.0.0.1/svc",
            ),
            (
                "postgresql://root:secret@db.example:5433/postgres?sslmode=verify-full",
                "postgresql://svc:pw@db.example:5433/svc?sslmode=verify-full",
            ),
        ] {
            assert_eq!(service_url(admin, "svc", "pw", "svc").unwrap(), wanted);
        }
        for admin in [
            "host=db user=root",
            "postgres:///svc",
            "postgres://a,b/c?host=/tmp",
        ] {
            assert!(service_url(admin, "svc", "pw", "svc").is_err(), "{admin}");
        }
    }
}
