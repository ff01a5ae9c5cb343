//! One call of every method that the service and the commands use, for a batch of agents of a large fleet.

use std::{net::Ipv4Addr, slice, time::Duration};

use anyhow::{Context, Result};
use aws_lc_rs::digest::{SHA256, digest};
use jiff::{SignedDuration, Timestamp};
use svc_store::{
    ActivityFilter, AgentFacts, AgentFilter, AgentId, AgentStatus, Bulkhead, CloseCause, Decision,
    GapKind, GapRow, HostFacts, HostFilter, HostId, HostSearch, HostsPage, IdentifierKind,
    InstanceLoad, LabelChange, Labels, NewAgent, NewInstance, NewToken, Newcomer, Range,
    RegistrationTx, SessionClose, SessionHeard, SessionOpen, StoreError, TokenId, TokenRequest,
};
use uuid::Uuid;

use super::{AGENTS, reads::Reads};
use crate::{
    fixtures::{DAY, TestAgent, hours_ago, sample},
    leases::{OUTAGE_GRACE, instance},
    support::TestStore,
};

/// The agents of a batch, as many as the service may handle at once or fewer.
const BATCH: usize = 100;
/// The agents of a full instance.
const INSTANCE: usize = 18_000;
/// Rows for a batch. A plan counts a row again at each of its nodes.
const SMALL: u64 = 60 * BATCH as u64;
/// What reads the sessions of one instance, here all of them.
const SESSIONS: u64 = 6 * AGENTS as u64;
/// What reads the fleet: gauges, pages for people, and maintenance once an hour.
const WHOLE: u64 = 16 * AGENTS as u64;
/// An append has dozens of statements, some compare the rows of a batch with each other, and late samples are counted among those
/// of their agent that are not compacted: two more with each call.
const APPEND: u64 = 400 * BATCH as u64;
/// What reads every machine that was reinstalled, here all of them, twice, with half a dozen rows for each.
const REINSTALLED: u64 = 50 * AGENTS as u64;
/// What ends a batch of the sweep.
const SWEEP: u64 = 40 * svc_store::SWEEP_BATCH as u64;

const TTL: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

/// Calls whose results do not matter, with one budget.
macro_rules! call_each {
    ($reads:ident, $budget:expr, $store:ident: $($name:ident($($argument:expr),*);)+) => {
        $($reads.call(stringify!($name), $budget, $store.$name($($argument),*)).await?;)+
    };
}

#[derive(Debug)]
pub struct Fleet {
    pub store: TestStore,
    pub mine: NewInstance,
    /// An instance that is fenced.
    pub lost: NewInstance,
    agents: Vec<TestAgent>,
    token: TokenId,
    calls: i64,
}

impl Fleet {
    pub async fn new(store: TestStore, agents: Vec<TestAgent>) -> Result<Fleet> {
        let (mine, lost) = (instance("k"), instance("k"));
        for one in [&mine, &lost] {
            store.lease_claim(one, TTL, OUTAGE_GRACE).await?;
        }
        let fence = format!(
            "UPDATE ingest_instances SET fenced = true WHERE id = '{}'",
            lost.id
        );
        store.sql(&fence).await?;
        let token = store.token_create(&[7; 32], &token()).await?;
        Ok(Fleet {
            store,
            mine,
            lost,
            agents,
            token,
            calls: 0,
        })
    }

    /// The sweep comes before what changes the sessions of the batch.
    pub async fn call_all(&mut self, reads: &mut Reads) -> Result<()> {
        self.calls += 1;
        self.leases(reads).await?;
        self.sweep(reads).await?;
        self.sessions(reads).await?;
        self.samples(reads).await?;
        self.registrations(reads).await?;
        self.registration_steps(reads).await?;
        self.upkeep(reads).await?;
        self.commands(reads).await?;
        self.console(reads).await
    }

    /// SQL that makes a thousand agents offline for long.
    pub fn expire(&self) -> String {
        let few = quoted(&self.agents[AGENTS / 2..][..1000]);
        format!(
            "UPDATE agent_state SET presence_since = now() - interval '2 days' WHERE agent_id IN ({few})"
        )
    }

