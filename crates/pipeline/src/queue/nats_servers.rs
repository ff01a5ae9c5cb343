//! The NATS servers and the credentials for them, as NATS users write them:
//! `nats://user:password@one:4222,nats://two:4222`, a token in place of user and password, and `tls://`
//! where TLS is required.

use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// Servers of one cluster, without the credentials that their URLs carried.
#[derive(Clone, Debug)]
pub struct NatsServers {
    pub urls: Vec<Url>,
    pub auth: Option<NatsAuth>,
}

#[derive(Clone, Debug)]
pub enum NatsAuth {
    Token(SecretString),
    Password {
        user: String,
        password: SecretString,
    },
}

const FORM: &str =
    "is none of memory:, nats://host:port and tls://host:port, several separated by commas";

impl NatsServers {
    /// Any of the URLs may carry credentials, but all that do must carry the same.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut urls, mut auth) = (Vec::new(), None);
        for part in text.split(',').map(str::trim) {
            let (url, given) = server(part, urls.first())?;
            urls.push(url);
            match (&auth, given) {
                (_, None) => {}
                (None, given) => auth = given,
                (Some(known), Some(given)) if known == &given => {}
                _ => return Err("gives different servers different credentials".into()),
            }
        }
        Ok(Self { urls, auth })
    }
}

/// Every server after the first may omit its scheme.
fn server(text: &str, first: Option<&Url>) -> Result<(Url, Option<NatsAuth>), String> {
    let whole = match first {
        Some(first) if !text.contains("://") => format!("{}://{text}", first.scheme()),
        _ => text.to_owned(),
    };
    let mut url = Url::parse(&whole).map_err(|_| FORM)?;
    let extra = !matches!(url.path(), "" | "/") || url.query().is_some();
    if !matches!(url.scheme(), "nats" | "tls") || !url.has_host() || extra {
        return Err(FORM.into());
    }
    let auth = auth(&url)?;
    let cleaned = url.set_password(None).and_then(|()| url.set_username(""));
    cleaned.map_err(|()| FORM)?;
    Ok((url, auth))
}

fn auth(url: &Url) -> Result<Option<NatsAuth>, String> {
    let user = decoded(url.username())?;
    Ok(match url.password() {
        Some(password) => Some(NatsAuth::Password {
            user,
            password: decoded(password)?.into(),
        }),
        None if user.is_empty() => None,
        None => Some(NatsAuth::Token(user.into())),
    })
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| "has credentials that are not UTF-8".into())
}

impl PartialEq for NatsAuth {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Token(one), Self::Token(two)) => one.expose_secret() == two.expose_secret(),
            (
                Self::Password { user, password },
                Self::Password {
                    user: others,
                    password: other,
                },
            ) => user == others && password.expose_secret() == other.expose_secret(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_taken_out_of_the_urls() {
        let servers = NatsServers::parse("nats://svc:p%40ss@one:4222, two:4223").unwrap();
        let urls: Vec<&str> = servers.urls.iter().map(Url::as_str).collect();
        assert_eq!(urls, ["nats://one:4222", "nats://two:4223"]);
        let expected = NatsAuth::Password {
            user: "svc".into(),
            password: "p@ss".into(),
        };
        assert_eq!(servers.auth.as_ref(), Some(&expected));
        assert!(!format!("{servers:?}").contains("p@ss"));
    }

    #[test]
    fn a_user_without_a_password_is_a_token() {
        let servers = NatsServers::parse("tls://s3cret@nats.example.com").unwrap();
        assert_eq!(servers.auth, Some(NatsAuth::Token("s3cret".into())));
        assert_eq!(servers.urls[0].as_str(), "tls://nats.example.com");
    }

    #[test]
    fn a_text_that_names_no_server_is_refused() {
        for text in [
            "nats://",
            "http://h",
            "nats://h/path",
            "nats://h,",
            "h:4222",
        ] {
            assert!(NatsServers::parse(text).is_err(), "{text}");
        }
        assert!(NatsServers::parse("nats://a:1@h,nats://a:2@i").is_err());
    }
}
