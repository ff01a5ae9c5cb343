//! A cell under load: two queues for those who connect, one for the samples that they bring.
//!
//! A queue serves in order with the cores that steady reports leave over. An opening passes the service first (handshake,
//! Hello) and then PostgreSQL (the session). The service bounds both waits, and so do the queues here: a connection that
//! finds no place is shed, one that waits too long for its handshake is ended, and a session that PostgreSQL does not
//! open in time is refused with a hint. An agent that fails retries by the contract's rules.

use super::costs::{CONNECTED, Work};

/// From accept to the end of the handshake, in the service.
pub const HANDSHAKE_DEADLINE: f64 = 10.0;
/// How long a request to open a session is valid.
const OPEN_VALIDITY: f64 = 7.0;
/// The hint of DATABASE_UNAVAILABLE and that of OVERLOADED.
pub const UNAVAILABLE_HINT: f64 = 5.0;
pub const OVERLOADED_HINT: f64 = 10.0;

/// What a cell is made of.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub agents: u32,
    /// Cores of all instances together, and of PostgreSQL.
    pub cores: Work,
    /// Agents whose steady reports are a load all the time, also while they are away.
    pub reporting: u32,
    /// Cores that store samples which come late: the writers' share.
    pub writers: f64,
    /// Connections that may wait for their first answer, on all instances together.
    pub unproven: f64,
    /// How long one of them may wait for its handshake.
    pub deadline: f64,
    pub opening: Work,
}

/// What a fault takes away, in seconds after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// Until then no connection succeeds.
    pub serves_at: f64,
    /// Until then no session can be opened and no sample stored.
    pub stores_at: f64,
    /// The moment from which an agent without a stream would be shown as offline, if it matters.
    pub offline_at: Option<f64>,
}

/// Why an attempt fails, and when the agent learns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    pub at: f64,
    pub hint: Option<f64>,
}

/// The queues of a cell.
#[derive(Debug)]
pub struct Queues {
    cell: Cell,
    fault: Fault,
    service: Queue,
    database: Queue,
    samples: Queue,
}

#[derive(Debug)]
struct Queue {
    cores: f64,
    free_at: f64,
}

impl Queue {
    fn new(cores: f64) -> Queue {
        Queue {
            cores,
            free_at: 0.0,
        }
    }

    fn wait(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0)
    }

    /// Queues the work, and returns when it is done.
    fn take(&mut self, now: f64, work: f64) -> f64 {
        self.free_at = self.free_at.max(now) + work / self.cores;
        self.free_at
    }
}

impl Cell {
    /// Cores that steady reports take.
    pub fn steady(&self) -> Work {
        CONNECTED.times(f64::from(self.reporting))
    }
}

impl Queues {
    pub fn new(cell: Cell, fault: Fault) -> Queues {
        let steady = cell.steady();
        let spare = cell.cores.service - steady.service;
        let of_database = cell.cores.database - steady.database - cell.writers;
        Queues {
            service: Queue::new(spare),
            database: Queue::new(of_database),
            samples: Queue::new(cell.writers),
            cell,
            fault,
        }
    }

    /// An agent connects now. Returns when it is welcomed. A refusal says which work was done in vain.
    pub fn open(&mut self, now: f64) -> Result<f64, (Refusal, Work)> {
        let refused = |at, hint, service| {
            let work = Work {
                service,
                database: 0.0,
            };
            Err((Refusal { at, hint }, work))
        };
        let Work { service, database } = self.cell.opening;
        let wait = self.service.wait(now);
        if now < self.fault.serves_at || wait * self.service.cores > self.cell.unproven * service {
            return refused(now, None, 0.0);
        }
        if wait > self.cell.deadline {
            return refused(now + self.cell.deadline, None, 0.0);
        }
        let secured = self.service.take(now, service);
        if secured < self.fault.stores_at {
            return refused(secured, Some(UNAVAILABLE_HINT), service);
        }
        if self.database.wait(secured) > OPEN_VALIDITY {
            return refused(secured + OPEN_VALIDITY, Some(OVERLOADED_HINT), service);
        }
        Ok(self.database.take(secured, database))
    }

    /// Samples arrive, whose storing takes so much work. Returns when all are stored.
    pub fn store(&mut self, now: f64, work: f64) -> f64 {
        self.samples.take(now.max(self.fault.stores_at), work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell {
        agents: 1_000,
        cores: Work {
            service: 1.0,
            database: 2.0,
        },
        reporting: 0,
        writers: 1.0,
        unproven: 1e9,
        deadline: HANDSHAKE_DEADLINE,
        opening: Work {
            service: 1.0,
            database: 1.0,
        },
    };

    #[test]
    fn openings_wait_for_each_other_and_only_so_long() {
        let mut queues = Queues::new(CELL, Fault::default());
        for place in 0..11 {
            assert_eq!(queues.open(0.0).unwrap(), f64::from(place) + 2.0);
        }
        let (late, work) = queues.open(0.0).unwrap_err();
        assert_eq!((late.at, late.hint), (HANDSHAKE_DEADLINE, None));
        assert_eq!(work.service, 0.0);
    }

    #[test]
    fn a_connection_without_a_place_is_shed_at_once() {
        let unproven = 2.0;
        let mut queues = Queues::new(Cell { unproven, ..CELL }, Fault::default());
        let opened = (0..9).filter(|_| queues.open(0.0).is_ok()).count();
        assert_eq!(opened, 3);
        assert_eq!(queues.open(0.0).unwrap_err().0.at, 0.0);
    }

    #[test]
    fn a_database_that_is_away_or_busy_gives_a_hint() {
        let away = Fault {
            stores_at: 50.0,
            ..Fault::default()
        };
        let mut queues = Queues::new(CELL, away);
        let (refusal, work) = queues.open(0.0).unwrap_err();
        assert_eq!(refusal.hint, Some(UNAVAILABLE_HINT));
        assert_eq!(work.service, CELL.opening.service);
        assert_eq!(queues.store(0.0, 2.0), 52.0);

        let slow = Work {
            service: 0.01,
            database: 4.0,
        };
        let opening = Cell {
            opening: slow,
            ..CELL
        };
        let mut queues = Queues::new(opening, Fault::default());
        let refusals: Vec<_> = (0..4).filter_map(|_| queues.open(0.0).err()).collect();
        assert_eq!(refusals[0].0.hint, Some(OVERLOADED_HINT));
    }
}
