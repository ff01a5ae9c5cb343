//! The identifiers that a machine is recognised by: normalised, and without values that many machines share.
//!
//! They come from the agent's facts, which are claims. An identifier never proves who a client is (its key does); it
//! only selects the host record that the key's agent belongs to.

use svc_store::{IdentifierKind, Identifiers};

/// Hardware UUIDs that vendors ship by default or by mistake.
const JUNK_UUIDS: [&str; 6] = [
    "03000200040005000006000700080009",
    "00020003000400050006000700080009",
    "12345678123456789abccddeefaabbcc",
    "123456781234567890abcddeefaabbcc",
    "12345678123412341234123456789abc",
    "0123456789abcdef0123456789abcdef",
];
const JUNK_HOSTNAMES: [&str; 5] = [
    "localhost",
    "localhost.localdomain",
    "localhost6",
    "debian",
    "ubuntu",
];

/// The identifiers among an agent's facts.
pub fn identifiers(
    cloud_instance_id: &str,
    hardware_uuid: &str,
    machine_id: &str,
    hostname: &str,
    mac_addresses: &[String],
) -> Identifiers {
    use IdentifierKind::{Cloud, Hardware, Machine, Network};
    let all = [
        (Cloud, Vec::from_iter(cloud(cloud_instance_id))),
        (Hardware, Vec::from_iter(hex_id(hardware_uuid))),
        (Machine, Vec::from_iter(hex_id(machine_id))),
        (Network, network(hostname, mac_addresses)),
    ];
    let known = all.into_iter().filter(|(_, values)| !values.is_empty());
    known.collect()
}

/// `provider/id`, neither of them empty.
fn cloud(text: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    let (provider, id) = text.split_once('/')?;
    (!provider.is_empty() && !id.is_empty() && !is_one_character(id)).then(|| text.clone())
}

/// 128 bits in hexadecimal, with or without dashes: the form of hardware UUIDs and of machine ids.
fn hex_id(text: &str) -> Option<String> {
    let digits = text.trim().to_lowercase().replace('-', "");
    let well_formed = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    (well_formed && !is_junk(&digits)).then_some(digits)
}

/// Whether the value is one pair of digits repeated (all zeros, all Fs, `fefe…`), or a known default.
fn is_junk(digits: &str) -> bool {
    let repeats = digits
        .as_bytes()
        .chunks(2)
        .all(|pair| pair == &digits.as_bytes()[..2]);
    repeats || JUNK_UUIDS.contains(&digits)
}

fn is_one_character(text: &str) -> bool {
    text.bytes()
        .all(|byte| Some(&byte) == text.as_bytes().first())
}

/// The host's name with each of its universally administered MAC addresses. Hypervisors, bridges and privacy settings
/// make up the locally administered ones, so these identify nothing.
fn network(hostname: &str, mac_addresses: &[String]) -> Vec<String> {
    let hostname = hostname.trim().to_lowercase();
    if hostname.is_empty() || JUNK_HOSTNAMES.contains(&hostname.as_str()) {
        return Vec::new();
    }
    let mut values: Vec<String> = mac_addresses
        .iter()
        .filter_map(|text| universal_mac(text))
        .map(|mac| format!("{hostname}/{mac}"))
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn universal_mac(text: &str) -> Option<String> {
    let octet = |text: &str| match text.len() {
        2 => u8::from_str_radix(text, 16).ok(),
        _ => None,
    };
    let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
    let [a, b, c, d, e, f] = <[u8; 6]>::try_from(octets?).ok()?;
    let group_or_local = a & 0b11 != 0;
    let known = !group_or_local && [a, b, c, d, e, f] != [0; 6];
    known.then(|| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(
        cloud: &str,
        hardware: &str,
        machine: &str,
        hostname: &str,
        macs: &[&str],
    ) -> Identifiers {
        let macs: Vec<String> = macs.iter().map(|mac| (*mac).to_owned()).collect();
        identifiers(cloud, hardware, machine, hostname, &macs)
    }

    const HARDWARE: &str = "4C4C4544-0042-3510-8054-B7C04F563232";
    const MACHINE: &str = "b0b1b2b3b4b5b6b7b8b9babbbcbdbebf";

    #[test]
    fn values_are_normalised() {
        let found = of(
            "AWS/i-0AB",
            HARDWARE,
            MACHINE,
            "Web-1",
            &["00-1B-21-AA-BB-CC", "00:1b:21:aa:bb:cc"],
        );
        assert_eq!(found[&IdentifierKind::Cloud], ["aws/i-0ab"]);
        assert_eq!(
            found[&IdentifierKind::Hardware],
            ["4c4c4544004235108054b7c04f563232"]
        );
        assert_eq!(found[&IdentifierKind::Machine], [MACHINE]);
        assert_eq!(found[&IdentifierKind::Network], ["web-1/00:1b:21:aa:bb:cc"]);
    }

    #[test]
    fn shared_and_malformed_values_are_no_identifiers() {
        for hardware in [
            "",
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "Not Settable",
            "03000200-0400-0500-0006-000700080009",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "To be filled by O.E.M.",
        ] {
            assert!(of("", hardware, hardware, "", &[]).is_empty(), "{hardware}");
        }
        for cloud in ["", "aws", "aws/", "/i-1", "gcp/000000"] {
            assert!(of(cloud, "", "", "", &[]).is_empty(), "{cloud}");
        }
        for mac in [
            "02:42:ac:11:00:02",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "00:1b:21",
            "zz:1b:21:aa:bb:cc",
            "",
        ] {
            assert!(of("", "", "", "web-1", &[mac]).is_empty(), "{mac}");
        }
        assert!(of("", "", "", "localhost", &["00:1b:21:aa:bb:cc"]).is_empty());
    }

    proptest! {
        #[test]
        fn no_facts_make_it_panic(a in ".*", b in ".*", c in ".*", d in ".*", mac in ".*") {
            identifiers(&a, &b, &c, &d, &[mac]);
        }
    }
}
