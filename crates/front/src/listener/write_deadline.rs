//! A socket whose pending writes fail after a deadline.
//!
//! HTTP/2 flow control holds back responses only. Answers to pings and settings are written outside of it,
//! and a client may grant a window and then leave its socket unread. Without this deadline, a client that
//! sends pings but never reads would stay connected until TCP times out. The timer exists only while a
//! write is pending, and every byte that is written resets it, so a slow reader stays connected.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

#[derive(Debug)]
pub(super) struct WriteDeadline<S> {
    stream: S,
    deadline: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> WriteDeadline<S> {
    pub(super) fn new(stream: S, deadline: Duration) -> Self {
        Self {
            stream,
            deadline,
            waiting: None,
        }
    }

    /// Fails a write that has been pending for the whole deadline.
    fn limit<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let deadline = self.deadline;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(deadline)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limit(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_that_the_client_does_not_read_fails_at_the_deadline() {
        let (near, _far) = duplex(4);
        let mut near = WriteDeadline::new(near, Duration::from_millis(50));
        let error = near.write_all(b"more than four").await.expect_err("unread");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_stays_connected() {
        let (near, mut far) = duplex(1);
        let mut near = WriteDeadline::new(near, Duration::from_secs(3));
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            for _ in 0..5 {
                sleep(Duration::from_secs(1)).await;
                read.push(far.read_u8().await.expect("a byte"));
            }
            read
        });
        near.write_all(b"slow!").await.expect("it is read");
        assert_eq!(reading.await.expect("no panic"), b"slow!");
    }
}
