//! An invented next version on a running fleet: expand, roll out, roll back, roll out again, contract.

use anyhow::{Result, ensure};
use svc_store::{Migration, SchemaState};
use svc_testkit::{Fleet, Instance, InstanceBuilder, Pace, Proxy, Site, times_offline};

const AGENTS: u32 = 8;

/// The next version stores when a copy was seen in another column, and counts streams. Instances of this version know
/// neither, and go on using the functions that it replaces. The old column is written as well, for them.
const EXPAND: Migration = Migration {
    version: 2,
    title: "0002_expand",
    sql: "
    ALTER TABLE samples_open ADD COLUMN origin smallint;
    COMMENT ON COLUMN samples_open.origin IS 'Invented.';
    ALTER TABLE agent_state ADD COLUMN streams bigint NOT NULL DEFAULT 0, ADD COLUMN copied_at timestamptz;
    COMMENT ON COLUMN agent_state.streams IS 'Invented.';
    COMMENT ON COLUMN agent_state.copied_at IS 'Invented.';
    CREATE FUNCTION stream_counted() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.streams := OLD.streams + 1;
        RETURN NEW;
    END $$;
    COMMENT ON FUNCTION stream_counted IS 'Invented.';
    CREATE TRIGGER stream_counted BEFORE UPDATE OF epoch ON agent_state FOR EACH ROW EXECUTE FUNCTION stream_counted();
    CREATE OR REPLACE FUNCTION session_clone_seen(state agent_state, what text, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE agent_state SET clone_seen_at = now(), copied_at = now() WHERE agent_id = state.agent_id;
    END $$;",
};

/// One release later nothing uses the old column.
const CONTRACT: Migration = Migration {
    version: 3,
    title: "0003_contract",
    sql: "
    CREATE OR REPLACE FUNCTION session_clone_seen(state agent_state, what text, seen_from inet) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE agent_state SET copied_at = now() WHERE agent_id = state.agent_id;
    END $$;
    ALTER TABLE agent_state DROP COLUMN clone_seen_at;",
};

const THIS: &[Migration] = &[];
const NEXT: &[Migration] = &[EXPAND];
const AFTER_NEXT: &[Migration] = &[EXPAND, CONTRACT];

/// Two instances behind a load balancer.
struct Pair {
    proxy: Proxy,
    instances: Vec<Instance>,
}

impl Pair {
    async fn start(site: &Site) -> Result<Self> {
        let instances = Vec::from(site.instance().start_pair().await?);
        let addresses = instances.iter().map(|instance| instance.grpc).collect();
        let proxy = Proxy::start(addresses).await?;
        Ok(Self { proxy, instances })
    }

    /// Replaces one instance after the other while the fleet reports. Both versions serve in between.
    async fn replace(&mut self, version: &InstanceBuilder, fleet: &Fleet) -> Result<()> {
        for _ in 0..self.instances.len() {
            self.instances.push(version.clone().start().await?);
            let old = self.instances.remove(0);
            let addresses = self.instances.iter().map(|instance| instance.grpc);
            self.proxy.set_targets(addresses.collect());
            fleet.all_acked_again().await?;
            old.stop().await?;
            fleet.all_connected().await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_upgraded_rolled_back_and_upgraded_again_and_loses_nothing() -> Result<()> {
    let site = Site::new().await?;
    let mut pair = Pair::start(&site).await?;
    let fleet = Fleet::reporting(&site, &[pair.proxy.address()], AGENTS, Pace::BRISK).await?;
    for (version, schema) in [(NEXT, 2), (THIS, 2), (NEXT, 2), (AFTER_NEXT, 3)] {
        let version = site.instance().of_later_version(version);
        pair.replace(&version, &fleet).await?;
        let applied = "SELECT max(version) FROM schema_migrations";
        site.expect(applied, &schema.to_string()).await?;
        fleet.audit(&site).await?;
        fleet.resume();
    }
    ensure!(times_offline(&site).await? == 0, "an agent was offline");
    let counted = "SELECT bool_and(streams >= 4) FROM agent_state";
    site.expect(counted, "t").await?;
    let left =
        "SELECT count(*) FROM information_schema.columns WHERE column_name = 'clone_seen_at'";
    site.expect(left, "0").await?;
    let state = site.store()?.schema_check().await?;
    ensure!(matches!(state, SchemaState::Ahead { .. }), "{state:?}");
    fleet.audit(&site).await
}
