//! The wire contracts: messages, client and server generated from
//! `proto/svc/ingest/v1/ingest.proto`, and the messages of the metrics queue from
//! `proto/svc/ingest/queue/v1/queue.proto`.

mod codec;

pub mod v1 {
    //! Package `svc.ingest.v1`. It changes only by addition.
    tonic::include_proto!("svc.ingest.v1");
}

pub mod queue {
    pub mod v1 {
        //! Package `svc.ingest.queue.v1`. It changes only by addition.
        tonic::include_proto!("svc.ingest.queue.v1");
    }
}

pub use codec::FrugalCodec;

/// The compiled descriptor set, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