    /// SQL that adds a pending agent for each machine whose own agent no call here decides about.
    pub fn reinstall(&self) -> String {
        let used = [&self.agents[..BATCH], &self.agents[AGENTS - 1000..]].concat();
        let (used, token) = (quoted(&used), self.token);
        format!(
            "INSERT INTO agents (host_id, key, status, pending_reason, conflict_with, token_id)
             SELECT host_id, sha256(gen_random_uuid()::text::bytea), 'pending', 'conflict', id, '{token}'
               FROM agents WHERE status = 'active' AND id NOT IN ({used})"
        )
    }

    fn batch(&self) -> &[TestAgent] {
        &self.agents[..BATCH]
    }

    fn ids(&self) -> Vec<AgentId> {
        self.batch().iter().map(|agent| agent.id).collect()
    }

    /// As after an outage: no other instance is live.
    async fn leases(&self, reads: &mut Reads) -> Result<()> {
        let (store, next) = (&self.store, instance("k"));
        let alone = format!(
            "UPDATE ingest_instances SET expires_at = now() - interval '1 s' WHERE id = '{}'",
            self.mine.id
        );
        store.sql(&alone).await?;
        reads.begin_again();
        reads
            .call(
                "lease_claim",
                SMALL,
                store.lease_claim(&next, TTL, OUTAGE_GRACE),
            )
            .await?;
        reads
            .call(
                "lease_claim",
                SMALL,
                store.lease_claim(&self.mine, TTL, OUTAGE_GRACE),
            )
            .await?;
        let load = InstanceLoad::default();
        reads
            .call(
                "lease_renew",
                SMALL,
                store.lease_renew(next.id, TTL, &load, MINUTE),
            )
            .await?;
        reads
            .call("lease_release", SMALL, store.lease_release(next.id))
            .await?;
        reads
            .call("instances_list", SMALL, store.instances_list())
            .await?;
        reads
            .call("signing_keys", SMALL, store.signing_keys())
            .await?;
        Ok(())
    }

    async fn sweep(&self, reads: &mut Reads) -> Result<()> {
        let store = &self.store;
        let over = "UPDATE sweep_pause SET until = '-infinity'";
        store.sql(over).await?;
        reads.begin_again();
        let load = InstanceLoad::default();
        reads
            .call(
                "lease_renew",
                SMALL,
                store.lease_renew(self.mine.id, TTL, &load, MINUTE),
            )
            .await?;
        reads
            .call(
                "leases_fence",
                SMALL,
                store.leases_fence(self.mine.id, MINUTE),
            )
            .await?;
        reads
            .call(
                "sessions_sweep",
                SWEEP,
                store.sessions_sweep(self.mine.id, MINUTE),
            )
            .await?;
        Ok(())
    }

    async fn sessions(&self, reads: &mut Reads) -> Result<()> {
        let (store, mine, ids) = (&self.store, self.mine.id, self.ids());
        reads
            .call("sessions_digest", SESSIONS, store.sessions_digest(mine))
            .await?;
        reads
            .call("sessions_stored", SESSIONS, store.sessions_stored(mine))
            .await?;
        reads
            .call("agents_keys", SMALL, store.agents_keys(&ids))
            .await?;
        let opens: Vec<SessionOpen> = ids.iter().map(|id| open(*id)).collect();
        reads
            .call(
                "sessions_open",
                SMALL,
                store.sessions_open(mine, &opens, MINUTE),
            )
            .await?;
        let instances: Vec<AgentId> = self.agents[..INSTANCE].iter().map(|one| one.id).collect();
        let all: Vec<(AgentId, i64)> = instances.iter().map(|id| (*id, self.calls)).collect();
        reads
            .call(
                "sessions_displaced",
                60 * INSTANCE as u64,
                store.sessions_displaced(mine, &all),
            )
            .await?;
        reads
            .call(
                "watermarks",
                60 * INSTANCE as u64,
                store.watermarks(&instances),
            )
            .await?;
        let held = all[..BATCH].to_vec();
        reads
            .call(
                "sessions_reclaim",
                SMALL,
                store.sessions_reclaim(mine, &held),
            )
            .await?;
        let heard = |&(agent_id, epoch): &(AgentId, i64)| SessionHeard {
            agent_id,
            epoch,
            at: Timestamp::now(),
        };
        let heard: Vec<SessionHeard> = held.iter().map(heard).collect();
        reads
            .call("sessions_heard", SMALL, store.sessions_heard(&heard))
            .await?;
        let cause = CloseCause::Drained { back_in: MINUTE };
        let close = |&(agent_id, epoch): &(AgentId, i64)| SessionClose {
            agent_id,
            epoch,
            cause,
        };
        let closes: Vec<SessionClose> = held.iter().map(close).collect();
        reads
            .call("sessions_close", SMALL, store.sessions_close(&closes))
            .await?;
        Ok(())
    }

