//! The PROXY protocol, versions 1 and 2: a load balancer that passes connections through says whose they are.
//!
//! A peer that may send this header can claim any address, so it is read only from the networks that the operator lists, and
//! required from them: guessing whether a header is there would let a client behind the load balancer send its own.
//! It is read before TLS, byte for byte no further than its end, and within the deadline of the handshake. HAProxy sends
//! version 2, nginx only version 1.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str,
};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of version 2. As many of version 1 are read, whose shortest header has 15.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Addresses and a few extensions. The protocol allows 64 KiB.
const LONGEST: usize = 1024;
const LONGEST_LINE: usize = 107;

/// The client that the header names, or `proxy` itself if the connection is its own, as that of a health check.
pub(super) async fn client(
    stream: &mut (impl AsyncRead + Unpin),
    proxy: SocketAddr,
) -> io::Result<SocketAddr> {
    let mut begin = [0; SIGNATURE.len()];
    stream.read_exact(&mut begin).await?;
    let named = match begin {
        SIGNATURE => binary(stream).await?,
        _ if begin.starts_with(b"PROXY ") => line(stream, &begin).await?,
        _ => return Err(malformed()),
    };
    Ok(named.unwrap_or(proxy))
}

/// Version 2, after its signature.
async fn binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let (command, family) = (stream.read_u8().await?, stream.read_u8().await?);
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST {
        return Err(malformed());
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    match (command, family) {
        (0x20, _) | (0x21, 0x00) => Ok(None),
        (0x21, 0x11) => source_v4(&rest).map(Some).ok_or_else(malformed),
        (0x21, 0x21) => source_v6(&rest).map(Some).ok_or_else(malformed),
        _ => Err(malformed()),
    }
}

/// Source and destination address, then source and destination port.
fn source_v4(rest: &[u8]) -> Option<SocketAddr> {
    let address = Ipv4Addr::from(rest.first_chunk::<4>().copied()?);
    let port = u16::from_be_bytes(rest.get(8..12)?.first_chunk().copied()?);
    Some((address, port).into())
}

fn source_v6(rest: &[u8]) -> Option<SocketAddr> {
    let address = Ipv6Addr::from(rest.first_chunk::<16>().copied()?);
    let port = u16::from_be_bytes(rest.get(32..36)?.first_chunk().copied()?);
    Some((address, port).into())
}

/// Version 1: `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443`.
async fn line(
    stream: &mut (impl AsyncRead + Unpin),
    begin: &[u8],
) -> io::Result<Option<SocketAddr>> {
    let mut line = begin.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LONGEST_LINE {
            return Err(malformed());
        }
        line.push(stream.read_u8().await?);
    }
    source(&line).ok_or_else(malformed)
}

fn source(line: &[u8]) -> Option<Option<SocketAddr>> {
    let text = str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let fields: Vec<&str> = text.split(' ').collect();
    match fields[..] {
        ["PROXY", "UNKNOWN", ..] => Some(None),
        ["PROXY", "TCP4" | "TCP6", source, _, port, _] => {
            let address: IpAddr = source.parse().ok()?;
            Some(Some((address, port.parse::<u16>().ok()?).into()))
        }
        _ => None,
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no PROXY protocol header")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROXY: &str = "10.0.0.9:1000";

    async fn read(bytes: &[u8]) -> io::Result<(SocketAddr, usize)> {
        let mut rest = bytes;
        let address = client(&mut rest, PROXY.parse().unwrap()).await?;
        Ok((address, rest.len()))
    }

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[tokio::test]
    async fn both_versions_name_the_client_and_leave_what_follows_them() -> io::Result<()> {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x34, 0, 80];
        let with_extension = [&v4[..], &[0x20, 0, 1, 7]].concat();
        let v6 = [&[0x20, 1][..], &[0; 13], &[9], &[0; 16], &[0, 99, 0, 80]].concat();
        for (bytes, wanted) in [
            (header(0x21, 0x11, &v4), "192.0.2.1:4660"),
            (header(0x21, 0x11, &with_extension), "192.0.2.1:4660"),
            (header(0x21, 0x21, &v6), "[2001::9]:99"),
            (header(0x20, 0, &[]), PROXY),
            (header(0x21, 0, &[1, 2, 3]), PROXY),
            (
                b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n".to_vec(),
                "192.0.2.1:56324",
            ),
            (
                b"PROXY TCP6 2001::9 ::1 99 443\r\n".to_vec(),
                "[2001::9]:99",
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), PROXY),
        ] {
            let (address, rest) = read(&[&bytes[..], b"TLS"].concat()).await?;
            assert_eq!((address.to_string().as_str(), rest), (wanted, 3));
        }
        Ok(())
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        let endless = [b"PROXY TCP4 ", &[b'1'; 200][..]].concat();
        for bytes in [
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\0\0\0\0".to_vec(),
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            header(0x31, 0x11, &[0; 12]),
            header(0x21, 0x11, &[0; 11]),
            header(0x21, 0x21, &[0; 12]),
            header(0x21, 0x31, &[0; 216]),
            header(0x21, 0x11, &[0; LONGEST + 1]),
            b"PROXY TCP4 nowhere 198.51.100.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.1 99999 443\r\n".to_vec(),
            endless,
            Vec::new(),
        ] {
            assert!(read(&bytes).await.is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_refused_and_never_read_beyond_the_longest_header(noise: Vec<u8>, valid_start: bool) {
            let bytes = if valid_start { [&SIGNATURE[..], &noise].concat() } else { noise };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            if let Ok((_, rest)) = runtime.block_on(read(&bytes)) {
                prop_assert!(bytes.len() - rest <= SIGNATURE.len() + 4 + LONGEST);
            }
        }
    }
}
