//! Between the messages about trust anchors and what the store knows of them.

use svc_proto::v1;
use svc_store::{TrustList, TrustReport};

use super::convert::{LONGEST_REASON, cut};

/// The most certificates that an agent states. Further ones count as if it did not trust them.
const MAX_ANCHORS: usize = 16;
const HASH_BYTES: usize = 32;

/// An agent must not lose its stream over what it says here: what is out of bounds is left out.
pub(super) fn report(state: v1::TrustState) -> TrustReport {
    let hashes = state.anchors.iter().filter(|hash| hash.len() == HASH_BYTES);
    let mut anchors: Vec<String> = hashes.take(MAX_ANCHORS).map(|hash| hex(hash)).collect();
    anchors.sort();
    anchors.dedup();
    TrustReport {
        anchors,
        problem: cut(&state.problem, LONGEST_REASON),
    }
}

pub(super) fn anchors(list: &TrustList) -> v1::TrustAnchors {
    v1::TrustAnchors {
        certificates: list.certificates.clone(),
        retired: list.retired.iter().map(|hash| unhex(hash)).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The database has nothing else than hexadecimal digits here.
fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len()).step_by(2);
    let pairs = pairs.filter_map(|at| text.get(at..at + 2));
    let bytes = pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok());
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_is_bounded_and_each_hash_is_there_once() {
        let hash = |byte: usize| vec![u8::try_from(byte).unwrap(); HASH_BYTES];
        let mut anchors: Vec<_> = (0..100).map(hash).collect();
        anchors[0] = vec![1; 31];
        anchors[1] = hash(3);
        let said = report(v1::TrustState {
            anchors,
            problem: format!("a\0{}", "é".repeat(300)),
        });
        assert_eq!(said.anchors.len(), 15, "{said:?}");
        assert_eq!(said.anchors.first(), Some(&"02".repeat(32)));
        assert!(said.problem.starts_with("aé") && said.problem.len() <= LONGEST_REASON);
    }

    #[test]
    fn a_retired_hash_is_sent_as_bytes() {
        let list = TrustList {
            retired: vec![hex(&[0, 171, 255])],
            ..TrustList::default()
        };
        assert_eq!(anchors(&list).retired, [vec![0, 171, 255]]);
    }
}
