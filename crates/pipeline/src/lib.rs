//! The path of samples behind the heartbeat streams: through the queue into PostgreSQL, and out again over OTLP. It knows
//! nothing of connections and sessions; the streams of its process are behind the trait [`consumer::Streams`].
//!
//! In reading order: [`budget`] (room for reports before they are read and decoded), [`queue`], [`consumer`], [`export`]. Besides:
//! [`vitals`] (parts of samples between messages and rows) and [`metrics`].

pub mod budget;
pub mod consumer;
pub mod export;
pub mod metrics;
pub mod queue;
pub mod vitals;
