//! Splitting a connection string into keys and values.
//!
//! Both forms of libpq are accepted, a little more strictly. No error repeats a value, because
//! any part of a mistyped string may be the password.

use super::{DatabaseUrlError as Error, Result};

/// Keys and values in order. As in libpq, a later value replaces an earlier one, and an empty
/// value counts as missing.
#[derive(Default)]
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    pub(super) fn parse(text: &str) -> Result<Params> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::Empty);
        }
        let params = match text.split_once("://") {
            Some(("postgres" | "postgresql", rest)) => from_url(rest)?,
            Some((scheme, _)) if is_scheme(scheme) => {
                return Err(Error::Scheme(scheme.to_owned()));
            }
            _ if text.contains('=') => from_pairs(text)?,
            _ => return Err(Error::Form),
        };
        params.without_nul()
    }

    pub(super) fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(at).1)
    }

    pub(super) fn set(&mut self, key: &str, value: String) {
        self.take(key);
        if !value.is_empty() {
            self.0.push((key.to_owned(), value));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.iter().any(|(name, _)| name == key)
    }

    /// The parameters for one of several hosts alone.
    pub(super) fn of_host(&self, at: usize) -> Params {
        let mut alone = Params::default();
        for (key, value) in self.iter() {
            let listed = ["host", "hostaddr", "port"].contains(&key) && value.contains(',');
            let value = match listed {
                true => value.split(',').nth(at).unwrap_or_default(),
                false => value,
            };
            alone.set(key, value.to_owned());
        }
        alone
    }

    fn without_nul(self) -> Result<Params> {
        let nul = self.0.iter().find(|(_, value)| value.contains('\0'));
        match nul.map(|(key, _)| key.clone()) {
            Some(key) => Err(Error::Nul(key)),
            None => Ok(self),
        }
    }
}

fn is_scheme(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Parses `user:password@host:port,host:port/database?key=value&…`. A second `@`, or one after
/// the hosts, is an unescaped character of the password. It is an error, because the rest of
/// the password would be taken for a host and shown.
fn from_url(rest: &str) -> Result<Params> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if rest.matches('@').count() > 1 || tail.contains('@') {
        return Err(Error::Unescaped);
    }
    let mut params = Params::default();
    let (login, hosts) = match authority.split_once('@') {
        Some((login, hosts)) => (login, hosts),
        None => ("", authority),
    };
    url_login(&mut params, login)?;
    url_hosts(&mut params, hosts)?;
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let dbname = path.strip_prefix('/').unwrap_or_default();
    params.set("dbname", decode("dbname", dbname)?);
    url_query(&mut params, query)?;
    Ok(params)
}

fn url_login(params: &mut Params, login: &str) -> Result<()> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    params.set("user", decode("user", user)?);
    params.set("password", decode("password", password)?);
    Ok(())
}

fn url_hosts(params: &mut Params, hosts: &str) -> Result<()> {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = host_and_port(host)?;
        names.push(decode("host", name)?);
        ports.push(decode("port", port)?);
    }
    let joined = |parts: Vec<String>| match parts.iter().all(String::is_empty) {
        true => String::new(),
        false => parts.join(","),
    };
    params.set("host", joined(names));
    params.set("port", joined(ports));
    Ok(())
}

fn host_and_port(text: &str) -> Result<(&str, &str)> {
    let invalid = || Error::Invalid("host".to_owned());
    let Some(bracketed) = text.strip_prefix('[') else {
        return Ok(text.split_once(':').unwrap_or((text, "")));
    };
    let (host, rest) = bracketed.split_once(']').ok_or_else(invalid)?;
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, port)),
        None if rest.is_empty() => Ok((host, "")),
        None => Err(invalid()),
    }
}

fn url_query(params: &mut Params, query: &str) -> Result<()> {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(Error::Pair)?;
        let key = decode("a key", key)?;
        let value = decode(&key, value)?;
        params.set(&key, value);
    }
    Ok(())
}

/// Percent-decodes. A stray `%` is an error, because it usually belongs to a password that was
/// not encoded.
fn decode(key: &str, text: &str) -> Result<String> {
    let bad = || Error::Encoding(key.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let (digits, after) = escaped.split_at_checked(2).ok_or_else(bad)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Parses `key = value key='quoted \' value'`.
fn from_pairs(text: &str) -> Result<Params> {
    let mut params = Params::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or(Error::Pair)?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(Error::Pair);
        }
        let (value, after) = pair_value(after.trim_start())?;
        params.set(key, value);
        rest = after.trim_start();
    }
    Ok(params)
}

/// One value and the rest of the text. A backslash escapes the next character.
fn pair_value(text: &str) -> Result<(String, &str)> {
    let quoted = text.strip_prefix('\'');
    let body = quoted.unwrap_or(text);
    let mut value = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            '\'' if quoted.is_some() => return Ok((value, &body[at + 1..])),
            c if c.is_whitespace() && quoted.is_none() => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    match quoted {
        Some(_) => Err(Error::Quote),
        None => Ok((value, "")),
    }
}
