//! Turns for registrations, so that a fleet that comes at once gets in as fast as the
//! database can take it.
//!
//! A registration asks the database several times. Begun all at once, thousands would
//! each get a part of the way, wait too long for the rest, and come back to begin anew:
//! the more there were, the fewer would arrive. So only as many are under way as there
//! are connections for them, and whoever has begun gets through. Who waits too long for a
//! turn is told when there will be one, each at a time of its own.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};

/// For a turn to come. Well below what callers wait for an answer, so that time is left for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nobody is sent away for longer, however many there are.
const LONGEST: Duration = Duration::from_secs(60);
/// What a turn is taken to last before one was seen.
const GUESS: Duration = Duration::from_millis(10);
/// How many turns the mean of the last ones is taken over, about.
const MEMORY: u32 = 16;
/// How many are promised the same turn. A second wait is cheaper than a turn that nobody takes, and
/// turns last longest while everybody comes at once.
const OVERBOOKED: u32 = 2;

#[derive(Debug)]
pub struct Turns {
    places: Semaphore,
    count: u32,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// How long a turn lasts, of late.
    lasts: Duration,
    /// Up to when turns are promised.
    promised: Instant,
}

/// One registration's turn, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    began: Instant,
    _place: SemaphorePermit<'a>,
}

impl Turns {
    /// For a database that has so many connections for all who ask who they are: one of
    /// them is left to those who are known.
    pub fn beside(connections: usize) -> Self {
        let count = connections.saturating_sub(1).max(1);
        let book = Book {
            lasts: GUESS,
            promised: Instant::now(),
        };
        Self {
            places: Semaphore::new(count),
            count: u32::try_from(count).unwrap_or(u32::MAX),
            book: Mutex::new(book),
        }
    }

    /// First come, first served; or after how long to come back.
    pub async fn take(&self) -> Result<Turn<'_>, Duration> {
        match timeout(PATIENCE, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(Turn {
                turns: self,
                began: Instant::now(),
                _place: place,
            }),
            _ => Err(self.promise(Instant::now())),
        }
    }

    /// The next turn that nobody was promised yet.
    fn promise(&self, now: Instant) -> Duration {
        let mut book = self.book();
        let next = book.promised.max(now) + book.lasts / self.count / OVERBOOKED;
        book.promised = next.min(now + LONGEST);
        book.promised - now
    }

    fn lasted(&self, turn: Duration) {
        let mut book = self.book();
        book.lasts = (book.lasts * (MEMORY - 1) + turn) / MEMORY;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lasted(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_when_each_at_a_time_of_its_own() {
        let turns = Turns::beside(3);
        let [_one, _other] = [turns.take().await, turns.take().await].map(Result::unwrap);
        let began = Instant::now();
        let (first, second) = tokio::join!(turns.take(), turns.take());
        assert!(began.elapsed() >= PATIENCE);
        let mut hints = [first.unwrap_err(), second.unwrap_err()];
        hints.sort();
        let each = GUESS / 2 / OVERBOOKED; // Two turns go on at a time.
        assert_eq!(hints, [each, 2 * each]);
    }

    #[tokio::test(start_paused = true)]
    async fn hints_follow_how_long_turns_last_and_stay_bounded() {
        let turns = Turns::beside(1);
        for _ in 0..200 {
            let turn = turns.take().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(turn);
        }
        let now = Instant::now();
        let seconds = [(); 200].map(|()| turns.promise(now).as_secs_f64().round());
        assert_eq!([1, 3, 5].map(|caller| seconds[caller]), [1.0, 2.0, 3.0]);
        assert_eq!(seconds[199], LONGEST.as_secs_f64());
        let later = turns.promise(now + LONGEST);
        assert!(later < Duration::from_secs(1), "what was promised is over");
    }
}
