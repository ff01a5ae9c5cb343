//! A bounded number of slots, of which one key gets only some, so that nobody takes all of them.

use std::{
    collections::HashMap,
    hash::Hash,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use svc_common::sync::lock;

/// How many slots are taken, in all and of each key.
#[derive(Debug)]
pub struct Slots<K: Hash + Eq> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    most: usize,
}

/// A taken slot; dropping it gives it back.
#[derive(Debug)]
pub struct Slot<K: Hash + Eq> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    key: K,
}

impl<K: Hash + Eq + Clone> Slots<K> {
    pub fn new(most: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
        }
    }

    /// A slot, unless all are taken, or `limit` of this key.
    pub fn take(&self, key: K, limit: usize) -> Option<Slot<K>> {
        let mut taken = lock(&self.taken);
        let of_key = taken.get(&key).copied().unwrap_or(0);
        if of_key >= limit || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(key.clone(), of_key + 1);
        Some(Slot {
            taken: self.taken.clone(),
            key,
        })
    }
}

impl<K: Hash + Eq> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(count) = taken.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

/// Keeps `held` until the whole response was sent, or its client has gone.
pub fn hold<T: Send + Unpin + 'static>(response: Response, held: T) -> Response {
    response.map(|body| Body::new(Holding { body, _held: held }))
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_its_slots_and_leaves_others_theirs() {
        let slots = Slots::new(3);
        let first = slots.take("one", 2);
        let _second = slots.take("one", 2);
        assert!(slots.take("one", 2).is_none());
        let _third = slots.take("other", 2).unwrap();
        assert!(slots.take("another", 2).is_none(), "all are taken");
        drop(first);
        assert!(slots.take("another", 2).is_some());
        assert_eq!(
            lock(&slots.taken).len(),
            2,
            "keys without a slot are forgotten"
        );
    }
}
