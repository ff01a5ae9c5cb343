//! The first use of a next key at the same moment as something that forbids it. Either order is right; a mixture is not.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use svc_testkit::{AUTO, ActiveAgent, FakeAgent, HeartbeatCall, RefusedCall, Site, machine, token};
use tokio::time::sleep;
use tonic::Code;

use super::{KEYS, fingerprint, quick};

const ROUNDS: u32 = 20;

/// Which of the two came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Use,
    Other,
}

/// An agent that has announced a key, on an instance; its first use is on the other one.
struct Racer<'a> {
    site: &'a Site,
    old: ActiveAgent,
    next: ActiveAgent,
    call: HeartbeatCall,
}

/// How much later than the first use the other one begins, in milliseconds; negative: earlier.
#[derive(Clone, Copy, Debug)]
struct Delay(i32);

impl Delay {
    async fn of_first_use(self) {
        sleep(Duration::from_millis(self.0.min(0).unsigned_abs().into())).await;
    }

    async fn of_other(self) {
        sleep(Duration::from_millis(self.0.max(0).unsigned_abs().into())).await;
    }
}

/// Races them, with a delay that approaches the one at which they meet. Fails unless each of them came first in some round.
async fn rounds(what: &str, race: impl AsyncFn(u32, Delay) -> Result<First>) -> Result<()> {
    let (mut delay, mut step, mut used, mut last) = (0, 16, 0, None);
    for number in 0..ROUNDS {
        let first = race(number, Delay(delay)).await;
        let first = first.with_context(|| format!("round {number}, {delay} ms"))?;
        step = match last.replace(first) {
            Some(last) if last != first => (step / 2).max(2),
            _ => step * 2,
        };
        match first {
            First::Use => (delay, used) = (delay - step, used + 1),
            First::Other => delay += step,
        }
    }
    ensure!(
        (1..ROUNDS).contains(&used),
        "{what}: {used} of {ROUNDS} first uses came first"
    );
    Ok(())
}

/// A refusal that asks to come back, as for a row that is locked, decides nothing.
async fn first_use(next: &ActiveAgent, delay: Delay) -> Result<Result<HeartbeatCall, RefusedCall>> {
    delay.of_first_use().await;
    for _ in 0..10 {
        let hello = next.agent.hello();
        let opened = next.agent.try_heartbeat(next.address, &next.jwt, hello);
        match opened.await? {
            Err(refused) if refused.retry => sleep(Duration::from_secs(1)).await,
            decided => return Ok(decided),
        }
    }
    bail!("no decision")
}

impl<'a> Racer<'a> {
    async fn new(
        site: &'a Site,
        [here, there]: [SocketAddr; 2],
        number: u32,
        secret: &str,
    ) -> Result<Self> {
        let old = ActiveAgent::with_token(here, number, secret).await?;
        let mut call = old.heartbeat().await?;
        let next = ActiveAgent {
            address: there,
            ..old.announces(&mut call).await?
        };
        let racer = Self {
            site,
            old,
            next,
            call,
        };
        Ok(racer)
    }

    async fn other(&self, delay: Delay, sql: &str) -> Result<()> {
        delay.of_other().await;
        self.site.psql(sql).await.map(drop)
    }

    /// The agent is revoked, without a stream, and has two keys of which one is present. Returns what came first by them.
    async fn is_revoked(&self) -> Result<First> {
        let row = format!(
            "SELECT {KEYS}, status, presence FROM agents a JOIN agent_state s ON s.agent_id = a.id WHERE a.id = '{}'",
            self.old.id
        );
        let gone = format!(
            "SELECT presence FROM agent_state WHERE agent_id = '{}'",
            self.old.id
        );
        self.site.becomes(&gone, "offline").await?;
        let used = format!("{}|0|1|revoked|offline", fingerprint(&self.next)?);
        let unused = format!("{}|1|0|revoked|offline", fingerprint(&self.old)?);
        let found = self.site.psql(&row).await?;
        let refused = self.next.refused_heartbeat().await?;
        refused.assert(Code::PermissionDenied, "AGENT_REVOKED");
        let refused = self.old.refused_heartbeat().await?;
        if found == used {
            refused.assert(Code::Unauthenticated, "RETIRED_KEY");
            return Ok(First::Use);
        }
        ensure!(found == unused, "{found}, not {used} or {unused}");
        refused.assert(Code::PermissionDenied, "AGENT_REVOKED");
        Ok(First::Other)
    }

