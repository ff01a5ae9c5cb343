//! Every page and search, with what a client waits for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use svc_store::Role;
use svc_testkit::Latencies;

use super::fleet::OLD_HOST;
use crate::support::{Client, Console, Page};

const ROUNDS: usize = 200;
/// While everybody reports: these times are not judged.
const BUSY_ROUNDS: usize = 20;
/// A page that has taken so long in all is not asked for again: it is too slow already.
const LONGEST: Duration = Duration::from_secs(30);

/// Searches that find many, few and no hosts, in an order that follows the condition or not.
const SEARCHES: &str = "
    /hosts  /hosts?sort=disk  /hosts?sort=offline
    /hosts?q=nyc  /hosts?q=sfo  /hosts?q=web  /hosts?q=nyc-web-1234  /hosts?q=zzz
    /hosts?q=eb  /hosts?q=qq  /hosts?q=7  /hosts?q=10.1.2.3
    /hosts?q=label:env%3Dprod  /hosts?q=label:env%3Dstaging  /hosts?q=label:dc%3Dsfo
    /hosts?q=label:rack%3D77  /hosts?q=label:rack%3Dnone
    /hosts?q=label:dc%3Dsfo+is:online  /hosts?q=label:dc%3Dams+nyc
    /hosts?q=os:debian  /hosts?q=os:plan9
    /hosts?q=version:0.2  /hosts?q=version:0.3  /hosts?q=version:9
    /hosts?q=is:online  /hosts?q=is:offline  /hosts?q=is:skewed  /hosts?q=is:retired  /hosts?q=has:gaps
    /hosts?q=offline:1d  /hosts?q=offline:1d&sort=offline
    /hosts?q=disk:90  /hosts?q=disk:90+nyc+is:online
    /hosts?q=disk:95+label:env%3Dstaging&sort=disk
    /hosts?q=label:env%3Dprod+is:offline&sort=offline
    /hosts?q=nyc+label:rack%3D77+version:0.2+os:debian";

const PAGES: [&str; 13] = [
    "/",
    "/approvals",
    "/approvals?label=env%3Dprod",
    "/tokens",
    "/activity",
    "/activity?presence=yes",
    "/activity?actor=nobody",
    "/activity?kind=status",
    "/activity?subject=nyc-web-0012",
    "/activity?subject=nothing",
    "/service",
    "/people",
    "POST /hosts/bulk?action=retire&scope=all&q=is:offline",
];

/// Pages of one host, agent or token, and pages in the middle of a list. Each query returns what stands for `{}`.
const OTHERS: [(&str, &str); 13] = [
    ("/hosts/{}", OLD_HOST),
    ("/hosts/{}/series?range=1h", OLD_HOST),
    ("/hosts/{}/series?range=24h", OLD_HOST),
    ("/hosts/{}/series?range=7d", OLD_HOST),
    ("/hosts/{}/series?range=30d", OLD_HOST),
    ("/hosts/{}/series?range=1y", OLD_HOST),
    (
        "/agents/{}",
        "id FROM agents WHERE status = 'active' LIMIT 1",
    ),
    (
        "/agents/{}",
        "id FROM agents WHERE status = 'pending' LIMIT 1",
    ),
    ("/tokens/{}", "md5('token 1')::uuid"),
    ("/hosts?q=token:{}", "md5('token 1')::uuid"),
    (
        "/hosts?after={}",
        "id || '~' || hostname FROM hosts WHERE hostname >= 'nyc' ORDER BY hostname LIMIT 1",
    ),
    (
        "/hosts?q=is:online&after={}",
        "id || '~' || hostname FROM hosts WHERE hostname >= 'nyc' ORDER BY hostname LIMIT 1",
    ),
    (
        "/hosts?sort=disk&after={}",
        "host_id || '~' || fullest_disk_percent FROM host_vitals WHERE fullest_disk_percent = 50 LIMIT 1",
    ),
];

/// One page.
pub struct Measured {
    pub name: &'static str,
    path: String,
    pub quiet: Latencies,
    /// While every host reports and 200 people watch.
    pub busy: Option<Latencies>,
}

impl Measured {
    pub async fn again(&mut self, client: &Client) -> Result<()> {
        self.busy = Some(times(client, &self.path, BUSY_ROUNDS).await?);
        Ok(())
    }
}

/// Measures every page and search, one request at a time.
pub async fn quiet(console: &Console, pages: &mut Vec<Measured>) -> Result<()> {
    let client = console.signed_in("ann", Role::Admin).await?;
    let plain = PAGES.into_iter().chain(SEARCHES.split_whitespace());
    let plain = plain.map(|page| (page, ""));
    for (name, query) in plain.chain(OTHERS) {
        let path = match query {
            "" => name.to_owned(),
            query => {
                let value = console.site.psql(&format!("SELECT {query}")).await?;
                name.replace("{}", value.trim())
            }
        };
        let quiet = times(&client, &path, ROUNDS).await?;
        pages.push(Measured {
            name,
            path,
            quiet,
            busy: None,
        });
    }
    Ok(())
}

async fn times(client: &Client, path: &str, rounds: usize) -> Result<Latencies> {
    let mut times = Vec::new();
    for round in 0..=rounds {
        let began = Instant::now();
        let page = match path.strip_prefix("POST ") {
            Some(form) => submit(client, form).await?,
            None => client.get(path).await?,
        };
        ensure!(page.status == 200, "{path}: {}", page.status);
        // The first one warms caches.
        if round > 0 {
            times.push(began.elapsed());
        }
        if times.iter().sum::<Duration>() > LONGEST {
            break;
        }
    }
    Ok(Latencies::of(times))
}

/// Sends a form that is written as a query.
async fn submit(client: &Client, form: &str) -> Result<Page> {
    let (path, fields) = form.split_once('?').context("no fields")?;
    let fields = fields.split('&').filter_map(|field| field.split_once('='));
    client.post(path, &fields.collect::<Vec<_>>()).await
}
