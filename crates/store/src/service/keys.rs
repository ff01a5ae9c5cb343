//! The keys of agents beside the present one: how a client's key stands, next keys, and who is asked for another key.

use std::net::IpAddr;

use super::registration::lock_id;
use crate::prelude::*;

text_enum! {
    /// How a key stands to an agent that exists.
    pub enum KeyStanding {
        Present = "present",
        /// Announced by the agent; its first use retires the present one.
        Next = "next",
        Retired = "retired",
        /// Not a key of this agent.
        Unknown = "unknown",
    }
    else Unknown
}

/// A key that a client proves to hold, and the agent that it says it is.
#[derive(Clone, Copy, Debug)]
pub struct KeyQuestion {
    pub agent: AgentId,
    pub key: [u8; 32],
    pub address: IpAddr,
}

/// A key that an agent announced on its stream, and proved to hold.
#[derive(Clone, Copy, Debug)]
pub struct NextKey {
    pub agent: AgentId,
    /// Of the stream.
    pub epoch: i64,
    pub key: [u8; 32],
}

impl Store {
    /// How these keys stand; `None`: there is no such agent. Records that a retired one was used.
    pub async fn agents_keys(&self, asked: &[KeyQuestion]) -> Result<Vec<Option<KeyStanding>>> {
        let sql = "-- agents_keys
            SELECT CASE WHEN a.id IS NULL THEN NULL WHEN a.key = asked.key THEN 'present'
                        ELSE coalesce(agent_key_state(a.id, asked.key), 'unknown') END AS standing
              FROM unnest($1, $2) WITH ORDINALITY AS asked(id, key, number)
              LEFT JOIN agents a ON a.id = asked.id ORDER BY asked.number";
        let arrays = Arrays::default()
            .column(asked, |asked| asked.agent.0)
            .column(asked, |asked| asked.key.to_vec());
        let params = arrays.params();
        let rows = self.read("agents_keys", Auth, sql, &params);
        let standing = |row: &Row| {
            let text: Option<&str> = row.try_get("standing")?;
            Ok(text.map(KeyStanding::from_column))
        };
        let found: Vec<_> = rows.await?.iter().map(standing).collect::<Result<_>>()?;
        let is_retired = |standing: &Option<_>| *standing == Some(KeyStanding::Retired);
        let retired = asked
            .iter()
            .zip(&found)
            .filter(|(_, found)| is_retired(found));
        let retired: Vec<KeyQuestion> = retired.map(|(asked, _)| *asked).collect();
        if !retired.is_empty() {
            let sql = "-- agent_keys_used\nSELECT agent_keys_used($1, $2)";
            let arrays = Arrays::default()
                .column(&retired, |asked| asked.key.to_vec())
                .column(&retired, |asked| asked.address);
            self.call("agent_keys_used", Auth, sql, &arrays.params())
                .await?;
        }
        Ok(found)
    }

    /// Stores next keys. Returns for each agent why its key was refused, or an empty text; an agent whose row is locked, or
    /// that has a newer stream, is left out.
    pub async fn agent_keys_store(&self, announced: &[NextKey]) -> Result<Vec<(AgentId, String)>> {
        let sql = "-- agent_keys_store
            SELECT agent_id, refused FROM agent_keys_store($1, $2, $3, $4)";
        let lock = |next: &NextKey| lock_id("key", &next.key);
        let mut locks: Vec<i64> = announced.iter().map(lock).collect();
        locks.sort_unstable();
        let arrays = Arrays::default()
            .column(announced, |next| next.agent.0)
            .column(announced, |next| next.epoch)
            .column(announced, |next| next.key.to_vec())
            .value(locks);
        let params = arrays.params();
        let rows = self.call("agent_keys_store", Auth, sql, &params).await?;
        let stored = |row: &Row| Ok((row.try_get("agent_id")?, row.try_get("refused")?));
        rows.iter().map(stored).collect()
    }

    /// The agents with a stream on this instance for which a person has asked for another key since then, and when.
    pub async fn agents_to_change_key(
        &self,
        instance: Uuid,
        since: Timestamp,
    ) -> Result<Vec<(AgentId, Timestamp)>> {
        let sql = "-- agents_to_change_key
            SELECT a.id, a.key_change_at FROM agents a JOIN agent_state s ON s.agent_id = a.id
             WHERE a.key_change_at > $2 AND s.instance_id = $1 ORDER BY a.key_change_at";
        let params = params![instance, since];
        let rows = self
            .read("agents_to_change_key", Watch, sql, &params)
            .await?;
        let asked = |row: &Row| Ok((row.try_get("id")?, row.try_get("key_change_at")?));
        rows.iter().map(asked).collect()
    }
}
