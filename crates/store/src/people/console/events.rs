//! The record of what happens to people. Its rows are written by a function of the service's schema: the web role can add to the record,
//! and neither delete nor change what it says.

use std::net::IpAddr;

use crate::{prelude::*, values::event_kind::EventKind};

text_enum! {
    /// What became of an attempt.
    pub enum Outcome {
        Done = "done",
        Refused = "refused",
        /// Refused unseen, after too many attempts.
        Limited = "limited",
    }
}

/// Who does something: a person at an address, or the user of a command.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// Empty: nobody proved to be anybody.
    pub actor: &'a str,
    pub address: Option<IpAddr>,
}

impl<'a> From<&'a str> for By<'a> {
    fn from(actor: &'a str) -> Self {
        Self {
            actor,
            address: None,
        }
    }
}

const SQL: &str = "-- people_event\nSELECT add_people_event($1, $2, nullif($3, ''), $4, $5, $6)";

impl Store {
    /// Records an attempt that changed nothing. `subject` is a known person, or empty.
    pub async fn console_attempt_failed(
        &self,
        kind: EventKind,
        outcome: Outcome,
        subject: &str,
        from: IpAddr,
        detail: &str,
    ) -> Result<()> {
        let params = params![
            kind.as_str(),
            subject,
            "",
            Some(from),
            outcome.as_str(),
            detail
        ];
        self.call("people_event", Auth, SQL, &params)
            .await
            .map(drop)
    }
}

/// Records what was done, in the transaction that does it.
pub(super) async fn event(
    tx: &Tx,
    by: By<'_>,
    kind: EventKind,
    subject: &str,
    detail: &str,
) -> Result<()> {
    let params = params![
        kind.as_str(),
        subject,
        by.actor,
        by.address,
        Outcome::Done.as_str(),
        detail
    ];
    tx.execute(SQL, &params).await.map(drop)
}
