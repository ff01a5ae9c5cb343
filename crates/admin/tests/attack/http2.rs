//! HTTP/2 frames as bytes, for clients that break the protocol.

use std::{io, net::SocketAddr};

use svc_sandbox::Identity;
use svc_testkit::Tls;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const UNKNOWN: u8 = 0xbb;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A frame as it goes over the wire.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame_head(kind, flags, stream, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

/// The head of a frame that claims `length` bytes.
pub fn frame_head(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
    let length = u32::try_from(length).expect("a frame's length");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn reset(stream: u32) -> Vec<u8> {
    let cancel = 8_u32;
    frame(RST_STREAM, 0, stream, &cancel.to_be_bytes())
}

/// The headers of a gRPC call, complete in one frame.
pub fn call(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &call_headers(path))
}

/// A whole health check: headers and an empty message.
pub fn check(stream: u32) -> Vec<u8> {
    let mut bytes = call(stream, CHECK);
    bytes.extend(frame(DATA, END_STREAM, stream, &[0; 5]));
    bytes
}

pub const CHECK: &str = "/grpc.health.v1.Health/Check";

/// HPACK, with entries of the static table where possible.
pub fn call_headers(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x87];
    block.extend(literal(&[0x04], path));
    block.extend(literal(&[0x01], "localhost"));
    block.extend(literal(&[0x0f, 0x10], "application/grpc"));
    block.extend(header("te", "trailers"));
    block
}

/// A header, neither indexed nor Huffman coded.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x00];
    bytes.extend(string(name));
    bytes.extend(string(value));
    bytes
}

fn literal(name: &[u8], value: &str) -> Vec<u8> {
    [name.to_vec(), string(value)].concat()
}

/// A length with a prefix of 7 bits, and the bytes.
pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match u8::try_from(text.len()) {
        Ok(short) if short < 127 => bytes.push(short),
        _ => {
            bytes.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A frame that the server sent.
#[derive(Debug)]
pub struct Received {
    pub kind: u8,
    flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Received {
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await?;
        Ok(Self {
            kind,
            flags,
            stream: u32::from_be_bytes(id),
            payload,
        })
    }

    /// Whether it is the last of its stream.
    pub fn ends(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The error code and the text of a GOAWAY.
    pub fn goaway(&self) -> Option<String> {
        let code = self.payload.get(4..8).filter(|_| self.kind == GOAWAY)?;
        let name = match code {
            [0, 0, 0, 0] => "NO_ERROR".into(),
            [0, 0, 0, 1] => "PROTOCOL_ERROR".into(),
            [0, 0, 0, 9] => "COMPRESSION_ERROR".into(),
            [0, 0, 0, 11] => "ENHANCE_YOUR_CALM".into(),
            code => format!("{code:?}"),
        };
        let text = String::from_utf8_lossy(&self.payload[8..]);
        Some(format!("{name} {text}").trim_end().into())
    }
}

/// A connection with a new key, so that no limit per key applies.
pub async fn new_client(address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
    let identity = Identity::self_signed("new_client").map_err(io::Error::other)?;
    Tls::with(&identity).connect(address).await
}

/// The same, with the preface and these settings sent.
pub async fn open_http2(
    address: SocketAddr,
    values: &[(u16, u32)],
) -> io::Result<TlsStream<TcpStream>> {
    let mut stream = new_client(address).await?;
    stream.write_all(PREFACE).await?;
    stream.write_all(&settings(values)).await?;
    stream.flush().await?;
    Ok(stream)
}
