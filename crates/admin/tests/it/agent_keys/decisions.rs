//! Decisions about an agent that has announced a key: it is replaced, retired, revoked and admitted again.

use anyhow::{Context, Result, ensure};
use svc_proto::v1::AgentStatus::{Active, Pending, Revoked};
use svc_testkit::{
    AUTO, ActiveAgent, FakeAgent, REINSTALL, assert_contains, is_active, machine, new_key, token,
};
use tonic::Code;

use super::{Announced, CHANGES, KEYS, fingerprint};
use crate::commands::{json, output_of};

impl Announced {
    /// Its stream ends, neither key admits anybody, and the next one was never used.
    async fn is_over(&mut self) -> Result<()> {
        let end = self.call.end().await?.context("it ended with OK")?;
        end.assert(Code::PermissionDenied, "AGENT_REVOKED");
        self.keys_are_dead().await
    }

    async fn keys_are_dead(&self) -> Result<()> {
        for key in [&self.next, &self.old] {
            self.is_refused(key, "AGENT_REVOKED", Revoked).await?;
        }
        self.site.expect(CHANGES, "0").await?;
        let present = format!("{}|1|0", fingerprint(&self.old)?);
        self.expect(KEYS, &present).await
    }

    /// Its next key was not used, and it has this status.
    async fn keys_and_status(&self, status: &str) -> Result<()> {
        let keys = format!("{}|1|0|{status}", fingerprint(&self.old)?);
        self.expect(&format!("{KEYS}, status"), &keys).await
    }

    /// A new key on the same machine, with the service's answer.
    async fn newcomer(&self, secret: &str) -> Result<ActiveAgent> {
        let agent = FakeAgent::on(machine(1))?;
        let answer = agent.register(self.old.address, secret).await?;
        let jwt = answer.credential.map(|credential| credential.jwt);
        Ok(ActiveAgent {
            agent,
            id: answer.agent_id,
            jwt: jwt.unwrap_or_default(),
            address: self.old.address,
        })
    }

    /// It reports, and the next key of the former agent is not its to have.
    async fn works_in_its_place(&self, newcomer: &ActiveAgent) -> Result<()> {
        let newcomer = ActiveAgent {
            jwt: newcomer.agent.jwt(newcomer.address, "").await?,
            ..newcomer.clone()
        };
        ensure!(newcomer.id != self.old.id);
        let mut call = newcomer.heartbeat().await?;
        call.report_acked(1..=2).await?;
        for known in [&self.next, &self.old] {
            let nonce = &call.welcome.nonce;
            let key = new_key(&newcomer.id, nonce, &known.agent.identity)?;
            let stored = call.announced(key).await?;
            assert_contains(&stored.refused, "known already");
        }
        let next = newcomer.announces(&mut call).await?;
        next.heartbeat_in_time(next.address).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_key_of_an_agent_that_a_person_replaced_is_refused() -> Result<()> {
    let mut world = Announced::new().await?;
    let secret = token(&world.site, AUTO).await?;
    let newcomer = world.newcomer(&secret).await?;
    ensure!(newcomer.jwt.is_empty(), "it waits for a person");
    let approve = ["agent", "approve", &newcomer.id, "--replace"];
    output_of(&world.site, &approve).await?;
    world.is_over().await?;
    world.works_in_its_place(&newcomer).await?;
    let all = "SELECT count(*), (SELECT count(*) FROM hosts) FROM agents";
    world.site.expect(all, "2|1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_key_of_an_agent_that_a_reinstallation_replaced_is_refused() -> Result<()> {
    let world = Announced::new().await?;
    let Announced { site, next, .. } = &world;
    let secret = token(site, REINSTALL).await?;
    let quiet = "UPDATE agent_state SET presence = 'offline', instance_id = NULL, presence_since = now() - interval '11 minutes'";
    site.psql(quiet).await?;
    let newcomer = world.newcomer(&secret).await?;
    ensure!(!newcomer.jwt.is_empty(), "the token replaces the agent");
    world.keys_are_dead().await?;
    world.works_in_its_place(&newcomer).await?;
    let refused = next.refused_heartbeat().await?;
    refused.assert(Code::PermissionDenied, "AGENT_REVOKED");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_key_of_an_agent_whose_host_is_retired_is_refused() -> Result<()> {
    let mut world = Announced::new().await?;
    let host = world.site.psql("SELECT id FROM hosts").await?;
    output_of(&world.site, &["host", "retire", &host, "--yes"]).await?;
    world.is_over().await?;
    comes_back_as_another_host(&world).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_key_of_an_agent_whose_host_has_expired_is_refused() -> Result<()> {
    let mut world = Announced::new().await?;
    let away = std::mem::replace(
        &mut world.call,
        ActiveAgent::new(&world.site, world.old.address, 2)
            .await?
            .heartbeat()
            .await?,
    );
    away.goodbye().await?;
    let long = "UPDATE agent_state s SET presence_since = now() - interval '31 days' WHERE presence = 'offline'";
    world.site.psql(long).await?;
    let expire = ["host", "expire", "--offline-for", "30d", "--yes"];
    let expired = json(&world.site, &expire).await?;
    ensure!(expired["retired"] == 1, "{expired}");
    world.keys_are_dead().await?;
    comes_back_as_another_host(&world).await
}

/// A machine whose host was retired, with another key.
async fn comes_back_as_another_host(world: &Announced) -> Result<()> {
    let secret = token(&world.site, AUTO).await?;
    let newcomer = world.newcomer(&secret).await?;
    ensure!(!newcomer.jwt.is_empty(), "no agent is active there");
    world.works_in_its_place(&newcomer).await?;
    let hosts = "SELECT count(*) FROM hosts WHERE hostname = 'web-1'";
    world.site.expect(hosts, "2").await?;
    world.keys_and_status("revoked").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_key_waits_while_its_agent_is_revoked_or_pending_and_is_promoted_after_an_approval()
-> Result<()> {
    let mut world = Announced::new().await?;
    world.site.decide_all("revoke").await?;
    world.is_over().await?;
    world.site.decide_all("reopen").await?;
    for key in [&world.next, &world.old] {
        // A token that approves does not: a person has decided about this agent before.
        world.is_refused(key, "AGENT_PENDING", Pending).await?;
    }
    world.keys_and_status("pending").await?;
    world.site.decide_all("approve").await?;
    let address = world.instances[1].grpc;
    let answer = world.next.agent.register(address, "").await?;
    ensure!(answer.status() == Active && is_active(&answer));
    world.keys_and_status("active").await?;
    let mut live = world.next.heartbeat_in_time(address).await?;
    live.report_acked(1..=1).await?;
    world.site.expect(CHANGES, "1").await?;
    let refused = world.old.refused_heartbeat().await?;
    refused.assert(Code::Unauthenticated, "RETIRED_KEY");
    world
        .expect(KEYS, &format!("{}|0|1", fingerprint(&world.next)?))
        .await
}
