//! How fast a connection is read: bytes and frames are counted, within a budget ([`Budget`]). A connection that has
//! used up its budget is read more slowly; nothing else happens to it.
//!
//! A frame costs as much as 2 KiB, because serving is expensive per frame rather than per byte: nine bytes
//! make a frame, and few more make a request. An agent that sends its whole backlog stays below the rate. A
//! flood of pings, settings or requests costs the service no more than such an agent.
//!
//! Two layers share one budget. [`Metered`], below TLS, counts bytes, so that empty TLS records count too.
//! [`Framed`], above TLS, sees the frames.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::server::TlsStream;

use super::{
    byte_budget::{Budget, Strangers},
    write_deadline::WriteDeadline,
};
use crate::places::Standing;

const FRAME_COST: i64 = 2 * 1024;
/// Enough for a ClientHello and a certificate chain. Everything that arrives before the client has proved
/// its key is buffered, and the chain stays in memory for the connection's whole life.
const HANDSHAKE_BYTES: usize = 24 * 1024;

/// A socket that is not read faster than its budget allows.
pub(super) struct Metered {
    stream: WriteDeadline<TcpStream>,
    budget: Budget,
    pause: Option<BoxFuture<'static, ()>>,
    standing: Standing,
    strangers: Arc<Strangers>,
    /// How many bytes the rest of the handshake may take; `None` once it is complete.
    handshake: Option<usize>,
}

impl Metered {
    pub(super) fn new(
        stream: WriteDeadline<TcpStream>,
        standing: Standing,
        strangers: Arc<Strangers>,
    ) -> Self {
        Self {
            stream,
            budget: Budget::new(Instant::now()),
            pause: None,
            standing,
            strangers,
            handshake: Some(HANDSHAKE_BYTES),
        }
    }

    fn poll_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            if !self.budget.is_spent() {
                return Poll::Ready(());
            }
            self.pause = self.next_pause(Instant::now());
        }
    }

    /// The pause after which the budget is positive again, or nearly. Proof ends the pause of an unproven connection.
    fn next_pause(&mut self, now: Instant) -> Option<BoxFuture<'static, ()>> {
        if self.standing.is_proven() {
            self.budget.refill(now);
            return self.budget.wait().map(|wait| Box::pin(sleep(wait)) as _);
        }
        let (wait, standing) = (
            self.budget.step(&self.strangers, now),
            self.standing.clone(),
        );
        Some(Box::pin(async move {
            drop(timeout(wait, standing.proven()).await);
        }))
    }

    fn spend(&mut self, bytes: usize) -> io::Result<()> {
        self.budget.spend(bytes as i64);
        if let Some(left) = &mut self.handshake {
            *left = left.checked_sub(bytes).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "the handshake is too long")
            })?;
        }
        Ok(())
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_budget(cx));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.spend(buffer.filled().len() - before))
    }
}

/// A TLS stream after its handshake, which counts the HTTP/2 frames in it.
pub(super) struct Framed {
    stream: Box<TlsStream<Metered>>,
    frames: Frames,
}

impl Framed {
    pub(super) fn new(mut stream: Box<TlsStream<Metered>>) -> Self {
        stream.get_mut().0.handshake = None;
        Self {
            stream,
            frames: Frames::default(),
        }
    }
}

impl AsyncRead for Framed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let frames = self.frames.count(&buffer.filled()[before..]);
        self.stream.get_mut().0.budget.spend(frames * FRAME_COST);
        Poll::Ready(Ok(()))
    }
}

/// Finds the frames in a byte stream by the lengths in their headers.
#[derive(Debug)]
struct Frames {
    /// Bytes up to the next frame header.
    skip: usize,
    /// How many bytes of the header were seen, and the length from its first three.
    seen: u8,
    length: usize,
}

const PREFACE: usize = 24;
const HEAD: u8 = 9;

impl Default for Frames {
    fn default() -> Self {
        Self {
            skip: PREFACE,
            seen: 0,
            length: 0,
        }
    }
}

impl Frames {
    /// How many frame headers end in `bytes`, which continue those of the last call.
    fn count(&mut self, mut bytes: &[u8]) -> i64 {
        let mut frames = 0;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            let Some((byte, rest)) = bytes[skipped..].split_first() else {
                return frames;
            };
            bytes = rest;
            if self.seen < 3 {
                self.length = self.length << 8 | usize::from(*byte);
            }
            self.seen += 1;
            if self.seen == HEAD {
                frames += 1;
                (self.skip, self.seen, self.length) = (self.length, 0, 0);
            }
        }
    }
}

/// Writing is not metered: it goes straight through.
macro_rules! write_through {
    ($layer:ty) => {
        impl AsyncWrite for $layer {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.stream).poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.stream.is_write_vectored()
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.stream).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.stream).poll_shutdown(cx)
            }
        }
    };
}

write_through!(Metered);
write_through!(Framed);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_are_found_however_the_bytes_are_cut(
            lengths in proptest::collection::vec(0_usize..40, 0..20),
            piece in 1_usize..50,
        ) {
            let mut bytes = vec![0; PREFACE];
            for length in &lengths {
                bytes.extend([0, 0, *length as u8, 0, 0, 0, 0, 0, 0]);
                bytes.extend(vec![0xff; *length]);
            }
            let mut frames = Frames::default();
            let counted: i64 = bytes.chunks(piece).map(|piece| frames.count(piece)).sum();
            prop_assert_eq!(counted, lengths.len() as i64);
        }
    }
}
