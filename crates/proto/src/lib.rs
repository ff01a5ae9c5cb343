//! The wire contract: messages, client and server generated from
//! `proto/svc/ingest/v1/ingest.proto`.

pub mod v1 {
    //! Package `svc.ingest.v1`. It changes only by addition.
    tonic::include_proto!("svc.ingest.v1");
}

/// The compiled descriptor set, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
