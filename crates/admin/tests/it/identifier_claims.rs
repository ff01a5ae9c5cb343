//! What an agent says about its machine takes nothing from other machines, and fills no table.

use anyhow::Result;
use svc_proto::v1::HostFacts;
use svc_testkit::{ActiveAgent, Site, machine};

const HARDWARE: &str = "SELECT count(*), min(host_id::text) FROM host_identifiers WHERE kind = 'hardware' AND value = ";

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_does_not_take_the_identifiers_of_another_machine() -> Result<()> {
    let (site, instance, thief) = Site::with_agent().await?;
    let victim = ActiveAgent::new(&site, instance.grpc, 2).await?;
    let host = format!("SELECT host_id FROM agents WHERE id = '{}'", victim.id);
    let host = site.psql(&host).await?;
    let stolen = machine(2).hardware_uuid;
    let claimed = thief.copied_to(HostFacts {
        hardware_uuid: stolen.clone(),
        ..machine(1)
    });
    claimed.heartbeat().await?.goodbye().await?;
    let value = stolen.replace('-', "");
    let owner = format!("{HARDWARE}'{value}'");
    site.expect(&owner, &format!("1|{}", host.trim())).await?;
    // The same claim at a registration of the known key.
    let presence = format!(
        "SELECT presence FROM agent_state WHERE agent_id = '{}'",
        thief.id
    );
    site.becomes(&presence, "offline").await?;
    claimed.agent.register(instance.grpc, "").await?;
    site.expect(&owner, &format!("1|{}", host.trim())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identifiers_of_a_host_are_bounded() -> Result<()> {
    let (site, _instance, agent) = Site::with_agent().await?;
    for round in 0..3 {
        let macs = (0..40).map(|number| format!("00:1b:21:00:{round:02x}:{number:02x}"));
        let host = HostFacts {
            mac_addresses: macs.collect(),
            ..machine(1)
        };
        drop(agent.copied_to(host).heartbeat().await?);
    }
    let network = "SELECT count(*) FROM host_identifiers WHERE kind = 'network'";
    site.expect(network, "64").await?;
    let hardware = "SELECT count(*) FROM host_identifiers WHERE kind = 'hardware'";
    site.expect(hardware, "1").await
}
