//! Keys of agents that change, through the port: announced on a stream, used, retired, and used by a copy.

mod conflicts;
mod decisions;
mod races;

use std::time::Duration;

use anyhow::{Result, ensure};
use svc_front::peer::ClientKey;
use svc_ingest::config::Timing;
use svc_proto::v1::{AgentStatus, NewKey};
use svc_sandbox::Identity;
use svc_testkit::{
    AUTO, ActiveAgent, HeartbeatCall, Instance, Site, assert_contains, is_active, new_key,
    times_offline, token,
};
use tonic::Code;

use crate::commands::{json, output_of};

fn quick(timing: &mut Timing) {
    timing.offers = Duration::from_millis(200);
}

/// An agent that has a stream and has announced another key.
struct Announced {
    site: Site,
    instances: [Instance; 2],
    old: ActiveAgent,
    /// The same agent with the other key.
    next: ActiveAgent,
    /// Over the old key.
    call: HeartbeatCall,
}

impl Announced {
    async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let instances = site.instance().timing(quick).start_pair().await?;
        let old = ActiveAgent::new(&site, instances[0].grpc, 1).await?;
        let mut call = old.heartbeat().await?;
        let next = old.announces(&mut call).await?;
        Ok(Self {
            site,
            instances,
            old,
            next,
            call,
        })
    }

    /// What SQL says about the agent.
    async fn expect(&self, columns: &str, wanted: &str) -> Result<()> {
        let sql = format!(
            "SELECT {columns} FROM agents a WHERE id = '{}'",
            self.old.id
        );
        self.site.expect(&sql, wanted).await
    }

    /// On each instance, a key of the agent opens no stream for this reason, and gets this status with and without a token.
    async fn is_refused(&self, key: &ActiveAgent, reason: &str, status: AgentStatus) -> Result<()> {
        let secret = token(&self.site, AUTO).await?;
        for address in self.instances.each_ref().map(|instance| instance.grpc) {
            let there = ActiveAgent {
                address,
                ..key.clone()
            };
            let refused = there.refused_heartbeat().await?;
            refused.assert(Code::PermissionDenied, reason);
            for secret in ["", secret.as_str()] {
                let answer = key.agent.register(address, secret).await?;
                ensure!(
                    answer.status() == status && !is_active(&answer),
                    "{answer:?}"
                );
                ensure!(answer.agent_id == self.old.id, "{answer:?}");
            }
        }
        Ok(())
    }
}

/// The present key of an agent, in hexadecimal, and how many of its other keys are next and retired ones.
const KEYS: &str = "encode(a.key, 'hex'), (SELECT count(*) FROM agent_keys k WHERE k.agent_id = a.id AND k.retired_at IS NULL),
                    (SELECT count(*) FROM agent_keys k WHERE k.agent_id = a.id AND k.retired_at IS NOT NULL)";

/// The fingerprint of the key of an agent.
fn fingerprint(agent: &ActiveAgent) -> Result<String> {
    let key = ClientKey::of(&agent.agent.identity.cert_der.clone().into())?;
    Ok(key.0.iter().map(|byte| format!("{byte:02x}")).collect())
}

const EVIDENCE: &str = "SELECT count(*) FROM agent_events WHERE kind = 'retired key'";
const CHANGES: &str = "SELECT count(*) FROM agent_events WHERE kind = 'key changed'";

