//! Acknowledgements: tells the heartbeat streams that wait for a commit.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use svc_store::{AgentId, Range, Watermark};
use uuid::Uuid;

use crate::queue::{Committed, DeadLetter, Hints, Queue};

/// The heartbeat streams of this process, as a consumer sees them.
pub trait Streams: Debug + Send + Sync {
    /// Tells the streams whose reports a batch has stored or refused.
    fn committed(&self, committed: &Committed);
}

/// Where the acknowledgements of a consumer go.
#[derive(Debug)]
pub enum Acks {
    /// To the streams of this process.
    Local(Arc<dyn Streams>),
    /// To the instances that hold the streams, over NATS. They confirm every hint from the database.
    Remote(Hints),
}

impl Acks {
    /// The in-process queue carries only reports of this process's own streams; JetStream carries those of all
    /// instances.
    pub fn for_queue(queue: &Queue, streams: &Arc<impl Streams + 'static>) -> Self {
        match queue {
            Queue::InProcess(_) => Self::Local(streams.clone()),
            Queue::JetStream(queue) => Self::Remote(queue.hints()),
        }
    }

    /// Sends each instance the results of its agents' reports. A failure is not an error: the instance's backstop reads
    /// the watermarks within seconds.
    pub async fn send(&self, acks: PendingAcks) {
        for (instance, committed) in acks.by_instance() {
            match self {
                Self::Local(streams) => streams.committed(&committed),
                Self::Remote(hints) => {
                    if let Err(error) = hints.publish(instance, &committed).await {
                        tracing::debug!(%error, "a commit hint could not be sent: the backstop reads the watermark");
                    }
                }
            }
        }
    }
}

/// The acknowledgements of one batch, by instance. All reports of an agent end at the same watermark, so it appears once.
#[derive(Debug, Default)]
pub struct PendingAcks {
    watermarks: BTreeMap<(Uuid, AgentId), i64>,
    dead_letters: Vec<(Uuid, DeadLetter)>,
}

impl PendingAcks {
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
            let of_instance = committed.entry(instance).or_default();
            of_instance.watermarks.push(watermark);
        }
        for (instance, letter) in self.dead_letters {
            let of_instance = committed.entry(instance).or_default();
            of_instance.dead_letters.push(letter);
        }
        committed
    }
}
