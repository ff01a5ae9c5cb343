//! The inbound budget of a connection: bytes and frames, refilled at a steady rate. A connection that has
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
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};
use tokio_rustls::server::TlsStream;

use super::write_deadline::WriteDeadline;

/// Twice the fastest agent: two reports of 256 KiB a second.
const BYTES_PER_SECOND: i64 = 1024 * 1024;
const BURST: i64 = 4 * BYTES_PER_SECOND;
const FRAME_COST: i64 = 2 * 1024;
/// Enough for a ClientHello and a certificate chain. Everything that arrives before the client has proved
/// its key is buffered, and the chain stays in memory for the connection's whole life.
const HANDSHAKE_BYTES: usize = 24 * 1024;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// Bytes that may still be read; negative while the connection is in debt. The clock is read only when the
/// budget is used up, so a client that stays within it costs nothing.
#[derive(Debug)]
struct Budget {
    left: i64,
    filled: Instant,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            filled: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled).as_micros();
        let gained = i64::try_from(elapsed)
            .unwrap_or(i64::MAX)
            .saturating_mul(BYTES_PER_SECOND)
            / 1_000_000;
        self.left = self.left.saturating_add(gained).min(BURST);
        self.filled = now;
    }

    /// How long a connection in debt must wait.
    fn wait(&self) -> Option<Duration> {
        let debt = u64::try_from(-self.left).ok()?;
        let wait = Duration::from_micros(debt * 1_000_000 / BYTES_PER_SECOND.unsigned_abs());
        Some(wait.max(SHORTEST_PAUSE))
    }
}

/// A socket that is not read faster than its budget allows.
#[derive(Debug)]
pub(super) struct Metered {
    stream: WriteDeadline<TcpStream>,
    budget: Budget,
    pause: Option<Pin<Box<Sleep>>>,
    /// How many bytes the rest of the handshake may take; `None` once it is complete.
    handshake: Option<usize>,
}

impl Metered {
    pub(super) fn new(stream: WriteDeadline<TcpStream>) -> Self {
        Self {
            stream,
            budget: Budget::new(Instant::now()),
            pause: None,
            handshake: Some(HANDSHAKE_BYTES),
        }
    }

    fn poll_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            if self.budget.left > 0 {
                return Poll::Ready(());
            }
            self.budget.refill(Instant::now());
            self.pause = self.budget.wait().map(|wait| Box::pin(sleep(wait)));
        }
    }

    fn spend(&mut self, bytes: usize) -> io::Result<()> {
        self.budget.left -= bytes as i64;
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
#[derive(Debug)]
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
        self.stream.get_mut().0.budget.left -= frames * FRAME_COST;
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

    #[test]
    fn a_spent_budget_says_how_long_to_wait_and_refills_up_to_the_burst() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert_eq!(budget.wait(), None);
        budget.left -= BURST + BYTES_PER_SECOND;
        assert_eq!(budget.wait(), Some(Duration::from_secs(1)));
        budget.refill(start + Duration::from_secs(2));
        assert_eq!((budget.left, budget.wait()), (BYTES_PER_SECOND, None));
        budget.refill(start + Duration::from_hours(1000));
        assert_eq!(budget.left, BURST);
    }

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
