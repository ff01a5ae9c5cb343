//! Two cells: sites with databases of their own, between which a person moves agents.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use svc_store::{Arrived, Labels, MoveFilter};

use crate::Site;

/// A share of all agents, in percent.
pub fn share(share: u8) -> MoveFilter {
    MoveFilter {
        labels: Labels::default(),
        agent: None,
        share,
    }
}

/// Names the cell `there` in the cell `here`, with the certificate of its instances.
pub async fn name_cell(
    here: &Site,
    name: &str,
    there: &Site,
    address: SocketAddr,
) -> anyhow::Result<()> {
    let certificate = CertificateDer::from_pem_file(there.path("server.crt"))?;
    let certificates = [certificate.as_ref().to_vec()];
    let store = here.store()?;
    store
        .cell_put(name, &[address.to_string()], &certificates, "test")
        .await?;
    Ok(())
}

/// Exports all agents of a cell, and imports them into another one, which must take them. Returns how many.
pub async fn carry(from: &Site, to: &Site) -> anyhow::Result<usize> {
    let (from, to) = (from.store()?, to.store()?);
    let arrivals = from.arrivals_export(&share(100), uuid(), 1000).await?;
    for arrival in &arrivals {
        let arrived = to
            .arrival_admit(&key(&arrival.key)?, arrival, "test")
            .await?;
        ensure!(!matches!(arrived, Arrived::Refused(_)), "{arrived:?}");
    }
    Ok(arrivals.len())
}

/// Tells a share of all agents to move. Returns how many were told now.
pub async fn tell(from: &Site, cell: &str, percent: u8) -> anyhow::Result<i32> {
    let filter = share(percent);
    let (told, unable) = from.store()?.moves_begin(cell, &filter, "test").await?;
    ensure!(unable == 0, "{unable} do not know how to move");
    Ok(told)
}

/// Below every id.
fn uuid<T: Default>() -> T {
    T::default()
}

fn key(hex: &str) -> anyhow::Result<[u8; 32]> {
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.context("a key in hexadecimal")
}