    /// Ranges that continue above the watermark, with a sample of an hour that is past, and the same again.
    async fn samples(&self, reads: &mut Reads) -> Result<()> {
        let (store, ids) = (&self.store, self.ids());
        let gap = GapRow {
            first_seq: 3 * self.calls - 1,
            last_seq: 3 * self.calls - 1,
            kind: GapKind::Declared,
            reason: "test".into(),
        };
        let range = |agent: &TestAgent| {
            let late = sample(3 * self.calls, hours_ago(3 * self.calls));
            let samples = [sample(3 * self.calls - 2, Timestamp::now()), late];
            agent.range(&samples, slice::from_ref(&gap))
        };
        let ranges: Vec<Range> = self.batch().iter().map(range).collect();
        for _ in 0..2 {
            reads
                .call("samples_append", APPEND, store.samples_append(&ranges))
                .await?;
        }
        let numbers: Vec<(AgentId, i64)> = ids.iter().map(|id| (*id, 1)).collect();
        reads
            .call(
                "dead_letters_confirm",
                SMALL,
                store.dead_letters_confirm(&numbers),
            )
            .await?;
        let hosts: Vec<HostId> = self.batch().iter().map(|agent| agent.host).collect();
        reads
            .call("hosts_identify", SMALL, store.hosts_identify(&hosts))
            .await?;
        Ok(())
    }

    async fn registrations(&self, reads: &mut Reads) -> Result<()> {
        let (store, ids) = (&self.store, self.ids());
        let keys: Vec<[u8; 32]> = (0..BATCH).map(|_| key()).collect();
        let asked: Vec<(&[u8; 32], Option<&[u8; 32]>)> =
            keys.iter().map(|key| (key, Some(&[7; 32]))).collect();
        reads
            .call(
                "registrations_lookup",
                SMALL,
                store.registrations_lookup(&asked),
            )
            .await?;
        let facts: Vec<HostFacts> = keys.iter().map(|_| machine()).collect();
        let agent = AgentFacts::default();
        let newcomer = |(key, facts)| Newcomer {
            key,
            token: &[7; 32],
            facts,
            agent: &agent,
            address: Ipv4Addr::LOCALHOST.into(),
        };
        let newcomers: Vec<Newcomer<'_>> = keys.iter().zip(&facts).map(newcomer).collect();
        reads
            .call(
                "registrations_admit",
                SMALL,
                store.registrations_admit(&newcomers),
            )
            .await?;
        reads
            .call(
                "agents_statuses",
                SMALL,
                store.agents_statuses(Bulkhead::Auth, &ids),
            )
            .await?;
        reads
            .call(
                "reinstalls_admit",
                REINSTALLED,
                store.reinstalls_admit(MINUTE),
            )
            .await?;
        Ok(())
    }

    /// A machine whose agent is known registers with another key, step by step.
    async fn registration_steps(&self, reads: &mut Reads) -> Result<()> {
        let (key, facts) = (key(), machine());
        let steps = async |tx: RegistrationTx| -> Result<(), StoreError> {
            let agent = AgentFacts::default();
            tx.registration_lock(&[&key], &facts.identifiers).await?;
            tx.agent_by_key(&key, MINUTE).await?;
            let token = tx.token_by_hash(&[7; 32], None, MINUTE).await?;
            tx.host_match(&facts.identifiers).await?;
            let host = tx.host_insert(&facts).await?;
            tx.host_match(&facts.identifiers).await?;
            tx.token_by_hash(&[7; 32], Some(host), MINUTE).await?;
            tx.same_machine(host, &facts.identifiers).await?;
            tx.host_refresh(host, &facts).await?;
            tx.host_label(host, self.token).await?;
            let new = NewAgent {
                key: &key,
                host_id: host,
                status: AgentStatus::Pending,
                pending_reason: Some("approval"),
                conflict_with: None,
                cloned_from: None,
                token_id: token.map(|token| token.id),
                decided_by: None,
                facts: &facts,
                agent: &agent,
                address: Ipv4Addr::LOCALHOST.into(),
            };
            let id = tx.agent_insert(&new).await?;
            tx.agent_refresh(id, &agent, &facts).await?;
            tx.agent_contest(id).await?;
            if let Some(known) = tx.agent_by_key(&key, MINUTE).await? {
                tx.machine_changed(&known, &facts.identifiers).await?;
            }
            tx.clones_pending(id).await?;
            tx.token_spend(self.token, &key).await?;
            tx.agent_approve(id, "test", None).await?;
            tx.agent_revoke(id, "test", "test").await
        };
        let run = self.store.registration_run("registration", steps);
        // To count the clones that wait, PostgreSQL may look at all pending agents, if its statistics know of none.
        reads.call("registration steps", WHOLE, run).await
    }

