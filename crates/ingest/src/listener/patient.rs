//! A socket whose writes wait for its client only so long.
//!
//! HTTP/2's own windows hold back answers; but pings and settings are answered
//! outside of them, and a client may grant a window and then leave its socket
//! unread. Whatever it is that cannot be written, the connection ends when
//! nothing of it has been taken for the deadline. There is a timer only while
//! something waits.

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
pub(super) struct Patient<S> {
    stream: S,
    deadline: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    pub(super) fn new(stream: S, deadline: Duration) -> Self {
        Self {
            stream,
            deadline,
            waiting: None,
        }
    }

    /// What a write came to; one that waits too long has failed.
    fn judge<T>(
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

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.judge(cx, written)
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
    async fn a_write_that_nobody_takes_fails_at_the_deadline() {
        let (near, _far) = duplex(4);
        let mut near = Patient::new(near, Duration::from_millis(50));
        let error = near.write_all(b"more than four").await.expect_err("unread");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_is_borne_however_long_it_takes() {
        let (near, mut far) = duplex(1);
        let mut near = Patient::new(near, Duration::from_secs(3));
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
