//! Response bodies as the listener sends them: their progress and their end are noted.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tonic::Status;

use super::{activity::Request, ending::Ending, panics::Guarded};

/// A response body that reports its progress to the connection's [`Activity`](super::activity::Activity), and its trailers to its [`Ending`].
#[derive(Debug)]
pub(super) struct TrackedBody {
    pub body: Guarded,
    pub request: Request,
    pub ending: Ending,
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.request.accepted();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            match frame.trailers_ref() {
                Some(trailers) => self.ending.see(trailers),
                None => self.request.hand_out(),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
