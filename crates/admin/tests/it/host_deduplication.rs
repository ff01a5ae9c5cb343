//! Host deduplication: which machine a registration belongs to. `enrol::identity` and the store have property tests of the
//! rules themselves.

mod admission;
mod replacements;

use std::time::Duration;

use anyhow::Result;
use svc_proto::v1::{
    AgentStatus::{self, Pending},
    HostFacts, RegisterResponse,
};
use svc_testkit::{AUTO, FakeAgent, Instance, Site, assert_contains, is_active, machine, token};

struct World {
    site: Site,
    instance: Instance,
    auto: String,
}

impl World {
    async fn new() -> Result<Self> {
        let site = Site::new().await?;
        let tuned = site.instance().timing(|timing| {
            timing.poll = Duration::from_millis(200);
            timing.reinstall_quiet = Duration::from_secs(600);
        });
        let instance = tuned.start().await?;
        let auto = token(&site, AUTO).await?;
        Ok(Self {
            site,
            instance,
            auto,
        })
    }

    /// Registers a new key on a machine with these facts.
    async fn install(&self, host: HostFacts) -> Result<(FakeAgent, RegisterResponse)> {
        let agent = FakeAgent::on(host)?;
        let answer = agent.register(self.instance.grpc, &self.auto).await?;
        Ok((agent, answer))
    }

    /// Registers a known key without a token.
    async fn register(&self, agent: &FakeAgent) -> Result<RegisterResponse> {
        agent.register(self.instance.grpc, "").await
    }

    async fn status(&self, agent: &FakeAgent) -> Result<AgentStatus> {
        Ok(self.register(agent).await?.status())
    }

    /// `decide` is a call of an SQL function without its first argument, the agent's id.
    async fn decide(&self, answer: &RegisterResponse, decide: &str) -> Result<()> {
        let (function, arguments) = decide.split_once('(').expect("a call");
        let id = &answer.agent_id;
        let sql = format!("SELECT {function}('{id}', {arguments}");
        self.site.psql(&sql).await.map(drop)
    }

    async fn presence(&self, answer: &RegisterResponse, presence: &str, since: &str) -> Result<()> {
        let id = &answer.agent_id;
        let sql = format!(
            "UPDATE agent_state SET presence = '{presence}', presence_since = now() - interval '{since}'
              WHERE agent_id = '{id}'"
        );
        self.site.psql(&sql).await.map(drop)
    }
}

const HOSTS: &str = "SELECT count(*) FROM hosts";

#[tokio::test]
async fn a_reinstalled_machine_keeps_its_host_record() -> Result<()> {
    let world = World::new().await?;
    let (_, first) = world.install(machine(1)).await?;
    world.decide(&first, "revoke_agent('ann')").await?;
    let (_, second) = world.install(machine(1)).await?;
    assert!(is_active(&second));
    assert_eq!(second.host_id, first.host_id);
    assert_ne!(second.agent_id, first.agent_id);
    world.site.expect(HOSTS, "1").await
}

#[tokio::test]
async fn a_new_key_on_a_machine_with_an_active_agent_stays_pending() -> Result<()> {
    let world = World::new().await?;
    let (incumbent, first) = world.install(machine(1)).await?;
    let other_name = HostFacts {
        hostname: "other".into(),
        ..machine(1)
    };
    let (newcomer, second) = world.install(other_name).await?;
    assert_eq!(second.status(), Pending, "although the token approves");
    assert_contains(&second.message, "--replace");
    assert_contains(&second.message, &first.agent_id);
    let hostname = "SELECT hostname FROM hosts";
    world.site.expect(hostname, "web-1").await?;
    assert!(is_active(&world.register(&incumbent).await?));
    let refused = world.decide(&second, "approve_agent('ann')").await;
    let error = refused.expect_err("an approval must choose between the two keys");
    assert_contains(&format!("{error:#}"), "active agent");
    assert_eq!(world.status(&newcomer).await?, Pending);
    Ok(())
}

#[tokio::test]
async fn an_agent_first_run_without_root_and_then_with_it_is_one_host() -> Result<()> {
    let world = World::new().await?;
    let without_root = HostFacts {
        hardware_uuid: String::new(),
        ..machine(1)
    };
    let (agent, first) = world.install(without_root).await?;
    let with_root = FakeAgent {
        host: machine(1),
        ..agent
    };
    let again = world.register(&with_root).await?;
    assert_eq!(again.host_id, first.host_id);
    world.decide(&first, "revoke_agent('ann')").await?;
    let only_hardware = HostFacts {
        machine_id: String::new(),
        ..machine(1)
    };
    let (_, again) = world.install(only_hardware).await?;
    assert_eq!(again.host_id, first.host_id, "by the later identifier");
    Ok(())
}

#[tokio::test]
async fn machines_with_the_same_junk_identifiers_are_different_hosts() -> Result<()> {
    let world = World::new().await?;
    for number in 1..=3 {
        let host = HostFacts {
            hardware_uuid: "03000200-0400-0500-0006-000700080009".into(),
            machine_id: "0".repeat(32),
            mac_addresses: vec!["02:42:ac:11:00:02".into()],
            hostname: "localhost".into(),
            ..machine(number)
        };
        assert!(is_active(&world.install(host).await?.1));
    }
    world.site.expect(HOSTS, "3").await
}

#[tokio::test]
async fn facts_over_a_known_key_refresh_the_host_and_never_move_the_agent() -> Result<()> {
    let world = World::new().await?;
    let (agent, first) = world.install(machine(1)).await?;
    let (_, other) = world.install(machine(2)).await?;
    let host = HostFacts {
        os_version: "13".into(),
        ..machine(2)
    };
    let answer = world.register(&FakeAgent { host, ..agent }).await?;
    assert_eq!(answer.host_id, first.host_id);
    assert_ne!(answer.host_id, other.host_id);
    let id = first.host_id;
    let row = format!("SELECT hostname, os_version FROM hosts WHERE id = '{id}'");
    world.site.expect(&row, "web-2|13").await
}
