//! Conversion between generated messages and domain types. Every string, list and number from a client is
//! bounded here.

use std::time::Duration;

use jiff::Timestamp;
use svc_proto::{
    contract::{
        CELLS,
        limits::{MAX_LIST_ENTRIES, MAX_SEQ, MAX_TEXT_BYTES},
    },
    v1,
};
use svc_store::{AgentFacts, CellRecord, HostFacts, SessionOpen, UpdateReport, UpdateStep};

use super::Refusal;
use crate::{enrol::identifiers, session::Offer, signing::Jwt};

/// The longest silence that an agent can announce. PostgreSQL has the same (`drain_longest()`).
const LONGEST_UPDATE: Duration = Duration::from_mins(15);
pub(super) const LONGEST_REASON: usize = 500;
const LONGEST_LOG: usize = 2048;

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

/// An agent that updates itself must not lose its stream over what it says about that, so texts are cut instead of refused. Of a
/// log the end matters, and its lines stay.
pub(super) fn update(update: v1::UpdateState) -> UpdateReport {
    let log = readable(&update.log_tail, true);
    let kept = log.len().saturating_sub(LONGEST_LOG);
    let start = (kept..=log.len()).find(|at| log.is_char_boundary(*at));
    UpdateReport {
        step: step(update.step()),
        serial: i64::try_from(update.serial).unwrap_or(i64::MAX),
        version: cut(&update.version, MAX_TEXT_BYTES),
        platform: cut(&update.platform, MAX_TEXT_BYTES),
        reason: cut(&update.reason, LONGEST_REASON),
        log_tail: log[start.unwrap_or(0)..].to_owned(),
    }
}

fn step(step: v1::UpdateStep) -> UpdateStep {
    match step {
        v1::UpdateStep::Unspecified => UpdateStep::None,
        v1::UpdateStep::Offered => UpdateStep::Offered,
        v1::UpdateStep::Downloading => UpdateStep::Downloading,
        v1::UpdateStep::Staged => UpdateStep::Staged,
        v1::UpdateStep::Trying => UpdateStep::Trying,
        v1::UpdateStep::Approved => UpdateStep::Approved,
        v1::UpdateStep::Refused => UpdateStep::Refused,
        v1::UpdateStep::Unable => UpdateStep::Unable,
    }
}

pub(super) fn cut(text: &str, longest: usize) -> String {
    let mut text = readable(text, false);
    text.truncate(text.floor_char_boundary(longest));
    text
}

/// What an agent says about cells becomes part of the opening of its session. Whether it knows how to move is one of its
/// capabilities, which cost nothing while they stay the same.
pub(super) fn cell(said: Option<&v1::CellState>, open: &mut SessionOpen) -> Converted<()> {
    open.capabilities.retain(|known| known != CELLS);
    let Some(said) = said else {
        return Ok(());
    };
    open.capabilities.push(CELLS.to_owned());
    if said.acked_elsewhere > MAX_SEQ {
        return malformed("cell.acked_elsewhere is no sequence number");
    }
    let elsewhere = said.acked_elsewhere.cast_signed();
    open.elsewhere = (elsewhere > 0).then_some(elsewhere);
    Ok(())
}

pub(super) fn problem(text: &str) -> String {
    cut(text, LONGEST_REASON)
}

pub(super) fn move_to(cell: &CellRecord) -> v1::Move {
    v1::Move {
        cell: cell.name.clone(),
        addresses: cell.addresses.clone(),
        certificates: cell.certificates.clone(),
    }
}

/// PostgreSQL refuses NUL, and other control characters would garble a listing.
fn readable(text: &str, lines: bool) -> String {
    let shown = |c: &char| !c.is_control() || (lines && *c == '\n');
    text.chars().filter(shown).collect()
}

/// The time that an agent needs for its restart, if it has announced one.
pub(super) fn back_within(time: Option<prost_types::Duration>) -> Option<Duration> {
    let time = Duration::try_from(time?).ok()?;
    (!time.is_zero()).then(|| time.min(LONGEST_UPDATE))
}

pub(super) fn offer(offer: &Offer, download_base_url: &str) -> v1::UpdateOffer {
    v1::UpdateOffer {
        manifest: offer.manifest.clone(),
        signature: offer.signature.clone(),
        download_base_url: base_url(download_base_url),
    }
}

pub(super) fn base_url(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
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
    fn what_an_agent_says_about_its_update_is_cut_to_size() {
        let said = update(v1::UpdateState {
            step: 99,
            serial: u64::MAX,
            reason: format!("a\0b\n{}", "é".repeat(300)),
            log_tail: format!("{}\nthe end\u{7}", "é".repeat(2000)),
            ..Default::default()
        });
        assert_eq!((said.step, said.serial), (UpdateStep::None, i64::MAX));
        assert!(said.reason.starts_with("abé") && said.reason.len() <= LONGEST_REASON);
        assert!(said.log_tail.ends_with("é\nthe end") && said.log_tail.len() <= LONGEST_LOG);
    }

    #[test]
    fn an_announced_silence_is_bounded() {
        let announced =
            |seconds, nanos| back_within(Some(prost_types::Duration { seconds, nanos }));
        assert_eq!(announced(60, 0), Some(Duration::from_mins(1)));
        assert_eq!(announced(1 << 40, 0), Some(LONGEST_UPDATE));
        for none in [announced(0, 0), announced(-5, 0), back_within(None)] {
            assert_eq!(none, None);
        }
    }

    #[test]
    fn a_successor_key_is_a_hash_or_nothing() {
        assert_eq!(successor_key(&[]), Ok(None));
        assert_eq!(successor_key(&[7; 32]), Ok(Some([7; 32])));
        assert!(successor_key(&[7; 31]).is_err());
        assert!(successor_key(&[7; 33]).is_err());
    }
}
