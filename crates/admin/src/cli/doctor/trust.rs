//! The check of the trust anchors: whether agents that have them believe the service as it is.

use jiff::Timestamp;
use svc_common::tls::TlsPair;
use svc_front::listener::is_trusted_by;
use svc_store::AnchorRecord;

use super::{Finding, ok, warn};

/// None where nobody has ever added an anchor, or the service's certificate is not known here.
pub(super) fn check(anchors: &[AnchorRecord], pair: Option<&TlsPair>) -> Option<Finding> {
    let used = anchors.iter().filter(|anchor| anchor.retired_at.is_none());
    let used: Vec<Vec<u8>> = used.map(|anchor| anchor.certificate.clone()).collect();
    let pair = pair.filter(|_| !used.is_empty())?;
    Some(match is_trusted_by(pair.chain(), &used, Timestamp::now()) {
        true => ok(format!(
            "{} in use, and they verify the certificate",
            used.len()
        )),
        false => warn(format!(
            "none of {} verifies the certificate: add the one that does (`svc-ingest trust add`)",
            used.len()
        )),
    })
}
