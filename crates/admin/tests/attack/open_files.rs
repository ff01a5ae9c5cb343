//! The cost of `/metrics` with as many open files as a full instance has.

use std::{
    fs::{self, File},
    io,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use svc_testkit::{Latencies, Site, get, raise_file_limit};

const FILES: usize = 18_000;
const SCRAPES: usize = 200;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: run by make attack"]
async fn a_scrape_is_cheap_with_18000_open_files() -> Result<()> {
    raise_file_limit();
    let (_site, instance) = Site::with_instance().await?;
    let before = scrapes(instance.http).await?;
    let files: Vec<File> = (0..FILES)
        .map(|_| File::open("/dev/null"))
        .collect::<io::Result<_>>()?;
    let clock = Instant::now();
    let counted = fs::read_dir("/proc/self/fd")?.count();
    let scan = clock.elapsed();
    let after = scrapes(instance.http).await?;
    println!("a scrape: {before}; with {counted} open files, whose scan takes {scan:.1?}: {after}");
    ensure!(counted > files.len());
    ensure!(after.quantile(0.9) < Duration::from_millis(5));
    Ok(())
}

async fn scrapes(address: std::net::SocketAddr) -> Result<Latencies> {
    let mut latencies = Vec::new();
    for _ in 0..SCRAPES {
        let asked = Instant::now();
        get(address, "/metrics").await?;
        latencies.push(asked.elapsed());
    }
    Ok(Latencies::of(latencies))
}
