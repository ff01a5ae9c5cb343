//! New keys on unknown machines, registered in batches. This is what a crowd of new agents consists of.
//!
//! The SQL function `registrations_admit` (`schema/25_registration.sql`) registers the obvious cases. Everything
//! else, it leaves to the steps of [`RegistrationTx`](super::RegistrationTx).

use std::net::IpAddr;

use super::lock_ids;
use crate::{
    prelude::*,
    values::{
        facts::{AgentFacts, HostFacts},
        status::AgentStatus,
    },
};

/// A client that asks to be registered with a token.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    pub key: &'a [u8; 32],
    pub token: &'a [u8; 32],
    pub facts: &'a HostFacts,
    pub agent: &'a AgentFacts,
    /// The address of the client.
    pub address: IpAddr,
}

record! {
    /// A newcomer that was registered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RegisteredNewcomer {
        pub agent_id: AgentId,
        pub host_id: HostId,
        pub status: AgentStatus,
    }
}

/// What the function needs besides key and token.
#[derive(Debug, Serialize)]
struct Details<'a> {
    locks: Vec<i64>,
    version: &'a str,
    capabilities: &'a [String],
    facts: &'a HostFacts,
    address: IpAddr,
}

impl Store {
    /// Registers the newcomers whose key and machine are unknown and whose token can be used. The
    /// others are `None`, and nothing was changed for them. The results are in the order of
    /// `newcomers`.
    pub async fn registrations_admit(
        &self,
        newcomers: &[Newcomer<'_>],
    ) -> Result<Vec<Option<RegisteredNewcomer>>> {
        let sql = "-- registrations_admit
            SELECT number, agent_id, host_id, status FROM registrations_admit($1, $2, $3)";
        let details: Vec<Details<'_>> = newcomers.iter().map(Details::of).collect();
        let arrays = Arrays::default()
            .column(newcomers, |one| one.key.to_vec())
            .column(newcomers, |one| one.token.to_vec())
            .value(Json(details));
        let params = arrays.params();
        let rows = self.call("registrations_admit", Auth, sql, &params);
        let mut admitted = vec![None; newcomers.len()];
        for row in rows.await? {
            let number: i64 = row.try_get("number")?;
            let index = usize::try_from(number - 1).ok();
            if let Some(slot) = index.and_then(|index| admitted.get_mut(index)) {
                *slot = Some(RegisteredNewcomer::from_row(&row)?);
            }
        }
        Ok(admitted)
    }
}

impl<'a> Details<'a> {
    fn of(newcomer: &Newcomer<'a>) -> Self {
        Self {
            locks: lock_ids(&[newcomer.key], &newcomer.facts.identifiers),
            version: &newcomer.agent.version,
            capabilities: &newcomer.agent.capabilities,
            facts: newcomer.facts,
            address: newcomer.address,
        }
    }
}
