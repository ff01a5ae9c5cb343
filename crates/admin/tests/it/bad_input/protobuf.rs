//! Messages that do not decode, or that the contract does not allow.

use anyhow::Result;
use prost::Message;
use svc_proto::v1::RegisterRequest;
use svc_testkit::{AUTO, FakeAgent, Site, machine, token};
use tonic::Code;

use super::{AgentConnection, framed, framed_as};

const MALFORMED: (Code, &str) = (Code::InvalidArgument, "MALFORMED_REQUEST");
const TOO_LARGE: (Code, &str) = (Code::ResourceExhausted, "MESSAGE_TOO_LARGE");

/// Wire types of Protocol Buffers.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;

/// A field's tag, for numbers below 16.
fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// A field of bytes, whose length fits one byte.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("a short value");
    [&[tag(field, BYTES), length][..], value].concat()
}

/// Nested groups of an unknown field.
fn groups(depth: usize) -> Vec<u8> {
    let (begin, end) = (tag(15, GROUP), tag(15, END_GROUP));
    [vec![begin; depth], vec![end; depth]].concat()
}

/// Bodies that are not one well-formed gRPC message of the protocol.
fn undecodable(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let whole = framed(good);
    let also = |more: &[u8]| framed(&[good, more].concat());
    let endless = [&[tag(14, VARINT)][..], &[0xff; 11]].concat();
    let hostname = bytes(2, &bytes(1, b"web-\xc3\x28"));
    vec![
        ("no message", vec![]),
        ("a string as a varint", framed(&[tag(1, VARINT), 1])),
        ("connection type 6", also(&[tag(14, 6), 1])),
        ("connection type 7", also(&[tag(14, 7), 1])),
        ("field 0", also(&[tag(0, VARINT), 1])),
        ("a truncated varint", also(&[tag(14, VARINT), 0x80])),
        ("an endless varint", also(&endless)),
        ("a truncated fixed64", also(&[tag(14, FIXED64), 1, 2])),
        ("a field beyond the end", also(&[tag(14, BYTES), 100, 1])),
        ("a host beyond the end", framed(&[tag(2, BYTES), 100, 1])),
        ("a group that does not end", also(&[tag(15, GROUP)])),
        ("a group that never began", also(&[tag(15, END_GROUP)])),
        (
            "a group that ends another",
            also(&[tag(15, GROUP), tag(14, END_GROUP)]),
        ),
        ("101 groups deep", also(&groups(101))),
        ("30,000 groups deep", also(&groups(30_000))),
        ("a token not in UTF-8", framed(&bytes(1, b"\xff\xfe"))),
        ("a hostname not in UTF-8", framed(&hostname)),
        ("an early end", framed_as(0, good.len() + 1, good)),
        ("half a prefix", vec![0, 0, 0]),
        ("a compressed message", framed_as(1, good.len(), good)),
        ("an unknown flag", framed_as(7, good.len(), good)),
        ("two messages", [&whole[..], &whole].concat()),
        ("a message and a byte", [&whole[..], &[0]].concat()),
    ]
}

/// Messages that decode but have a missing or invalid field. The unit tests of `grpc::convert` have each field.
fn out_of_bounds(good: &RegisterRequest) -> [(&'static str, RegisterRequest); 3] {
    let mut nul = good.clone();
    nul.host.get_or_insert_default().hostname = "web\0".into();
    let mut half_a_key = good.clone();
    half_a_key.successor_key = vec![7; 16];
    [
        ("an empty message", RegisterRequest::default()),
        ("NUL in a name", nul),
        ("half a successor's key", half_a_key),
    ]
}

#[tokio::test]
async fn a_malformed_message_is_refused_and_its_connection_stays_usable() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = agent.request(&token(&site, AUTO).await?);
    let encoded = good.encode_to_vec();
    let mut connection = AgentConnection::open(&instance, agent).await?;

    let decodable = out_of_bounds(&good);
    let decodable = decodable
        .iter()
        .map(|(what, request)| (*what, framed(&request.encode_to_vec())));
    let malformed = undecodable(&encoded).into_iter().chain(decodable);
    let too_large = [
        ("64 KiB and a byte", framed(&vec![0; 64 * 1024 + 1])),
        ("4 GiB, it says", framed_as(0, u32::MAX as usize, &[0; 100])),
    ];
    let all = malformed
        .map(|(what, body)| (what, body, MALFORMED))
        .chain(too_large.map(|(what, body)| (what, body, TOO_LARGE)));
    for (what, body, expected) in all {
        let refused = connection.register(body).await?;
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            expected,
            "{what}: {}",
            refused.message
        );
        connection.assert_usable().await?;
    }
    site.expect("SELECT count(*) FROM agents", "0").await?;
    assert_eq!(connection.register(framed(&encoded)).await?.code, Code::Ok);
    Ok(())
}

#[tokio::test]
async fn fields_of_a_later_version_are_ignored() -> Result<()> {
    let (site, instance) = Site::with_instance().await?;
    let agent = FakeAgent::on(machine(1))?;
    let good = agent.request(&token(&site, AUTO).await?).encode_to_vec();
    let mut connection = AgentConnection::open(&instance, agent).await?;
    let inside_the_host = bytes(2, &bytes(14, b"new"));
    for more in [
        &[tag(14, VARINT), 0xff, 0x7f][..],
        &[tag(14, FIXED64), 1, 2, 3, 4, 5, 6, 7, 8],
        &[tag(14, FIXED32), 1, 2, 3, 4],
        &bytes(14, b"\xff\0"),
        &groups(50),
        &inside_the_host,
    ] {
        let end = connection.register(framed(&[&good, more].concat())).await?;
        assert_eq!(end.code, Code::Ok, "{more:?}: {}", end.message);
    }
    site.expect("SELECT count(*) FROM agents", "1").await
}
