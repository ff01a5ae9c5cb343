//! What the console costs with 200,000 hosts. `make bench-console` runs this on an optimised build, and prints the table of
//! docs/console.md. `BENCH_HOSTS=2000` tries it on a small fleet.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod fleet;
mod pages;
mod viewers;

use std::{env, time::Duration};

use anyhow::{Result, ensure};
use svc_testkit::{Latencies, Process, Usage};

use self::{
    fleet::{Reporter, fill},
    pages::Measured,
    viewers::{PERIOD, Reporting, Watched, pages_of_hosts, single_hosts, watched},
};
use crate::support::Console;

const HOSTS: usize = 200_000;
const LIMIT: Duration = Duration::from_millis(100);
const MIB: u64 = 1 << 20;

/// One test, because loading the fleet takes most of the time. All figures are printed before any of them fails.
///
/// Pages are measured twice. The limit is for a machine on which nothing else runs: while all hosts report, PostgreSQL and
/// the program that reports share its two cores, and times depend on them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "loads 200,000 hosts and measures: run by make bench-console"]
async fn pages_take_less_than_100_ms_and_200_viewers_cost_little() -> Result<()> {
    let hosts = match env::var("BENCH_HOSTS") {
        Ok(hosts) => hosts.parse()?,
        Err(_) => HOSTS,
    };
    let (site, reporters) = fill(hosts).await?;
    ensure!(reporters.len() == hosts, "{}", reporters.len());
    let mut console = Console::on(site, &[]).await?;
    console.stop().await?;
    let process = console.start_process().await?;
    let mut figures = Figures::default();
    let measured = measure(&console, &process, reporters, &mut figures).await;
    let usage = Usage::of(process.pid())?;
    figures.print(hosts, &usage);
    measured?;
    figures.judge(hosts, &usage)
}

/// What was measured so far.
#[derive(Default)]
struct Figures {
    pages: Vec<Measured>,
    watched: Vec<Watched>,
    /// Samples stored each second while viewers watched.
    rate: f64,
}

async fn measure(
    console: &Console,
    process: &Process,
    reporters: Vec<Reporter>,
    figures: &mut Figures,
) -> Result<()> {
    pages::quiet(console, &mut figures.pages).await?;
    let reporting = Reporting::start(console.site.store()?, reporters);
    let views = pages_of_hosts(&console.site).await?;
    let few = watched(console, process, &views, &mut []).await?;
    figures.watched.push(few);
    let views = single_hosts(&console.site).await?;
    let many = watched(console, process, &views, &mut figures.pages).await?;
    figures.watched.push(many);
    figures.rate = reporting.rate()?;
    Ok(())
}

impl Figures {
    fn print(&self, hosts: usize, usage: &Usage) {
        let ms =
            |times: &Latencies, q| format!("{:.1} ms", times.quantile(q).as_secs_f64() * 1000.0);
        println!(
            "| {hosts} hosts | median | p99 | longest of 20 while all hosts report |\n|---|---|---|---|"
        );
        for page in &self.pages {
            let busy = page.busy.as_ref().map(|times| ms(times, 1.0));
            let (half, most) = (ms(&page.quiet, 0.5), ms(&page.quiet, 0.99));
            let (name, busy) = (page.name, busy.unwrap_or_default());
            println!("| `{name}` | {half} | {most} | {busy} |");
        }
        for watched in &self.watched {
            let (views, least, percent) = (watched.views, watched.least, watched.cores * 100.0);
            println!(
                "| 200 viewers of {views} different views, at least {least} updates a minute each | | | {percent:.1} % of a core |"
            );
        }
        println!("| samples stored | | | {:.0} a second |", self.rate);
        let (now, peak) = (usage.resident_mib(), usage.peak / MIB);
        println!("| memory of the console | {now} MiB | | {peak} MiB at most |");
    }

    fn judge(&self, hosts: usize, usage: &Usage) -> Result<()> {
        let late = |page: &&Measured| page.quiet.quantile(0.99) >= LIMIT;
        let late: Vec<&str> = self
            .pages
            .iter()
            .filter(late)
            .map(|page| page.name)
            .collect();
        ensure!(late.is_empty(), "p99 is {LIMIT:?} or more: {late:#?}");
        for Watched {
            views,
            cores,
            least,
        } in &self.watched
        {
            ensure!(*cores < 0.05, "{views} views: {cores} cores");
            ensure!(*least > 0, "{views} views: a viewer got nothing");
        }
        ensure!(usage.peak <= 64 * MIB, "{} MiB", usage.peak / MIB);
        let wanted = hosts as f64 / PERIOD.as_secs_f64();
        ensure!(
            self.rate > 0.9 * wanted,
            "{} samples a second of {wanted}",
            self.rate
        );
        Ok(())
    }
}