    /// The first use while the agent is revoked in some way. The stream, if there is one, ends.
    async fn raced(mut self, delay: Delay, revoke: &str) -> Result<First> {
        let (used, revoked) = tokio::join!(first_use(&self.next, delay), self.other(delay, revoke));
        revoked?;
        let welcomed = match used? {
            Ok(mut call) => {
                let end = call.end().await?.context("it ended with OK")?;
                end.assert(Code::PermissionDenied, "AGENT_REVOKED");
                true
            }
            Err(refused) => {
                ensure!(refused.reason == "AGENT_REVOKED", "{refused:?}");
                false
            }
        };
        self.call
            .end()
            .await?
            .context("the old stream ended with OK")?;
        let first = self.is_revoked().await?;
        ensure!(
            !welcomed || first == First::Use,
            "welcomed, but not promoted"
        );
        Ok(first)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_use_and_a_revocation_at_once_end_in_one_order() -> Result<()> {
    let site = Site::new().await?;
    let pair = site.instance().timing(quick).start_pair().await?;
    let addresses = pair.each_ref().map(|instance| instance.grpc);
    let secret = token(&site, AUTO).await?;
    let race = async |number, delay: Delay| {
        let racer = Racer::new(&site, addresses, number, &secret).await?;
        let revoke = format!("SELECT revoke_agent('{}', 'ann')", racer.old.id);
        racer.raced(delay, &revoke).await
    };
    rounds("revocation", race).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_use_and_a_replacement_at_once_end_in_one_order() -> Result<()> {
    let site = Site::new().await?;
    let pair = site.instance().timing(quick).start_pair().await?;
    let addresses = pair.each_ref().map(|instance| instance.grpc);
    let secret = token(&site, AUTO).await?;
    let race = async |number, delay: Delay| {
        let racer = Racer::new(&site, addresses, number, &secret).await?;
        let newcomer = FakeAgent::on(machine(number))?;
        let answer = newcomer.register(addresses[0], &secret).await?;
        let id = answer.agent_id;
        let replace = format!("SELECT approve_agent('{id}', 'ann', 'replace')");
        let first = racer.raced(delay, &replace).await?;
        let jwt = newcomer.jwt(addresses[1], "").await?;
        let mut call = newcomer.heartbeat(addresses[1], &jwt).await?;
        call.report_acked(1..=1).await?;
        Ok::<_, anyhow::Error>(first)
    };
    rounds("replacement", race).await?;
    let active = "SELECT count(*), count(DISTINCT host_id) FROM agents WHERE status = 'active'";
    site.expect(active, &format!("{ROUNDS}|{ROUNDS}")).await
}

/// The old stream announces a third key, which takes the place of the one that is used for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_use_and_another_announcement_at_once_leave_a_key_that_works() -> Result<()> {
    let site = Site::new().await?;
    let pair = site.instance().timing(quick).start_pair().await?;
    let addresses = pair.each_ref().map(|instance| instance.grpc);
    let secret = token(&site, AUTO).await?;
    let race = async |number, delay: Delay| {
        let racer = Racer::new(&site, addresses, number, &secret).await?;
        let (old, mut call) = (racer.old, racer.call);
        let announce = async {
            delay.of_other().await;
            old.announces(&mut call).await
        };
        let (third, used) = tokio::join!(announce, first_use(&racer.next, delay));
        match (third, used?) {
            (Err(_), Ok(mut call)) => {
                call.report_acked(1..=1).await?;
                let refused = old.refused_heartbeat().await?;
                refused.assert(Code::Unauthenticated, "RETIRED_KEY");
                Ok(First::Use)
            }
            (Ok(third), Err(refused)) => {
                refused.assert(Code::Unauthenticated, "KEY_MISMATCH");
                call.report_acked(1..=1).await?;
                third.heartbeat_in_time(third.address).await?;
                Ok(First::Other)
            }
            both => bail!("both or neither: {both:?}"),
        }
    };
    rounds("announcement", race).await?;
    let one =
        "SELECT count(*), (SELECT count(*) FROM agent_keys WHERE retired_at IS NULL) FROM agents";
    site.expect(one, &format!("{ROUNDS}|0")).await
}