    async fn upkeep(&self, reads: &mut Reads) -> Result<()> {
        let store = &self.store;
        reads
            .call("fleet_gauges", WHOLE, store.fleet_gauges(self.mine.id, DAY))
            .await?;
        reads
            .call("hosts_expire", WHOLE, store.hosts_expire(DAY, "test"))
            .await?;
        reads
            .call("events_prune", WHOLE, store.events_prune(DAY))
            .await?;
        reads
            .call("gaps_prune", WHOLE, store.gaps_prune(DAY))
            .await?;
        reads
            .call("shapes_prune", WHOLE, store.shapes_prune(DAY, DAY))
            .await?;
        reads
            .call("agent_counts_prune", WHOLE, store.agent_counts_prune())
            .await?;
        reads
            .call("hosts_set_aside", WHOLE, store.hosts_set_aside())
            .await?;
        Ok(())
    }

    /// People wait for these, with longer limits.
    async fn commands(&self, reads: &mut Reads) -> Result<()> {
        let (store, first) = (TestStore::open(self.store.url(), 4)?, self.batch()[0]);
        reads.call("overview", WHOLE, store.overview()).await?;
        reads
            .call(
                "agents_list",
                WHOLE,
                store.agents_list(&AgentFilter::default(), 50),
            )
            .await?;
        let filter = AgentFilter {
            token: Some(self.token),
            ..AgentFilter::default()
        };
        reads
            .call("agents_list", WHOLE, store.agents_list(&filter, 50))
            .await?;
        reads
            .call("agents_find", WHOLE, store.agents_find("web-1", 50))
            .await?;
        reads
            .call("agent_show", SMALL, store.agent_show(first.id))
            .await?;
        reads
            .call(
                "hosts_list",
                WHOLE,
                store.hosts_list(&HostFilter::default(), 50),
            )
            .await?;
        reads
            .call("hosts_find", WHOLE, store.hosts_find("web-1", 50))
            .await?;
        reads
            .call("host_show", SMALL, store.host_show(first.host))
            .await?;
        reads
            .call("host_books", SMALL, store.host_books(first.host))
            .await?;
        reads
            .call("tokens_list", WHOLE, store.tokens_list(50))
            .await?;
        reads
            .call("tokens_find", WHOLE, store.tokens_find("fleet", 50))
            .await?;
        reads
            .call("token_show", WHOLE, store.token_show(self.token))
            .await?;
        reads
            .call("token_by_hash", SMALL, store.token_by_hash(&[7; 32]))
            .await?;
        reads
            .call(
                "token_current_agents",
                WHOLE,
                store.token_current_agents(self.token),
            )
            .await?;
        let last = self.agents[self.agents.len() - usize::try_from(self.calls)?];
        reads
            .call(
                "agent_decide",
                SMALL,
                store.agent_decide(last.id, Decision::Revoke, "test", None),
            )
            .await?;
        reads
            .call(
                "host_retire",
                SMALL,
                store.host_retire(last.host, "test", None),
            )
            .await?;
        let (key, token) = (key(), token());
        let spare = reads
            .call("token_create", SMALL, store.token_create(&key, &token))
            .await?;
        reads
            .call(
                "token_revoke",
                SMALL,
                store.token_revoke(spare, "test", true),
            )
            .await?;
        Ok(())
    }

