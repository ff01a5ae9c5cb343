//! A bounded number of places, some of them for each key, so that nobody takes all of them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex},
};

use svc_common::sync::lock;

/// How many places are taken, in all and of each key.
#[derive(Debug)]
pub struct Places<K: Hash + Eq> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    most: usize,
}

/// A taken place; dropping it gives it back.
#[derive(Debug)]
pub struct Place<K: Hash + Eq> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    key: K,
}

impl<K: Hash + Eq + Clone> Places<K> {
    pub fn new(most: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
        }
    }

    /// A place, unless all are taken, or `limit` of this key.
    pub fn take(&self, key: K, limit: usize) -> Option<Place<K>> {
        let mut taken = lock(&self.taken);
        let of_key = taken.get(&key).copied().unwrap_or(0);
        if of_key >= limit || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(key.clone(), of_key + 1);
        Some(Place {
            taken: self.taken.clone(),
            key,
        })
    }
}

impl<K: Hash + Eq> Drop for Place<K> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_its_places_and_leaves_others_theirs() {
        let places = Places::new(3);
        let first = places.take("one", 2);
        let _second = places.take("one", 2);
        assert!(places.take("one", 2).is_none());
        let _third = places.take("other", 2).unwrap();
        assert!(places.take("another", 2).is_none(), "all are taken");
        drop(first);
        assert!(places.take("another", 2).is_some());
        assert_eq!(
            lock(&places.taken).len(),
            2,
            "keys without a place are forgotten"
        );
    }
}
