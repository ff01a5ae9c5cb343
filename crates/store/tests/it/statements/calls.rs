//! One call of every method that the service and the commands use, for a batch of agents of a large fleet.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use svc_store::{
    ActivityFilter, AgentFacts, AgentFilter, AgentId, AgentSettings, AgentStatus, Apply, Bulkhead,
    CloseCause, Decision, GapKind, HostFacts, HostId, HostSearch, HostsPage, Hours, IdentifierKind,
    InstanceLoad, KeyChange, KeyQuestion, LabelChange, Labels, MoveFilter, NewAgent, NewAnchor,
    NewInstance, NewRelease, NewRollout, NewRule, NewToken, Newcomer, NextKey, Range,
    RegistrationTx, Retired, RolloutStep, RuleChange, SessionClose, SessionHeard, SessionOpen,
    SettingsReport, Stage, StoreError, TokenId, TokenRequest, TrustReport, UpdateReport,
    UpdateStep,
};
use uuid::Uuid;

use super::{AGENTS, reads::Reads};
use crate::{
    fixtures::*,
    leases::{OUTAGE_GRACE, claimed, instance},
    support::*,
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

/// Calls of the store whose results do not matter, with one budget.
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
        let (mine, lost) = (claimed(&store, "k").await?, claimed(&store, "k").await?);
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
        self.updates(reads).await?;
        self.settings(reads).await?;
        self.trust(reads).await?;
        self.cells(reads).await?;
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
        let load = InstanceLoad::default();
        call_each! { reads, SMALL, store:
            lease_claim(&next, TTL, OUTAGE_GRACE);
            lease_claim(&self.mine, TTL, OUTAGE_GRACE);
            lease_renew(next.id, TTL, &load, MINUTE);
            lease_release(next.id);
            instances_list(1000);
            signing_keys();
        }
        Ok(())
    }

    async fn sweep(&self, reads: &mut Reads) -> Result<()> {
        let (store, mine) = (&self.store, self.mine.id);
        let over = "UPDATE sweep_pause SET until = '-infinity'";
        store.sql(over).await?;
        reads.begin_again();
        let load = InstanceLoad::default();
        call_each! { reads, SMALL, store:
            lease_renew(mine, TTL, &load, MINUTE);
            leases_fence(mine, MINUTE);
        }
        call_each! { reads, SWEEP, store: sessions_sweep(mine, MINUTE); }
        Ok(())
    }

    async fn sessions(&self, reads: &mut Reads) -> Result<()> {
        let (store, mine) = (&self.store, self.mine.id);
        // A retired key of each, so that its use is recorded.
        for agent in self.batch() {
            let key: String = key_of(agent, 0)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let retired = format!(
                "INSERT INTO agent_keys (key, agent_id, retired_at) VALUES ('\\x{key}', '{}', now()) ON CONFLICT DO NOTHING",
                agent.id
            );
            store.sql(&retired).await?;
        }
        reads.begin_again();
        let asked = |agent: &TestAgent| KeyQuestion {
            agent: agent.id,
            key: key_of(agent, 0),
            address: Ipv4Addr::LOCALHOST.into(),
        };
        let asked: Vec<KeyQuestion> = self.batch().iter().map(asked).collect();
        call_each! { reads, SESSIONS, store:
            sessions_digest(mine);
            sessions_stored(mine);
        }
        let opens: Vec<SessionOpen> = self.batch().iter().map(TestAgent::session).collect();
        call_each! { reads, SMALL, store:
            agents_keys(&asked);
            sessions_open(mine, &opens, MINUTE);
            agents_to_change_key(mine, Timestamp::now());
        }
        let next = |agent: &TestAgent| NextKey {
            agent: agent.id,
            epoch: self.calls,
            key: key_of(agent, self.calls),
        };
        let next: Vec<NextKey> = self.batch().iter().map(next).collect();
        call_each! { reads, SMALL, store: agent_keys_store(&next); }
        let instances: Vec<AgentId> = self.agents[..INSTANCE].iter().map(|one| one.id).collect();
        let all: Vec<(AgentId, i64)> = instances.iter().map(|id| (*id, self.calls)).collect();
        call_each! { reads, 60 * INSTANCE as u64, store:
            sessions_displaced(mine, &all);
            watermarks(&instances);
        }
        let held = &all[..BATCH];
        let heard = |&(agent_id, epoch): &(AgentId, i64)| SessionHeard {
            agent_id,
            epoch,
            at: Timestamp::now(),
        };
        let heard: Vec<SessionHeard> = held.iter().map(heard).collect();
        let close = |&(agent_id, epoch): &(AgentId, i64)| SessionClose {
            agent_id,
            epoch,
            cause: CloseCause::Drained { back_in: MINUTE },
        };
        let closes: Vec<SessionClose> = held.iter().map(close).collect();
        call_each! { reads, SMALL, store:
            sessions_reclaim(mine, held);
            sessions_heard(&heard);
            sessions_close(&closes);
        }
        Ok(())
    }

    /// Ranges that continue above the watermark, with a sample of an hour that is past, and the same again.
    async fn samples(&self, reads: &mut Reads) -> Result<()> {
        let (store, ids) = (&self.store, self.ids());
        let last = 3 * self.calls;
        let gaps = [gap(last - 1..=last - 1, GapKind::Declared)];
        let range = |agent: &TestAgent| {
            let late = sample(last, hours_ago(last));
            agent.range(&[sample(last - 2, Timestamp::now()), late], &gaps)
        };
        let ranges: Vec<Range> = self.batch().iter().map(range).collect();
        let numbers: Vec<(AgentId, i64)> = ids.iter().map(|id| (*id, 1)).collect();
        let hosts: Vec<HostId> = self.batch().iter().map(|agent| agent.host).collect();
        call_each! { reads, APPEND, store:
            samples_append(&ranges);
            samples_append(&ranges);
        }
        call_each! { reads, SMALL, store:
            dead_letters_confirm(&numbers);
            hosts_identify(&hosts);
        }
        Ok(())
    }

    async fn registrations(&self, reads: &mut Reads) -> Result<()> {
        let (store, ids) = (&self.store, self.ids());
        let keys: Vec<[u8; 32]> = (0..BATCH).map(|_| key()).collect();
        let asked: Vec<(&[u8; 32], Option<&[u8; 32]>)> =
            keys.iter().map(|key| (key, Some(&[7; 32]))).collect();
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
        call_each! { reads, SMALL, store:
            registrations_lookup(&asked);
            registrations_admit(&newcomers);
            agents_statuses(Bulkhead::Auth, &ids);
        }
        call_each! { reads, REINSTALLED, store: reinstalls_admit(MINUTE); }
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
            tx.retired_key_used(&key, Ipv4Addr::LOCALHOST.into())
                .await?;
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
        call_each! { reads, WHOLE, store:
            fleet_gauges(self.mine.id, DAY);
            hosts_expirable(DAY, 10);
            fleet_pictures_refresh(Duration::ZERO);
            hosts_expire(DAY, "test");
            events_prune(DAY);
            gaps_prune(DAY);
            shapes_prune(DAY, DAY);
            agent_counts_prune();
            hosts_set_aside();
        }
        Ok(())
    }

    /// A rule for all hosts, and what agents say of it.
    async fn settings(&self, reads: &mut Reads) -> Result<()> {
        let (store, ids) = (&self.store, self.ids());
        let report = SettingsReport {
            running: vec![],
            received: vec![],
            refused: vec![],
        };
        let reports: Vec<_> = ids.iter().map(|id| (*id, report.clone())).collect();
        let rule = RuleChange::Add(NewRule {
            priority: 1,
            selector: Labels::default(),
            patch: AgentSettings {
                interval: Some(30),
                ..AgentSettings::default()
            },
            share: 100,
        });
        call_each! { reads, SMALL, store: settings_report(&reports); }
        // The hosts of all rules are counted before and after a change: the person who makes it waits for that. Once is enough.
        if self.calls == 1 {
            let made = store.settings_change(&rule, Apply::Forced, "test", "");
            reads.call("settings_change", u64::MAX, made).await?;
        }
        call_each! { reads, WHOLE, store:
            settings_mark();
            settings_wanted(&ids);
            settings_rules();
            settings_of(ids[0]);
            settings_rule(1);
        }
        Ok(())
    }

    /// A rollout to all hosts, from its start to its end, and one that takes it back.
    async fn updates(&self, reads: &mut Reads) -> Result<()> {
        let store = TestStore::open(self.store.url(), 4)?;
        let (ids, first) = (self.ids(), 2 * self.calls);
        let report = |serial| UpdateReport {
            step: UpdateStep::None,
            serial,
            version: String::new(),
            platform: "linux/x86_64".to_owned(),
            reason: String::new(),
            log_tail: String::new(),
        };
        let reports: Vec<_> = ids.iter().map(|id| (*id, report(first - 1))).collect();
        for serial in [first, first + 1] {
            let release = NewRelease {
                serial,
                version: "2.0.0",
                platforms: &["linux/x86_64"],
                manifest: &[1],
                signature: &[0; 64],
            };
            call_each! { reads, SMALL, store: release_add(&release, "test"); }
        }
        let stages = [Stage::Hosts(5), Stage::Percent(100)];
        let rollout = NewRollout {
            serial: first,
            selector: &Labels::default(),
            stages: &stages,
            soak: Duration::ZERO,
            hours: Hours::default(),
            undoes: None,
        };
        call_each! { reads, SMALL, store:
            updates_report(&reports);
            rollout_start(&rollout, "test");
        }
        let running = store.rollouts_running(self.mine.id).await?;
        let running = running.last().context("the rollout")?;
        call_each! { reads, WHOLE, store:
            rollout_reach(first, stages[0]);
            rollouts_open();
            updates_offer(&ids, &[first]);
            rollout_figures(first, MINUTE);
            rollout_step(running, &RolloutStep::Advance);
            rollouts_running(self.mine.id);
            rollout_skip(first, self.batch()[0].host, "test", "");
            rollout_set(first, false, "test", "");
            rollout_back(first, first + 1, "test", "");
            rollout_set(first + 1, false, "test", "");
            releases_list(50);
            rollouts_list(50);
            rollout_show(first);
            rollout_preview(first, &Labels::default());
            agent_update(self.batch()[0].id);
        }
        Ok(())
    }

    /// Moves to another cell, and back.
    async fn cells(&self, reads: &mut Reads) -> Result<()> {
        let (store, agent) = (TestStore::open(self.store.url(), 4)?, self.batch()[0].id);
        let some = |agent, share| MoveFilter {
            labels: Labels::default(),
            agent,
            share,
        };
        let (all, one) = (some(None, 1), some(Some(agent), 100));
        let problems = [(agent, "no answer".to_owned())];
        call_each! { reads, WHOLE, store:
            cell_put("b", &["b:9443".to_owned()], &[], "test");
            moves_begin("b", &all, "test");
            moves_list(50);
            arrivals_export(&all, Uuid::nil(), 50);
            moves_stop(&all, "test");
        }
        call_each! { reads, SMALL, store:
            cells_list();
            cell_remove("none");
            moves_open(self.mine.id);
            move_of(agent);
            moves_problems(&problems);
        }
        // It is here already, if it is active.
        for arrival in store.arrivals_export(&one, Uuid::nil(), 1).await? {
            let mut key = [0; 32];
            let digits = arrival.key.as_bytes().chunks(2);
            for (byte, digits) in key.iter_mut().zip(digits) {
                *byte = u8::from_str_radix(str::from_utf8(digits)?, 16)?;
            }
            call_each! { reads, SMALL, store: arrival_admit(&key, &arrival, "test"); }
        }
        Ok(())
    }

    /// A trust anchor from its announcement to its end.
    async fn trust(&self, reads: &mut Reads) -> Result<()> {
        let store = TestStore::open(self.store.url(), 4)?;
        let certificate = self.calls.to_be_bytes();
        let anchor = NewAnchor {
            certificate: &certificate,
            subject: "CN=test",
            not_after: Timestamp::now(),
        };
        call_each! { reads, SMALL, store: trust_add(&anchor, "test"); }
        let hash = "SELECT hash FROM trust_anchors WHERE retired_at IS NULL";
        let hash = store.sql(hash).await?;
        let report = TrustReport {
            anchors: vec![hash.clone()],
            problem: String::new(),
        };
        let ids = self.ids();
        let reports: Vec<_> = ids.iter().map(|id| (*id, Some(report.clone()))).collect();
        call_each! { reads, SMALL, store:
            trust_list(0);
            trust_report(&reports);
            trust_behind(&ids);
            agent_trust(ids[0]);
        }
        call_each! { reads, WHOLE, store:
            trust_anchors();
            trust_locked_out(&hash, 50);
            trust_retire(&hash, true, "test");
        }
        Ok(())
    }

    /// People wait for these, with longer limits.
    async fn commands(&self, reads: &mut Reads) -> Result<()> {
        let (store, first) = (TestStore::open(self.store.url(), 4)?, self.batch()[0]);
        let of_token = AgentFilter {
            token: Some(self.token),
            ..AgentFilter::default()
        };
        let change = KeyChange {
            agent: Some(first.id),
            share: 100.0,
            ..KeyChange::default()
        };
        call_each! { reads, WHOLE, store:
            overview();
            agents_list(&AgentFilter::default(), 50);
            agents_list(&of_token, 50);
            agents_find("web-1", 50);
            hosts_find("web-1", 50);
            tokens_list(50);
            tokens_find("fleet", 50);
            token_show(self.token);
            token_current_agents(self.token);
            agents_change_key(&change, "test", None);
        }
        let last = self.agents[self.agents.len() - usize::try_from(self.calls)?];
        call_each! { reads, SMALL, store:
            agent_show(first.id);
            host_show(first.host);
            host_books(first.host);
            token_by_hash(&[7; 32]);
            agent_decide(last.id, Decision::Revoke, "test", None);
            host_retire(last.host, "test", None);
        }
        let (key, token) = (key(), token());
        let create = store.token_create(&key, &token);
        let spare = reads.call("token_create", SMALL, create).await?;
        call_each! { reads, SMALL, store: token_revoke(spare, "test", true, None); }
        Ok(())
    }

    /// Pages and actions of the web console. People wait for them, with longer limits.
    async fn console(&self, reads: &mut Reads) -> Result<()> {
        let store = TestStore::open(self.store.url(), 4)?;
        let (host, agent) = (self.batch()[0].host, self.batch()[0].id);
        let hosts: Vec<Uuid> = self.batch().iter().map(|agent| agent.host.0).collect();
        let since = Timestamp::now() - SignedDuration::from_hours(24);
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
        // Whoever waits, each with its machine, its token and who else has that machine.
        call_each! { reads, 2 * WHOLE, store:
            agents_waiting(&AgentFilter::default(), None, 100);
        }
        call_each! { reads, WHOLE, store:
            console_counts();
            console_attention();
            console_database();
            console_pictures();
            console_fleet_presence(since);
            console_pending_count();
            console_hosts(&HostsPage::default(), 50);
            console_hosts(&page(|search| search.online = Some(true)), 50);
            console_hosts(&page(|search| search.hostname = Some("web-1".to_owned())), 50);
            console_hosts(&page(|search| search.retired = Retired::Too), 50);
            console_hosts(&page(|search| search.skewed = true), 50);
            console_hosts(&page(|search| search.offline_for = Some(TTL)), 50);
            console_hosts(&page(|search| search.token = Some(self.token.0)), 50);
            console_hosts(&page(|search| search.key = "3f2a91b0".parse().ok()), 50);
            agents_approve(&[], &[], "test", None);
            console_activity(&ActivityFilter::default(), None, 50);
            console_hosts_by_id(&hosts);
            console_host_state(host);
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
        let revoked = store.token_revoke(added, "test", true, Some("test"));
        reads.call("token_revoke", SMALL, revoked).await?;
        Ok(())
    }
}

fn quoted(agents: &[TestAgent]) -> String {
    let ids = agents.iter().map(|agent| format!("'{}'", agent.id));
    ids.collect::<Vec<_>>().join(", ")
}

fn page(change: impl FnOnce(&mut HostSearch)) -> HostsPage {
    let mut page = HostsPage::default();
    change(&mut page.search);
    page
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

/// A key of an agent, another one for each number.
fn key_of(agent: &TestAgent, number: i64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..16].copy_from_slice(agent.id.0.as_bytes());
    key[16..24].copy_from_slice(&number.to_be_bytes());
    key
}
