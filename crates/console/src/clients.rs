//! How much of the console one client, or one person, may use at a time.
//!
//! Connections are counted for their peer, in `http`. A trusted proxy brings those of many clients, so requests are counted
//! again, for the client that it names. People wait for a turn at the pages, because browsers open many at once; what
//! takes long (an export, a download) is refused beyond its bound.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_common::sync::lock;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    address::network,
    error::AppError,
    slots::{Slot, Slots},
};

const REQUESTS: usize = 4096;
/// Requests of one network at a time. A page's live stream is one of them.
const REQUESTS_PER_NETWORK: usize = 256;
/// A fleet that updates at once comes back instead of filling memory with chunks.
const DOWNLOADS: usize = 1024;
const DOWNLOADS_PER_NETWORK: usize = 128;
const EXPORTS: usize = 32;
const EXPORTS_PER_PERSON: usize = 2;
/// How long a person waits for a turn.
const WAIT: Duration = Duration::from_secs(5);
/// Of how many networks a proxy is reported.
const REPORTED: usize = 100;

/// Shared by all requests.
#[derive(Debug)]
pub struct Clients {
    requests: Slots<IpAddr>,
    downloads: Slots<IpAddr>,
    exports: Slots<String>,
    /// Of each person who reads a page now or waits for it. A permit holds its semaphore.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
    turns_per_person: usize,
    /// The networks of proxies that are not listed.
    reported: Mutex<HashSet<IpAddr>>,
}

impl Clients {
    /// `connections` is how many connections to the database read pages: one person gets half of them.
    pub fn new(connections: usize) -> Self {
        Self {
            requests: Slots::new(REQUESTS),
            downloads: Slots::new(DOWNLOADS),
            exports: Slots::new(EXPORTS),
            turns: Mutex::default(),
            turns_per_person: (connections / 2).max(1),
            reported: Mutex::default(),
        }
    }

    pub fn request(&self, client: IpAddr) -> Result<Slot<IpAddr>, AppError> {
        let slot = self.requests.take(network(client), REQUESTS_PER_NETWORK);
        slot.ok_or(AppError::Crowded(
            "Your network has too many requests open.",
        ))
    }

    pub fn download(&self, client: IpAddr) -> Result<Slot<IpAddr>, AppError> {
        let slot = self.downloads.take(network(client), DOWNLOADS_PER_NETWORK);
        slot.ok_or(AppError::Crowded("Too many downloads are under way."))
    }

    pub fn export(&self, person: &str) -> Result<Slot<String>, AppError> {
        let slot = self.exports.take(person.to_owned(), EXPORTS_PER_PERSON);
        slot.ok_or(AppError::Crowded("Too many exports are under way."))
    }

    /// A person's turn at a page, until it is dropped.
    pub async fn turn(&self, person: &str) -> Result<OwnedSemaphorePermit, AppError> {
        let turn = timeout(WAIT, self.turns_of(person).acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok);
        turn.ok_or(AppError::Crowded("You have too many pages open at once."))
    }

    fn turns_of(&self, person: &str) -> Arc<Semaphore> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let new = || Arc::new(Semaphore::new(self.turns_per_person));
        turns.entry(person.to_owned()).or_insert_with(new).clone()
    }

    /// Says once that a peer, which is not listed as a proxy, forwards requests. Anyone can send the header: the
    /// number of lines is bounded.
    pub fn forwarded_by(&self, peer: IpAddr) {
        let mut reported = lock(&self.reported);
        if reported.len() < REPORTED && reported.insert(network(peer)) {
            tracing::warn!(
                %peer,
                "a request with X-Forwarded-For came from an address that CONSOLE_TRUSTED_PROXIES does not list: if it is your \
                 proxy, list it, because all its clients now share the limits of one"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_person_gets_half_of_the_connections_and_no_place_stays_behind() {
        let clients = Clients::new(6);
        for _ in 0..2 {
            let mut held = Vec::new();
            for _ in 0..3 {
                held.push(clients.turn("ann").await.unwrap());
            }
            let next = clients.turns_of("ann");
            assert_eq!(next.available_permits(), 0);
            drop(clients.turn("ben").await.unwrap());
        }
        drop(clients.turn("ben").await.unwrap());
        assert_eq!(lock(&clients.turns).len(), 1);
    }
}
