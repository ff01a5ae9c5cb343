//! Registrations. A new key on an unknown machine is registered in a batch with others
//! (`newcomers`). For every other registration there are steps, which the service's module `enrol`
//! composes in one transaction.
//!
//! **Lock order.** First advisory locks on the client's key, then on the machine's identifiers,
//! each sorted ([`RegistrationTx::registration_lock`]); at the end the token's row
//! ([`RegistrationTx::token_spend`]). All registrations of one key, and all of one machine, are
//! thereby serialized over all instances: two concurrent calls with one key create one agent,
//! and two new keys on one machine do not both become active. The locks are advisory because
//! the rows of a new key and a new machine do not exist yet. The token's row is locked last,
//! because thousands of registrations may share a token. A batch of newcomers locks its tokens
//! first and waits for no advisory lock (`schema/25_registration.sql`).

mod agents;
mod hosts;
mod newcomers;
mod tokens;

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};

pub use agents::{KnownAgent, NewAgent};
pub use hosts::HostMatch;
pub use newcomers::{Newcomer, RegisteredNewcomer};
pub use tokens::{TokenEffect, TokenRow, TokenState};

use crate::{prelude::*, values::facts::Identifiers};

/// What a first read, without locks, finds about a client.
#[derive(Clone, Debug, Default)]
pub struct RegistrationLookup {
    pub key_known: bool,
    pub token: Option<TokenState>,
}

impl RegistrationLookup {
    fn from_row(row: &Row) -> Result<RegistrationLookup> {
        let token = match row.try_get::<_, Option<&str>>("state")? {
            Some(_) => Some(TokenState::from_row(row)?),
            None => None,
        };
        Ok(RegistrationLookup {
            key_known: row.try_get("key_known")?,
            token,
        })
    }
}

/// The transaction of a registration. Its methods are the only statements that other
/// crates can combine, so all SQL stays in this crate.
#[derive(Debug)]
pub struct RegistrationTx(Tx);

impl Store {
    /// One cheap read for many clients, so that an unknown client without a usable token costs
    /// no transaction. The answers are in the order of the questions.
    pub async fn registrations_lookup(
        &self,
        clients: &[(&[u8; 32], Option<&[u8; 32]>)],
    ) -> Result<Vec<RegistrationLookup>> {
        let sql = "-- registrations_lookup
            SELECT EXISTS (SELECT FROM agents WHERE agents.key = asked.key)
                OR EXISTS (SELECT FROM agent_keys WHERE agent_keys.key = asked.key) AS key_known, token.*
              FROM unnest($1, $2) WITH ORDINALITY asked (key, token, number)
              LEFT JOIN LATERAL (
                SELECT expires_at, revoked_at, last_used_at, enrolment_token_state(found) AS state
                  FROM enrolment_tokens found WHERE hash = asked.token) token ON true
             ORDER BY asked.number";
        let arrays = Arrays::default()
            .column(clients, |(key, _)| key.to_vec())
            .column(clients, |(_, token)| token.map(|token| token.to_vec()));
        let name = "registrations_lookup";
        let rows = self.read(name, Auth, sql, &arrays.params()).await?;
        rows.iter().map(RegistrationLookup::from_row).collect()
    }

    /// Runs a registration, composed by the caller from the steps of [`RegistrationTx`],
    /// in one transaction. It is retried after a conflict, so `f` may run several times.
    pub async fn registration_run<T, F, Fut>(&self, name: &'static str, f: F) -> Result<T>
    where
        F: Fn(RegistrationTx) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        self.run(name, Auth, |tx| f(RegistrationTx(tx))).await
    }

