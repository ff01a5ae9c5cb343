//! How a commit becomes known to the streams that wait for it.

use std::{collections::BTreeMap, sync::Arc};

use svc_store::{AgentId, Watermark};
use uuid::Uuid;

use crate::{
    queue::{Hints, Queue},
    session::Sessions,
};

#[derive(Debug)]
pub enum Acks {
    /// The streams are this process's own.
    Here(Arc<Sessions>),
    /// Each stream's instance is told over NATS.
    There(Hints),
}

impl Acks {
    /// In process the consumer stands beside the streams; elsewhere it may not.
    pub fn of(queue: &Queue, sessions: &Arc<Sessions>) -> Self {
        match queue {
            Queue::InProcess(_) => Self::Here(sessions.clone()),
            Queue::JetStream(queue) => Self::There(queue.hints()),
        }
    }

    /// Tells each instance where its agents stand.
    pub async fn tell(&self, told: Vec<(Uuid, AgentId, i64)>) {
        match self {
            Self::Here(sessions) => {
                let marks: Vec<Watermark> = told.into_iter().map(watermark).collect();
                sessions.acked(&marks);
            }
            Self::There(hints) => {
                for (instance, marks) in by_instance(told) {
                    if let Err(error) = hints.tell(instance, &marks).await {
                        tracing::debug!(%error, "a hint was lost: the backstop will tell");
                    }
                }
            }
        }
    }
}

fn watermark((_, agent_id, acked_seq): (Uuid, AgentId, i64)) -> Watermark {
    Watermark {
        agent_id,
        acked_seq,
    }
}

/// An agent's reports of one batch end at the same watermark: it is told once.
fn by_instance(told: Vec<(Uuid, AgentId, i64)>) -> BTreeMap<Uuid, Vec<Watermark>> {
    let distinct: BTreeMap<(Uuid, AgentId), i64> = told
        .into_iter()
        .map(|(instance, agent, acked)| ((instance, agent), acked))
        .collect();
    let mut marks: BTreeMap<Uuid, Vec<Watermark>> = BTreeMap::new();
    for ((instance, agent), acked) in distinct {
        let mark = watermark((instance, agent, acked));
        marks.entry(instance).or_default().push(mark);
    }
    marks
}
