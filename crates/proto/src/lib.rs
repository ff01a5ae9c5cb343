//! The wire contract between agents and svc-ingest.
//!
//! In reading order:
//!
//! - [`v1`]: the messages, client and server of `proto/svc/ingest/v1/ingest.proto`, which
//!   agents and the service exchange.
//! - [`ClientMessage`] and [`ServerMessage`]: what each side sends on a heartbeat stream.
//! - [`contract`]: the rules that the `.proto` file cannot express: refusal reasons,
//!   limits, and how a client retries.
//! - [`queue::v1`]: the messages of `proto/svc/ingest/queue/v1/queue.proto`, which instances
//!   exchange over the metrics queue.
//! - [`FrugalCodec`]: how both ends encode messages.

mod codec;
pub mod contract;

pub mod v1 {
    //! Package `svc.ingest.v1`. It changes only by addition.
    tonic::include_proto!("svc.ingest.v1");
}

pub mod queue {
    //! What instances of svc-ingest send to each other over NATS.

    pub mod v1 {
        //! Package `svc.ingest.queue.v1`. It changes only by addition.
        tonic::include_proto!("svc.ingest.queue.v1");
    }
}

pub use codec::FrugalCodec;
pub use v1::heartbeat_request::Message as ClientMessage;
pub use v1::heartbeat_response::Message as ServerMessage;

/// The compiled descriptor set, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