    /// Approves pending conflicts whose token replaces the host's active agent by now
    /// (`enrolment_token_effect`). At most one per host, because the approved agent then gets
    /// its own time to connect. Any number of instances may call this at once.
    ///
    /// The token must not be revoked. It may be expired or exhausted, because the pending agent
    /// took its use at registration.
    ///
    /// An agent that went offline in the future did so before the clock was set back, and no one
    /// knows how long before. Its quiet time begins again.
    ///
    /// Presence is looked up for each conflict. A join would let the planner begin with all agents
    /// that are offline, if it believes that there are few.
    pub async fn reinstalls_admit(&self, quiet: Duration) -> Result<Vec<AgentId>> {
        let sql = "-- reinstalls_admit
            SELECT a.id, a.host_id, t.id AS token_id
              FROM agents a
              JOIN enrolment_tokens t ON t.id = a.token_id
              JOIN agents old ON old.host_id = a.host_id AND old.status = 'active'
             WHERE a.status = 'pending' AND a.pending_reason = 'conflict'
               AND enrolment_token_state(t) <> 'revoked'
               AND enrolment_token_effect(
                     t, old.id, (SELECT s.presence_since FROM agent_state s WHERE s.agent_id = old.id AND s.presence = 'offline'), $1)
                   = 'replace'
             ORDER BY a.id LIMIT 100 FOR UPDATE OF a, old SKIP LOCKED";
        let restart = "-- reinstalls_admit
            UPDATE agent_state SET presence_since = now()
             WHERE agent_id = ANY (ARRAY (
                   SELECT s.agent_id
                     FROM agents a
                     JOIN agents old ON old.host_id = a.host_id AND old.status = 'active'
                    CROSS JOIN LATERAL (
                          SELECT agent_id FROM agent_state
                           WHERE agent_id = old.id AND presence = 'offline' AND presence_since > clock_timestamp()
                             FOR UPDATE SKIP LOCKED) s
                    WHERE a.status = 'pending' AND a.pending_reason = 'conflict'
                    LIMIT 100))";
        let seconds = quiet.as_secs_f64();
        self.run("reinstalls_admit", Auth, |tx| async move {
            tx.execute(restart, &[]).await?;
            let mut hosts: HashSet<HostId> = HashSet::new();
            let mut admitted = Vec::new();
            let tx = RegistrationTx(tx);
            for row in tx.0.query(sql, &params![seconds]).await? {
                if hosts.insert(row.try_get("host_id")?) {
                    let agent = row.try_get("id")?;
                    let token: TokenId = row.try_get("token_id")?;
                    tx.agent_approve(agent, &format!("token {token}"), Some("replace"))
                        .await?;
                    admitted.push(agent);
                }
            }
            Ok(admitted)
        })
        .await
    }
}

impl RegistrationTx {
    pub(crate) fn tx(&self) -> &Tx {
        &self.0
    }

    /// Serializes this transaction with all others for these keys or this machine.
    pub async fn registration_lock(&self, keys: &[&[u8; 32]], machine: &Identifiers) -> Result<()> {
        let locks = lock_ids(keys, machine);
        let sql = "-- registration_lock
            SELECT pg_advisory_xact_lock(lock) FROM unnest($1::bigint[]) AS locks(lock)";
        self.0.execute(sql, &params![locks]).await.map(drop)
    }
}

/// Kinds and values of all identifiers.
fn pairs(machine: &Identifiers) -> impl Iterator<Item = (&str, &String)> {
    let pairs = machine.iter();
    pairs.flat_map(|(kind, values)| values.iter().map(move |value| (kind.as_str(), value)))
}

/// The keys of the advisory locks of a registration, in the lock order.
fn lock_ids(keys: &[&[u8; 32]], machine: &Identifiers) -> Vec<i64> {
    let keys: BTreeSet<i64> = keys.iter().map(|key| lock_id("key", &key[..])).collect();
    let identifiers = pairs(machine).map(|(kind, value)| lock_id(kind, value.as_bytes()));
    let identifiers: BTreeSet<i64> = identifiers.collect();
    keys.into_iter().chain(identifiers).collect()
}

/// The key of an advisory lock: 64 bits of SHA-256, so that collisions with the constants in
/// `statements/locks` and with each other are improbable. A collision would only serialize two
/// registrations.
pub(super) fn lock_id(domain: &str, value: &[u8]) -> i64 {
    let hash = digest(&SHA256, &[domain.as_bytes(), b"\0", value].concat());
    let mut id = [0; 8];
    id.copy_from_slice(&hash.as_ref()[..8]);
    i64::from_be_bytes(id)
}
