//! What a heartbeat costs in counts, which the noise of a machine cannot change.

use std::time::Duration;

use allocation_counter::measure;
use futures_util::FutureExt;
use jiff::Timestamp;
use prost::Message;
use svc_ingest::{
    grpc::heartbeat::{Rules, entries},
    queue::{BATCH, Bounds, InProcess, Origin, Parcel, shard_of},
    session::Numbering,
};
use svc_proto::v1::{Disk, HeartbeatRequest, Report, Sample, heartbeat_request::Message as Say};
use svc_store::{AgentId, HostId};
use uuid::Uuid;

use crate::beats::sample;

const HEARTBEATS: u64 = 200;
const DISKS: u64 = 4;
/// Three texts a disk, the vectors that hold samples and disks, decoded and judged, and
/// a box; the rest is what the queue grows by.
const ALLOCATIONS: u64 = 3 * DISKS + 10;

#[test]
fn a_heartbeat_on_its_way_into_the_queue_and_out_costs_a_few_allocations() {
    let (agent, host) = (AgentId(Uuid::now_v7()), HostId(Uuid::now_v7()));
    let queue = InProcess::new(Bounds::default());
    let mut receiver = queue.receiver(shard_of(agent));
    let rules = Rules {
        now: Timestamp::now(),
        retention: Duration::from_hours(24),
    };
    let origin = Origin {
        epoch: 1,
        instance: Uuid::nil(),
    };
    let heartbeats: Vec<Vec<u8>> = (1..=HEARTBEATS).map(heartbeat).collect();
    let mut numbering = Numbering::after(0);
    let mut delivered = 0;
    let spent = measure(|| {
        for bytes in &heartbeats {
            let request = HeartbeatRequest::decode(&bytes[..]).expect("a request");
            let Some(Say::Report(report)) = request.message else {
                panic!("not a report");
            };
            let entries = entries(report, &rules).expect("no violation");
            let range = numbering.take(agent, host, entries);
            let range = range.expect("something new");
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

/// Like what a machine of some size says of itself.
fn heartbeat(seq: u64) -> Vec<u8> {
    let disk = |number| Disk {
        mount_point: format!("/srv/volume-{number}"),
        device: format!("/dev/mapper/volume-{number}"),
        fs_type: "ext4".into(),
        total_bytes: 1 << 40,
        used_bytes: 1 << 39,
    };
    let sample: Sample = sample(seq);
    let vitals = sample.vitals.clone().map(|mut vitals| {
        vitals.disks = (0..DISKS).map(disk).collect();
        vitals
    });
    let report = Report {
        samples: vec![Sample { vitals, ..sample }],
        gaps: vec![],
    };
    let message = Some(Say::Report(report));
    HeartbeatRequest { message }.encode_to_vec()
}
