//! How a commit becomes known to the streams that wait for it.

use std::{collections::BTreeMap, sync::Arc};

use svc_store::{AgentId, Range, Watermark};
use uuid::Uuid;

use crate::{
    queue::{Committed, DeadLetter, Hints, Queue},
    session::SessionTable,
};

#[derive(Debug)]
pub enum Acks {
    /// The streams are this process's own.
    Here(Arc<SessionTable>),
    /// Each stream's instance is told over NATS.
    There(Hints),
}

impl Acks {
    /// In process the consumer stands beside the streams; elsewhere it may not.
    pub fn of(queue: &Queue, sessions: &Arc<SessionTable>) -> Self {
        match queue {
            Queue::InProcess(_) => Self::Here(sessions.clone()),
            Queue::JetStream(queue) => Self::There(queue.hints()),
        }
    }

    /// Tells each instance what became of its agents' reports.
    pub async fn tell(&self, told: Told) {
        for (instance, committed) in told.by_instance() {
            match self {
                Self::Here(sessions) => sessions.committed(&committed),
                Self::There(hints) => {
                    if let Err(error) = hints.tell(instance, &committed).await {
                        tracing::debug!(%error, "a hint was lost: the backstop will tell");
                    }
                }
            }
        }
    }
}

/// What is to be told, and to whom. An agent's reports of one batch end at the same
/// watermark: it is told once.
#[derive(Debug, Default)]
pub struct Told {
    watermarks: BTreeMap<(Uuid, AgentId), i64>,
    dead_letters: Vec<(Uuid, DeadLetter)>,
}

impl Told {
    pub fn watermark(&mut self, instance: Uuid, agent: AgentId, acked_seq: i64) {
        self.watermarks.insert((instance, agent), acked_seq);
    }

    pub fn dead_letter(&mut self, instance: Uuid, range: &Range) {
        let letter = DeadLetter {
            agent_id: range.agent_id,
            seqs: range.samples.iter().map(|sample| sample.seq).collect(),
        };
        self.dead_letters.push((instance, letter));
    }

    fn by_instance(self) -> BTreeMap<Uuid, Committed> {
        let mut committed: BTreeMap<Uuid, Committed> = BTreeMap::new();
        for ((instance, agent_id), acked_seq) in self.watermarks {
            let watermark = Watermark {
                agent_id,
                acked_seq,
            };
            let of_it = committed.entry(instance).or_default();
            of_it.watermarks.push(watermark);
        }
        for (instance, letter) in self.dead_letters {
            let of_it = committed.entry(instance).or_default();
            of_it.dead_letters.push(letter);
        }
        committed
    }
}
