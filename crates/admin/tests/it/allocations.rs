//! The allocations of a heartbeat: a cost that does not depend on the machine.

use std::time::Duration;

use allocation_counter::measure;
use futures_util::FutureExt;
use jiff::Timestamp;
use prost::Message;
use svc_ingest::{
    grpc::heartbeat::{Rules, entries},
    session::Numbering,
};
use svc_pipeline::queue::{BATCH, Bounds, InProcess, Parcel, shard_of};
use svc_proto::{ClientMessage, v1::HeartbeatRequest};
use svc_store::{AgentId, HostId};
use svc_testkit::{large_report, request};
use uuid::Uuid;

use crate::queue::ORIGIN;

const HEARTBEATS: u64 = 200;
/// Of a sample of `large_report`.
const DISKS: u64 = 6;
/// Three strings per disk, the vectors of samples and disks, decoded and validated, and a box. The
/// rest is growth of the queue.
const ALLOCATIONS: u64 = 3 * DISKS + 10;

#[test]
fn a_heartbeat_through_the_queue_costs_few_allocations() {
    let (agent, host) = (AgentId(Uuid::now_v7()), HostId(Uuid::now_v7()));
    let queue = InProcess::new(Bounds::default());
    let mut receiver = queue.receiver(shard_of(agent));
    let rules = Rules {
        now: Timestamp::now(),
        retention: Duration::from_hours(24),
    };
    let heartbeats: Vec<Vec<u8>> = (1..=HEARTBEATS).map(heartbeat).collect();
    let mut numbering = Numbering::after(0);
    let mut delivered = 0;
    let spent = measure(|| {
        for bytes in &heartbeats {
            let request = HeartbeatRequest::decode(&bytes[..]).expect("a request");
            let Some(ClientMessage::Report(report)) = request.message else {
                panic!("not a report");
            };
            let entries = entries(report, &rules).expect("no violation");
            let range = numbering.take(agent, host, entries);
            let range = range.expect("something new");
            let origin = ORIGIN;
            let pushed = queue.push(Parcel { range, origin }).now_or_never();
            assert!(pushed.is_some(), "there is room");
            delivered += receiver
                .batch(BATCH)
                .now_or_never()
                .expect("it is there")
                .len();
        }
    });
    assert_eq!(delivered as u64, HEARTBEATS);
    let each = spent.count_total / HEARTBEATS;
    assert!(each <= ALLOCATIONS, "{each} allocations");
    let kept = spent.count_current;
    assert!(
        kept <= 4,
        "{kept} allocations stay: more than the queue itself"
    );
}

/// A heartbeat of a machine with several disks.
fn heartbeat(seq: u64) -> Vec<u8> {
    request(ClientMessage::Report(large_report(seq..=seq))).encode_to_vec()
}
