//! Valid connection strings, and typical mistakes.

use tokio_postgres::config::SslMode as DriverSslMode;

use super::ssl::check;
use super::*;
use crate::pg::tls::{Check, Roots};

fn parse(text: &str) -> DatabaseUrl {
    DatabaseUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    match DatabaseUrl::parse(text) {
        Ok(url) => panic!("{text} was accepted as {url:?}"),
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
    }
}

#[test]
fn a_host_of_several_gets_less_time_to_answer() {
    let timeout = |text| parse(text).connect_timeout();
    let hosts = "postgres://svc@one,two/fleet";
    assert_eq!(timeout(hosts), Duration::from_secs(2));
    let given = "postgres://svc@one,two/fleet?connect_timeout=7";
    assert_eq!(timeout(given), Duration::from_secs(7));
}

#[test]
fn a_plain_url_gets_our_defaults() {
    let url = parse("postgres://svc:secret@db.example:6432/fleet");
    let config = &url.config;
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(5)));
    let timeout = Duration::from_secs(15);
    assert_eq!(config.get_tcp_user_timeout(), Some(&timeout));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(10));
    assert!(config.get_keepalives());
    assert_eq!(config.get_application_name(), Some("svc-ingest"));
    assert_eq!(config.get_password(), Some(&b"secret"[..]));
    assert_eq!(config.get_ssl_mode(), DriverSslMode::Prefer);
    let shown = "postgres://svc:***@db.example:6432/fleet?sslmode=prefer";
    assert_eq!(url.redacted(), shown);
}

#[test]
fn given_values_override_our_defaults() {
    let url = parse(
        "postgresql://h/d?application_name=mine&connect_timeout=9&tcp_user_timeout=2500\
         &keepalives_idle=60&keepalives_count=7&target_session_attrs=primary",
    );
    let config = &url.config;
    assert_eq!(config.get_application_name(), Some("mine"));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(9)));
    let timeout = Duration::from_millis(2500);
    assert_eq!(config.get_tcp_user_timeout(), Some(&timeout));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
    assert_eq!(config.get_keepalives_retries(), Some(7));
}

/// Lines of a text and what becomes of it.
fn cases(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.trim().split_once(" -> ").unwrap())
}

/// An address alone is also the name for TLS. A later value wins.
#[test]
fn a_url_is_shown_as_it_was_understood() {
    for (text, shown) in cases(
        "
        postgres://u@one:1,two,[::1]:3/d -> postgres://u@one:1,two:5432,[::1]:3/d?sslmode=prefer
        host=one,two port=5433 hostaddr=10.0.0.1,10.0.0.2 dbname=d -> postgres://one:5433,two:5433/d?sslmode=prefer
        hostaddr=10.0.0.1 dbname=d sslmode=require -> postgres://10.0.0.1:5432/d?sslmode=require
        postgres://u@%2Frun%2Fpg/d?sslmode=require -> postgres://u@%2Frun%2Fpg:5432/d?sslmode=require
        postgres://u@h/d?dbname=other&sslmode=disable -> postgres://u@h:5432/other?sslmode=disable",
    ) {
        assert_eq!(parse(text).redacted(), shown);
        assert_eq!(parse(&format!(" {text}\n")).redacted(), shown);
    }
}

#[test]
fn a_unix_socket_never_uses_tls() {
    for text in [
        "postgres://u@%2Frun%2Fpg/d?sslmode=require",
        "postgres:///d?host=/run/pg&user=u",
    ] {
        let config = parse(text).config;
        assert_eq!(config.get_ssl_mode(), DriverSslMode::Disable);
        assert_eq!(config.get_hosts(), [Host::Unix("/run/pg".into())]);
    }
}

#[test]
fn passwords_with_special_characters_are_kept() {
    let password = |text: &str| parse(text).config.get_password().map(<[u8]>::to_vec);
    let whole = Some(b"p@s/s w'o\\r%d".to_vec());
    for text in [
        "postgres://u:p%40s%2Fs%20w'o\\r%25d@h/d",
        "host=h password = 'p@s/s w\\'o\\\\r%d' user=u",
        "postgres://h/d?password=p%40s%2Fs%20w'o%5Cr%25d",
    ] {
        assert_eq!(password(text), whole, "{text}");
    }
    assert_eq!(password("postgres://u:@h/d"), None);
}

#[test]
fn every_sslmode_is_parsed() {
    for (text, mode, driver) in [
        ("disable", SslMode::Disable, DriverSslMode::Disable),
        ("allow", SslMode::Allow, DriverSslMode::Prefer),
        ("prefer", SslMode::Prefer, DriverSslMode::Prefer),
        ("require", SslMode::Require, DriverSslMode::Require),
    ] {
        let url = parse(&format!("postgres://u@h/d?sslmode={text}"));
        assert_eq!((url.mode, url.config.get_ssl_mode()), (mode, driver));
    }
}

