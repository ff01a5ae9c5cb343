//! The cell that an agent was told to live in: where it is, and what verifies it. It is kept in the state file, beside the JWT
//! that belongs to it.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use svc_proto::v1::Move;
use webpki::anchor_from_trusted_cert;

use crate::wire::Address;

const MOST_ADDRESSES: usize = 16;
const MOST_CERTIFICATES: usize = 16;
const LONGEST_NAME: usize = 63;
const LONGEST_ADDRESS: usize = 255;
/// Of all certificates together.
const MOST_BYTES: usize = 32 * 1024;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub name: String,
    addresses: Vec<String>,
    /// DER in base64.
    certificates: Vec<String>,
}

impl Cell {
    /// The cell that a service names. The error is for people.
    pub fn named(order: &Move) -> Result<Self, String> {
        let size: usize = order.certificates.iter().map(Vec::len).sum();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if order.cell.is_empty()
            || order.cell.len() > LONGEST_NAME
            || !order.cell.chars().all(is_name)
        {
            return Err("the name of the cell is not of a name's form".into());
        }
        if order.addresses.is_empty()
            || order.addresses.len() > MOST_ADDRESSES
            || order.addresses.iter().any(|a| a.len() > LONGEST_ADDRESS)
            || order.certificates.len() > MOST_CERTIFICATES
            || size > MOST_BYTES
        {
            return Err("the cell has no address, or too many addresses or certificates".into());
        }
        let encode = |der: &Vec<u8>| BASE64_STANDARD.encode(der);
        let cell = Self {
            name: order.cell.clone(),
            addresses: order.addresses.clone(),
            certificates: order.certificates.iter().map(encode).collect(),
        };
        cell.addresses()?;
        match cell.certificates().iter().all(is_anchor) {
            true => Ok(cell),
            false => Err("a certificate of the cell cannot be read".into()),
        }
    }

    pub fn addresses(&self) -> Result<Vec<Address>, String> {
        self.addresses.iter().map(|text| text.parse()).collect()
    }

    /// The certificates that verify it, besides those that the agent trusts anyway.
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let decode = |text: &String| BASE64_STANDARD.decode(text).ok().map(Into::into);
        self.certificates.iter().filter_map(decode).collect()
    }
}

fn is_anchor(certificate: &CertificateDer<'static>) -> bool {
    anchor_from_trusted_cert(certificate).is_ok()
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = &self.addresses;
        write!(f, "cell {} at {addresses:?}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(cell: &str, addresses: &[&str], certificates: &[&[u8]]) -> Move {
        Move {
            cell: cell.into(),
            addresses: addresses.iter().map(|&address| address.into()).collect(),
            certificates: certificates.iter().map(|&der| der.into()).collect(),
        }
    }

    #[test]
    fn a_cell_has_a_name_addresses_and_certificates_that_can_be_used() {
        let good = Cell::named(&order("b-2", &["b.example:443", "::1"], &[])).unwrap();
        let shown: Vec<String> = good
            .addresses()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, ["b.example:443", "[::1]:9443"]);
        let kept: Cell = serde_json::from_str(&serde_json::to_string(&good).unwrap()).unwrap();
        assert_eq!(kept, good);
        for bad in [
            order("", &["b"], &[]),
            order("B", &["b"], &[]),
            order("b\n", &["b"], &[]),
            order(&"b".repeat(64), &["b"], &[]),
            order("b", &[], &[]),
            order("b", &["b"; 17], &[]),
            order("b", &["b:0"], &[]),
            order("b", &["b"], &[b"no certificate"]),
            order("b", &["b"], &[&[0; 40_000]]),
        ] {
            assert!(Cell::named(&bad).is_err(), "{bad:?}");
        }
    }
}
