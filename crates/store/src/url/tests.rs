//! Valid connection strings, and typical mistakes.

use tokio_postgres::config::SslMode as DriverSslMode;

use super::ssl::check;
use super::*;
use crate::tls::{Check, Roots};

fn parse(text: &str) -> DatabaseUrl {
    DatabaseUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn redacted(text: &str) -> String {
    parse(text).redacted()
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

#[test]
fn several_hosts_addresses_and_sockets_are_kept() {
    let url = redacted("postgres://u@one:1,two,[::1]:3/d");
    assert_eq!(url, "postgres://u@one:1,two:5432,[::1]:3/d?sslmode=prefer");
    let url = redacted("host=one,two port=5433 hostaddr=10.0.0.1,10.0.0.2 dbname=d");
    assert_eq!(url, "postgres://one:5433,two:5433/d?sslmode=prefer");
}

#[test]
fn an_address_alone_is_also_the_name_for_tls() {
    let url = parse("hostaddr=10.0.0.1 dbname=d sslmode=require");
    assert_eq!(url.config.get_hosts(), [Host::Tcp("10.0.0.1".to_owned())]);
}

#[test]
fn a_unix_socket_never_uses_tls() {
    let url = parse("postgres://u@%2Frun%2Fpg/d?sslmode=require");
    assert_eq!(url.config.get_ssl_mode(), DriverSslMode::Disable);
    let shown = "postgres://u@%2Frun%2Fpg:5432/d?sslmode=require";
    assert_eq!(url.redacted(), shown);
    let url = parse("postgres:///d?host=/run/pg&user=u");
    assert_eq!(url.config.get_hosts(), [Host::Unix("/run/pg".into())]);
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
fn a_later_value_wins_and_surrounding_white_space_is_ignored() {
    let url = redacted(" postgres://u@h/d?dbname=other&sslmode=disable\n");
    assert_eq!(url, "postgres://u@h:5432/other?sslmode=disable");
}

#[test]
fn every_sslmode_is_parsed() {
    let mode = |mode: &str| {
        let url = parse(&format!("postgres://u@h/d?sslmode={mode}"));
        (url.mode, url.config.get_ssl_mode())
    };
    assert_eq!(mode("disable"), (SslMode::Disable, DriverSslMode::Disable));
    assert_eq!(mode("allow"), (SslMode::Allow, DriverSslMode::Prefer));
    assert_eq!(mode("prefer"), (SslMode::Prefer, DriverSslMode::Prefer));
    assert_eq!(mode("require"), (SslMode::Require, DriverSslMode::Require));
    let unknown = error("postgres://u@h/d?sslmode=verify");
    assert_eq!(unknown, "the value of sslmode is not valid");
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
fn the_system_roots_require_verify_full() {
    let weak = error("postgres://u@h/d?sslrootcert=system&sslmode=require");
    let reason = "sslrootcert=system needs sslmode=verify-full, not require";
    assert_eq!(weak, reason);
}

#[test]
fn an_error_names_the_missing_file() {
    let text = error("postgres://u@h/d?sslmode=verify-full&sslrootcert=/nowhere/root.crt");
    let reason = "cannot read sslrootcert /nowhere/root.crt";
    assert!(text.contains(reason), "{text}");
    let text = error("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/dev/null");
    let reason = "sslrootcert /dev/null contains no certificate";
    assert!(text.contains(reason), "{text}");
    let reason = "sslcert and sslkey must both be set, and one is missing";
    assert_eq!(error("postgres://u@h/d?sslcert=/nowhere/c.crt"), reason);
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
    let scheme = "the scheme is mysql://, not postgres:// or postgresql://";
    assert_eq!(error("mysql://u:p@h/d?a=b"), scheme);
    let form = "the value is neither a postgres:// URL nor a list of key=value pairs";
    assert_eq!(error("localhost"), form);
    assert_eq!(error("postgres:/h"), form);
    assert_eq!(error("postgres://"), "a host name is missing");
    assert_eq!(error("postgres:///d"), "a host name is missing");
    assert_eq!(error("postgres://u@one,,two/d"), "a host name is missing");
    for port in ["0", "65536", "-1", "5432x"] {
        let text = error(&format!("postgres://u@h:{port}/d"));
        assert_eq!(text, "the value of port is not valid");
    }
    let count = "the numbers of hosts, addresses and ports do not match";
    assert_eq!(error("host=a,b,c port=1,2"), count);
    assert_eq!(error("host=a,b hostaddr=10.0.0.1"), count);
    assert_eq!(error("postgres://[::1/d"), "the value of host is not valid");
    assert_eq!(error("host=h user='u"), "a quote is not closed");
    assert_eq!(error("postgres://h/d?sslmode"), "a key has no value");
    let encoding = "dbname is not valid percent-encoded UTF-8";
    assert_eq!(error("postgres://h/%zz"), encoding);
    assert_eq!(error("postgres://h/%ff"), encoding);
    let nul = "dbname contains a NUL character";
    assert_eq!(error("postgres://h/a%00b"), nul);
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
