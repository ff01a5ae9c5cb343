//! The check of the server's certificate: its names, its end, and the private CA beside it.

use jiff::{SignedDuration, Timestamp};
use svc_common::tls::TlsPair;
use svc_front::listener::is_signed_by;

use super::{Finding, fail, ok, warn};

/// A certificate that expires sooner is a warning.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(24 * 21);

pub(super) fn check(pair: &TlsPair, now: Timestamp) -> Finding {
    let Some(facts) = pair.facts() else {
        return warn("its names and dates cannot be read");
    };
    if facts.names.is_empty() {
        return warn("it names no host (subjectAltName): agents will refuse it");
    }
    let names = facts.names.join(", ");
    if facts.expired(now) {
        return warn(format!(
            "for {names}: it ended on {}: replace the files, the service picks them up",
            facts.not_after
        ));
    }
    if let Some(fault) = check_issuer(pair, now) {
        return fail(format!("for {names}: {fault}"));
    }
    let left = facts.not_after.duration_since(now);
    let days = left.as_hours() / 24;
    let finding = format!("for {names}; key matches; {days} days left");
    match left >= EXPIRY_WARNING {
        true => ok(finding),
        false => warn(finding),
    }
}

/// `svc-ingest init` keeps the CA that hosts pin beside the certificate.
fn check_issuer(pair: &TlsPair, now: Timestamp) -> Option<String> {
    let ca = pair.certificate_file.with_file_name("ca.pem");
    let shown = ca.display();
    match ca.exists().then(|| is_signed_by(pair.chain(), &ca, now))? {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{shown} has not signed it: hosts that pin that CA refuse this service"
        )),
        Err(error) => Some(error.to_string()),
    }
}