#[tokio::test(flavor = "multi_thread")]
async fn both_keys_work_until_the_next_one_is_used_and_a_retired_one_is_evidence_of_a_copy()
-> Result<()> {
    let site = Site::new().await?;
    let [here, there] = site.instance().timing(quick).start_pair().await?;
    let old = ActiveAgent::new(&site, here.grpc, 1).await?;
    let mut call = old.heartbeat().await?;
    call.report_acked(1..=3).await?;
    // A repeat replaces it.
    old.announces(&mut call).await?;
    let new = old.announces(&mut call).await?;
    site.expect("SELECT count(*) FROM agent_keys", "1").await?;
    // Both instances know the old key, and neither the new one.
    let call = old.heartbeat_in_time(there.grpc).await?;
    ensure!(call.welcome.acked_seq == 3);
    let call = old.heartbeat_in_time(here.grpc).await?;
    site.expect(CHANGES, "0").await?;

    let mut first_use = new.heartbeat_in_time(there.grpc).await?;
    drop(call);
    ensure!(
        first_use.welcome.acked_seq == 3,
        "the numbers belong to the agent"
    );
    site.expect(CHANGES, "1").await?;
    let keys = "SELECT count(*) FILTER (WHERE retired_at IS NOT NULL), count(*) FROM agent_keys";
    site.expect(keys, "1|1").await?;
    first_use.report_acked(4..=4).await?;

    let epoch = site.psql("SELECT epoch FROM agent_state").await?;
    for address in [here.grpc, there.grpc, here.grpc, there.grpc] {
        let copy = ActiveAgent {
            address,
            ..old.clone()
        };
        let refused = copy.refused_heartbeat().await?;
        refused.assert(Code::Unauthenticated, "RETIRED_KEY");
    }
    site.becomes(EVIDENCE, "1").await?;
    site.expect("SELECT epoch FROM agent_state", &epoch).await?;
    first_use.report_acked(5..=5).await?;
    ensure!(times_offline(&site).await? == 0);
    let mut again = new.heartbeat_in_time(here.grpc).await?;
    again.report_acked(6..=6).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_key_registers_as_the_same_agent_and_a_retired_one_only_with_a_successor()
-> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    let old = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let mut call = old.heartbeat().await?;
    let new = old.announces(&mut call).await?;
    let secret = token(&site, AUTO).await?;
    for secret in ["", secret.as_str()] {
        let answer = new.agent.register(instance.grpc, secret).await?;
        ensure!(answer.status() == AgentStatus::Active && answer.agent_id == old.id);
    }
    let answer = old.agent.register(instance.grpc, "").await?;
    ensure!(answer.agent_id == old.id, "both are valid");
    let one = "SELECT (SELECT count(*) FROM agents), (SELECT count(*) FROM hosts)";
    site.expect(one, "1|1").await?;
    let mut live = new.heartbeat().await?;

    for secret in ["", secret.as_str()] {
        let refused = old.agent.refused(instance.grpc, secret).await?;
        refused.assert(Code::Unauthenticated, "RETIRED_KEY");
    }
    site.expect(EVIDENCE, "1").await?;
    site.expect(one, "1|1").await?;
    // A restored disk proves where it comes from, and waits for a person.
    let mut request = old.agent.request("");
    request.successor_key = vec![7; 32];
    let mut answers = old.agent.send(instance.grpc, request).await??;
    ensure!(answers.answer().await?.status() == AgentStatus::Pending);
    let pending = format!(
        "SELECT count(*) FROM agents WHERE status = 'pending' AND cloned_from = '{}'",
        old.id
    );
    site.expect(&pending, "1").await?;
    live.report_acked(1..=1).await?;
    new.agent.register(instance.grpc, "").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_proof_for_this_stream_by_a_key_of_nobody_else_stores_a_key() -> Result<()> {
    let site = Site::new().await?;
    let instance = site.instance().timing(quick).start().await?;
    let agent = ActiveAgent::new(&site, instance.grpc, 1).await?;
    let other = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let key = Identity::self_signed("next")?;
    let replayed = {
        let call = agent.heartbeat().await?;
        new_key(&agent.id, &call.welcome.nonce, &key)?
    };
    let mut call = agent.heartbeat().await?;
    let nonce = call.welcome.nonce.clone();
    ensure!(nonce.len() == 16);
    let valid = new_key(&agent.id, &nonce, &key)?;
    let stranger = new_key(&agent.id, &nonce, &Identity::self_signed("other")?)?;
    let forged = [
        ("replayed", replayed),
        ("another agent's", new_key(&other.id, &nonce, &key)?),
        (
            "by another key",
            NewKey {
                signature: stranger.signature,
                ..valid.clone()
            },
        ),
        (
            "no key",
            NewKey {
                spki: vec![0x30; 100_000],
                ..valid
            },
        ),
    ];
    for (what, key) in forged {
        let stored = call.announced(key).await?;
        ensure!(!stored.refused.is_empty(), "{what}: {stored:?}");
    }
    let fifth = new_key(&agent.id, &nonce, &key)?;
    call.send(svc_proto::ClientMessage::NewKey(fifth)).await?;
    let end = call.end().await?;
    ensure!(
        end.is_some_and(|end| end.reason == "PROTOCOL_VIOLATION"),
        "five keys on one stream"
    );

    // A key that another agent has, has announced or had.
    let mut others = other.heartbeat().await?;
    let next = other.announces(&mut others).await?;
    let mut call = agent.heartbeat().await?;
    for known in [&other.agent.identity, &next.agent.identity] {
        let key = new_key(&agent.id, &call.welcome.nonce, known)?;
        let stored = call.announced(key).await?;
        assert_contains(&stored.refused, "known already");
    }
    drop(next.heartbeat().await?);
    let key = new_key(&agent.id, &call.welcome.nonce, &other.agent.identity)?;
    let stored = call.announced(key).await?;
    assert_contains(&stored.refused, "known already");
    let of_agent = format!(
        "SELECT count(*) FROM agent_keys WHERE agent_id = '{}'",
        agent.id
    );
    site.expect(&of_agent, "0").await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_asked_for_new_keys_by_a_command_wherever_and_whenever_they_connect()
-> Result<()> {
    let site = Site::new().await?;
    let [here, there] = site.instance().timing(quick).start_pair().await?;
    let mut agents = Vec::new();
    for (number, address) in [(1, here.grpc), (2, there.grpc), (3, here.grpc)] {
        agents.push(ActiveAgent::new(&site, address, number).await?);
    }
    let mut first = agents[0].heartbeat().await?;
    let mut second = agents[1].heartbeat().await?;
    let away = format!(
        "UPDATE hosts SET labels = '{{}}' WHERE id = (SELECT host_id FROM agents WHERE id = '{}')",
        agents[2].id
    );
    site.psql(&away).await?;
    let asked = json(&site, &["agent", "change-key", "--selector", "env=test"]).await?;
    ensure!(asked["asked"] == 2, "{asked}");
    first.next_change_key().await?;
    second.next_change_key().await?;
    let asked = json(&site, &["agent", "change-key", &agents[2].id]).await?;
    ensure!(asked["asked"] == 1, "{asked}");
    let mut third = agents[2].heartbeat().await?;
    third.next_change_key().await?;

    let next = agents[0].announces(&mut first).await?;
    let shown = output_of(&site, &["agent", "show", &agents[0].id]).await?;
    for part in ["new key asked for", "next key", "not used yet"] {
        assert_contains(&shown, part);
    }
    let mut first = next.heartbeat().await?;
    let refused = agents[0].refused_heartbeat().await?;
    refused.assert(Code::Unauthenticated, "RETIRED_KEY");
    site.becomes(EVIDENCE, "1").await?;
    let shown = output_of(&site, &["agent", "show", &agents[0].id]).await?;
    for part in ["retired key", "used by a copy", "from 127.0.0.1"] {
        assert_contains(&shown, part);
    }
    ensure!(!shown.contains("asked for"), "it has changed: {shown}");
    let waiting = "SELECT count(*) FROM agents WHERE key_change_at IS NOT NULL";
    site.expect(waiting, "2").await?;
    first.report_acked(1..=1).await
}