    /// Pages and actions of the web console. People wait for them, with longer limits.
    async fn console(&self, reads: &mut Reads) -> Result<()> {
        let store = TestStore::open(self.store.url(), 4)?;
        let (host, agent) = (self.batch()[0].host, self.batch()[0].id);
        let hosts: Vec<Uuid> = self.batch().iter().map(|agent| agent.host.0).collect();
        let since = Timestamp::now() - SignedDuration::from_hours(24);
        let page = |search| HostsPage {
            search,
            ..HostsPage::default()
        };
        let online = HostSearch {
            online: Some(true),
            ..HostSearch::default()
        };
        let skewed = HostSearch {
            skewed: true,
            ..HostSearch::default()
        };
        let of_token = HostSearch {
            token: Some(self.token.0),
            ..HostSearch::default()
        };
        let label = LabelChange {
            added: "env=test".parse()?,
            removed: Vec::new(),
        };
        // Nobody else needs these two.
        let ends = &self.agents[AGENTS / 4 + 2 * usize::try_from(self.calls)?..];
        let (retired, revoked) = ([ends[0].host.0], [ends[1].host.0]);
        let request = TokenRequest {
            label: "fleet".to_owned(),
            max_uses: 1,
            expires_in: None,
            labels: Labels::default(),
        };
        call_each! { reads, WHOLE, store:
            console_counts();
            console_attention();
            console_instances();
            console_database();
            console_pending_count();
            console_hosts(&HostsPage::default(), 50);
            console_hosts(&page(online), 50);
            console_hosts(&page(skewed), 50);
            console_hosts(&page(of_token), 50);
            console_activity(&ActivityFilter::default(), None, 50);
            console_hosts_by_id(&hosts);
            console_host_exists(host);
            console_hosts_online(&hosts);
            console_sparklines(&hosts, since);
            console_samples(host, since);
            console_rollups(host, since, "hour");
            console_gaps(host, since);
            console_presence(host, since);
            console_host_events(host, since);
            console_note_add(host, Some(agent), "test", "a note");
            console_hosts_label(&hosts, &label, "test");
            console_hosts_retire(&retired, "test", None);
            console_hosts_revoke(&revoked, "test", Some("test"));
        }
        let key = key();
        let added = store.console_token_add(&key, &request, "test");
        let added = reads.call("console_token_add", SMALL, added).await?;
        let added = store.token_show(added).await?.context("the token")?.token;
        reads.begin_again();
        let revoked = store.console_token_revoke(&added, true, "test", None);
        reads.call("console_token_revoke", SMALL, revoked).await?;
        Ok(())
    }
}

fn quoted(agents: &[TestAgent]) -> String {
    let ids = agents.iter().map(|agent| format!("'{}'", agent.id));
    ids.collect::<Vec<_>>().join(", ")
}

fn token() -> NewToken {
    NewToken {
        label: "fleet".to_owned(),
        auto_approve: true,
        allow_reinstall: true,
        max_uses: 100_000,
        expires_in: None,
        labels: Labels::default(),
        created_by: "test".to_owned(),
    }
}

/// The key of a new client.
fn key() -> [u8; 32] {
    let (one, other) = (Uuid::now_v7(), Uuid::new_v4());
    let mut key = [0; 32];
    key[..16].copy_from_slice(one.as_bytes());
    key[16..].copy_from_slice(other.as_bytes());
    key
}

fn machine() -> HostFacts {
    let identifiers = [(IdentifierKind::Machine, vec![Uuid::new_v4().to_string()])];
    HostFacts {
        hostname: "new".to_owned(),
        identifiers: identifiers.into(),
        ..HostFacts::default()
    }
}

fn open(agent: AgentId) -> SessionOpen {
    let now = Timestamp::now();
    let key = digest(&SHA256, agent.0.to_string().as_bytes());
    let hex = key.as_ref().iter().map(|byte| format!("{byte:02x}"));
    SessionOpen {
        agent_id: agent,
        key: hex.collect(),
        boot_id: "boot".to_owned(),
        run_id: "run".to_owned(),
        version: "1.0.0".to_owned(),
        capabilities: Vec::new(),
        facts: HostFacts::default(),
        address: Ipv4Addr::LOCALHOST.into(),
        skew_ms: None,
        requested_at: now,
        valid_until: now + SignedDuration::from_mins(1),
    }
}