#[test]
fn mode_and_sslrootcert_decide_what_is_verified() {
    let roots = || Some(Roots::File("root.crt".into()));
    let checked = |mode, roots| check(mode, roots).unwrap();
    assert!(matches!(checked(SslMode::Require, None), Check::Nothing));
    assert!(matches!(checked(SslMode::Prefer, roots()), Check::Nothing));
    for mode in [SslMode::Require, SslMode::VerifyCa] {
        assert!(matches!(checked(mode, roots()), Check::Chain(_)));
    }
    let full = checked(SslMode::VerifyFull, Some(Roots::System));
    assert!(matches!(full, Check::ChainAndName(Roots::System)));
}

#[test]
fn an_error_names_the_missing_file() {
    for (text, reason) in cases(
        "
        postgres://u@h/d?sslmode=verify-full&sslrootcert=/nowhere/root.crt -> cannot read sslrootcert /nowhere/root.crt
        postgres://u@h/d?sslmode=verify-ca&sslrootcert=/dev/null -> sslrootcert /dev/null contains no certificate",
    ) {
        let text = error(text);
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn some_parameters_are_ignored_and_unknown_ones_are_named() {
    parse("postgres://u@h/d?gssencmode=disable&sslcompression=0&sslsni=1&channel_binding=prefer");
    for key in ["sslmod", "sslcrl", "passfile", "require_auth", "service"] {
        let refused = error(&format!("postgres://u@h/d?{key}=x"));
        assert_eq!(refused, format!("the parameter {key} is not supported"));
    }
}

#[test]
fn an_error_names_the_mistake() {
    assert_eq!(error(""), "the value is empty");
    assert_eq!(error("  \n"), "the value is empty");
    for (text, mistake) in cases(
        "
        mysql://u:p@h/d?a=b -> the scheme is mysql://, not postgres:// or postgresql://
        localhost -> the value is neither a postgres:// URL nor a list of key=value pairs
        postgres:/h -> the value is neither a postgres:// URL nor a list of key=value pairs
        postgres:// -> a host name is missing
        postgres:///d -> a host name is missing
        postgres://u@one,,two/d -> a host name is missing
        postgres://u@h:0/d -> the value of port is not valid
        postgres://u@h:65536/d -> the value of port is not valid
        postgres://u@h:-1/d -> the value of port is not valid
        postgres://u@h:5432x/d -> the value of port is not valid
        host=a,b,c port=1,2 -> the numbers of hosts, addresses and ports do not match
        host=a,b hostaddr=10.0.0.1 -> the numbers of hosts, addresses and ports do not match
        postgres://[::1/d -> the value of host is not valid
        host=h user='u -> a quote is not closed
        postgres://h/d?sslmode -> a key has no value
        postgres://u@h/d?sslmode=verify -> the value of sslmode is not valid
        postgres://u@h/d?sslrootcert=system&sslmode=require -> sslrootcert=system needs sslmode=verify-full, not require
        postgres://u@h/d?sslcert=/nowhere/c.crt -> sslcert and sslkey must both be set, and one is missing
        postgres://h/%zz -> dbname is not valid percent-encoded UTF-8
        postgres://h/%ff -> dbname is not valid percent-encoded UTF-8
        postgres://h/a%00b -> dbname contains a NUL character",
    ) {
        assert_eq!(error(text), mistake, "{text}");
    }
}

#[test]
fn no_error_contains_a_part_of_the_password() {
    let mistakes = [
        "postgres://u:hun@ter2@h/d",
        "postgres://u:hun/ter2@h/d",
        "postgres://u:hun?ter2@h/d",
        "postgres://u:hun?ter2=x@h/d",
        "postgres://u:hun%ter2@h/d",
        "postgres://u:hun%00ter2@h/d",
        "postgres://u:hun,ter2@h:hun/d",
        "postgres://h/d?password=hun&ter2=x",
        "host=h password=hun ter2",
        "host=h password=hun ter2=",
        "host=h password=hun ter2=x",
        "host=h password='hun'ter2=x",
        "host=h password='hunter2",
        "mysql://u:hunter2@h/d",
        "postgres//u:hunter2@h/d",
    ];
    for text in mistakes {
        let error = DatabaseUrl::parse(text).err();
        let shown = format!("{error:?} {:?}", error.as_ref().map(ToString::to_string));
        let leaks = shown.contains("hun") || shown.contains("ter2");
        assert!(!leaks, "{text}: {shown}");
    }
    let url = parse("postgres://u:hunter2@h/d");
    assert!(!format!("{url:?} {}", url.redacted()).contains("hunter2"));
}
