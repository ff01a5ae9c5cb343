//! Conversion between generated messages and domain types. Every string, list and number from a client is
//! bounded here.

use jiff::Timestamp;
use svc_proto::{
    contract::limits::{MAX_LIST_ENTRIES, MAX_TEXT_BYTES},
    v1,
};
use svc_store::{AgentFacts, HostFacts};

use super::Refusal;
use crate::{enrol::identifiers, signing::Jwt};

/// The error names the field that is missing or out of bounds.
type Converted<T> = Result<T, Refusal>;

pub(super) fn host_facts(host: Option<v1::HostFacts>) -> Converted<HostFacts> {
    let Some(host) = host else {
        return malformed("host is missing");
    };
    for (name, value) in [
        ("hostname", &host.hostname),
        ("os", &host.os),
        ("os_version", &host.os_version),
        ("arch", &host.arch),
        ("kernel_version", &host.kernel_version),
        ("machine_id", &host.machine_id),
        ("hardware_uuid", &host.hardware_uuid),
        ("cloud_instance_id", &host.cloud_instance_id),
        ("boot_id", &host.boot_id),
    ] {
        text(name, value)?;
    }
    if host.hostname.trim().is_empty() {
        return malformed("hostname is missing");
    }
    list("mac_addresses", &host.mac_addresses)?;
    list("ip_addresses", &host.ip_addresses)?;
    let identifiers = identifiers(
        &host.cloud_instance_id,
        &host.hardware_uuid,
        &host.machine_id,
        &host.hostname,
        &host.mac_addresses,
    );
    Ok(HostFacts {
        memory_total_bytes: i64::try_from(host.memory_total_bytes)
            .or_else(|_| malformed("memory_total_bytes is beyond a signed 64-bit number"))?,
        cpu_count: i64::from(host.cpu_count),
        hostname: host.hostname,
        os: host.os,
        os_version: host.os_version,
        arch: host.arch,
        kernel_version: host.kernel_version,
        mac_addresses: host.mac_addresses,
        ip_addresses: host.ip_addresses,
        boot_id: host.boot_id,
        identifiers,
    })
}

/// An agent that sends no information about itself has an unknown version.
pub(super) fn agent_facts(agent: Option<v1::AgentInfo>) -> Converted<AgentFacts> {
    let agent = agent.unwrap_or_default();
    text("agent.version", &agent.version)?;
    list("agent.capabilities", &agent.capabilities)?;
    Ok(AgentFacts {
        version: agent.version,
        capabilities: agent.capabilities,
    })
}

/// Empty, or the SHA-256 of a key.
pub(super) fn successor_key(bytes: &[u8]) -> Converted<Option<[u8; 32]>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let key = bytes.try_into().map(Some);
    key.or_else(|_| malformed("successor_key is not of 32 bytes"))
}

/// PostgreSQL refuses NUL, and other control characters would garble a listing.
fn text(name: &str, value: &str) -> Converted<()> {
    if value.len() > MAX_TEXT_BYTES {
        return malformed(format!("{name} is longer than {MAX_TEXT_BYTES} bytes"));
    }
    if value.chars().any(char::is_control) {
        return malformed(format!("{name} holds a control character"));
    }
    Ok(())
}

fn list(name: &str, values: &[String]) -> Converted<()> {
    if values.len() > MAX_LIST_ENTRIES {
        return malformed(format!("{name} has more than {MAX_LIST_ENTRIES} entries"));
    }
    values.iter().try_for_each(|value| text(name, value))
}

pub(super) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.as_second(),
        nanos: at.subsec_nanosecond(),
    }
}

pub(super) fn credential(jwt: Jwt) -> v1::Credential {
    v1::Credential {
        expires_at: Some(timestamp(jwt.expires_at)),
        jwt: jwt.text,
    }
}

fn malformed<T>(what: impl Into<String>) -> Converted<T> {
    Err(Refusal::MalformedRequest(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut v1::HostFacts)) -> String {
        let mut host = v1::HostFacts {
            hostname: "web-1".into(),
            ..Default::default()
        };
        assert!(host_facts(Some(host.clone())).is_ok());
        change(&mut host);
        match host_facts(Some(host)) {
            Err(Refusal::MalformedRequest(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field_is_bounded_and_named() {
        assert_eq!(refused(|h| h.hostname.clear()), "hostname is missing");
        assert_eq!(refused(|h| h.hostname = " ".into()), "hostname is missing");
        let long = refused(|h| h.os = "x".repeat(256));
        assert_eq!(long, "os is longer than 255 bytes");
        let nul = refused(|h| h.boot_id = "a\0b".into());
        assert_eq!(nul, "boot_id holds a control character");
        let escape = refused(|h| h.arch = "a\x1b[31m".into());
        assert_eq!(escape, "arch holds a control character");
        let many = refused(|h| h.mac_addresses = vec![String::new(); 10_000]);
        assert_eq!(many, "mac_addresses has more than 64 entries");
        let long = refused(|h| h.ip_addresses = vec!["1".repeat(300)]);
        assert_eq!(long, "ip_addresses is longer than 255 bytes");
        let much = refused(|h| h.memory_total_bytes = u64::MAX);
        assert_eq!(much, "memory_total_bytes is beyond a signed 64-bit number");
    }

    #[test]
    fn a_successor_key_is_a_hash_or_nothing() {
        assert_eq!(successor_key(&[]), Ok(None));
        assert_eq!(successor_key(&[7; 32]), Ok(Some([7; 32])));
        assert!(successor_key(&[7; 31]).is_err());
        assert!(successor_key(&[7; 33]).is_err());
    }
}
