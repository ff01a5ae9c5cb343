//! The events of one cell: every attempt of every agent to come back, one after the other.
//!
//! Only attempts are events. Steady reports are a load that is always there, because an agent that stays connected does
//! nothing else. An agent is *back* when it has a stream and an acknowledgement from after the fault, as in the measured
//! runs.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    arrival::{Agent, Arrival},
    cell::{Cell, Fault, Queues},
    costs::{ACKNOWLEDGED_WITHIN, STORED_SAMPLE, Work},
};

/// The default interval of the service.
pub const INTERVAL: f64 = 30.0;
/// The cores that a cell takes are averaged over so many seconds.
const WINDOW: usize = 10;
/// Events of one bucket may change places.
const BUCKET: f64 = 0.01;

/// What a cell went through. Times are seconds after the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub agents: u32,
    /// When half of the agents, and when all of them, were back.
    pub half_back: f64,
    pub all_back: f64,
    /// Attempts to connect, all and those that failed.
    pub attempts: u64,
    pub failed: u64,
    /// The most attempts, once somebody serves, and the most new streams in a second.
    pub peak_attempts: f64,
    pub peak_openings: f64,
    /// The most cores, steady reports included.
    pub peak: Work,
    /// Agents that had no stream when they would have been shown as offline.
    pub offline: u64,
}

/// One cell from the fault until all agents are back.
pub fn simulate(cell: Cell, fault: Fault, arrival: Arrival, seed: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed);
    let agent = |number| arrival.agent(number, cell.agents, INTERVAL, &mut random);
    let mut agents: Vec<Agent> = (0..cell.agents).map(agent).collect();
    let mut queues = Queues::new(cell, fault);
    let mut meter = Meter::default();
    let mut wheel = Wheel::default();
    for (number, agent) in (0..).zip(&agents) {
        wheel.put(agent.connects_at, number);
    }
    if fault.stores_at > 0.0 {
        store_what_waited(cell, fault, &mut queues, &mut meter);
    }
    let mut outcome = Outcome {
        agents: cell.agents,
        ..Outcome::default()
    };
    let mut back = Vec::with_capacity(agents.len());
    while let Some(number) = wheel.next() {
        let agent = &mut agents[number as usize];
        let now = agent.connects_at;
        outcome.attempts += 1;
        if now >= fault.serves_at {
            count(&mut meter.attempts, now, 1.0);
        }
        match queues.open(now) {
            Ok(opened) => {
                meter.work(opened, cell.opening);
                count(&mut meter.openings, opened, 1.0);
                let late = fault.offline_at.is_some_and(|limit| opened > limit);
                outcome.offline += u64::from(late);
                let acknowledged = report(agent, opened, &mut queues, &mut meter);
                back.push(acknowledged + ACKNOWLEDGED_WITHIN * random.random::<f64>());
            }
            Err((refusal, work)) => {
                outcome.failed += 1;
                meter.work(refusal.at, work);
                agent.connects_at = refusal.at + agent.wait(refusal.hint, &mut random);
                wheel.put(agent.connects_at, number);
            }
        }
    }
    back.sort_by(f64::total_cmp);
    outcome.half_back = back.get(back.len() / 2).copied().unwrap_or_default();
    outcome.all_back = back.last().copied().unwrap_or_default();
    meter.into(outcome, cell.steady())
}

/// The samples that a welcomed agent brings, or else its next one. Returns when they are stored.
fn report(agent: &Agent, opened: f64, queues: &mut Queues, meter: &mut Meter) -> f64 {
    let taken = |until: f64| ((until - agent.phase) / INTERVAL).floor();
    let waiting = taken(opened) - taken(agent.lost_at.min(opened));
    if waiting == 0.0 {
        let next = agent.phase + INTERVAL * (taken(opened) + 1.0);
        return queues.store(next, 0.0).max(next);
    }
    let database = waiting * STORED_SAMPLE;
    let stored = queues.store(opened, database);
    count(&mut meter.database, stored, database);
    stored
}

/// While nothing can be stored, connected agents go on sampling, and all of it waits in their reports.
fn store_what_waited(cell: Cell, fault: Fault, queues: &mut Queues, meter: &mut Meter) {
    let samples = f64::from(cell.reporting) * fault.stores_at / INTERVAL;
    let work = samples * STORED_SAMPLE;
    let until = queues.store(fault.stores_at, work);
    let seconds = (until - fault.stores_at).ceil().max(1.0);
    for second in 0..seconds as u32 {
        let at = fault.stores_at + f64::from(second);
        count(&mut meter.database, at, work / seconds);
    }
}

/// Figures of each second.
#[derive(Debug, Default)]
struct Meter {
    attempts: Vec<f64>,
    openings: Vec<f64>,
    service: Vec<f64>,
    database: Vec<f64>,
}

fn count(seconds: &mut Vec<f64>, at: f64, much: f64) {
    let second = at as usize;
    if second >= seconds.len() {
        seconds.resize(second + 1, 0.0);
    }
    seconds[second] += much;
}

impl Meter {
    fn work(&mut self, at: f64, work: Work) {
        count(&mut self.service, at, work.service);
        count(&mut self.database, at, work.database);
    }

    fn into(self, outcome: Outcome, steady: Work) -> Outcome {
        Outcome {
            peak_attempts: peak(&self.attempts, 1),
            peak_openings: peak(&self.openings, 1),
            peak: Work {
                service: steady.service + peak(&self.service, WINDOW),
                database: steady.database + peak(&self.database, WINDOW),
            },
            ..outcome
        }
    }
}

/// The largest mean of so many seconds.
fn peak(seconds: &[f64], window: usize) -> f64 {
    let width = window.min(seconds.len()).max(1);
    let sums = seconds.windows(width).map(|part| part.iter().sum::<f64>());
    sums.fold(0.0, f64::max) / window as f64
}

/// Agents by the time of their next attempt.
#[derive(Debug, Default)]
struct Wheel {
    buckets: Vec<Vec<u32>>,
    current: usize,
}

impl Wheel {
    fn put(&mut self, at: f64, agent: u32) {
        let bucket = ((at / BUCKET) as usize).max(self.current);
        if bucket >= self.buckets.len() {
            self.buckets.resize_with(bucket + 1, Vec::new);
        }
        self.buckets[bucket].push(agent);
    }

    fn next(&mut self) -> Option<u32> {
        while let Some(bucket) = self.buckets.get_mut(self.current) {
            if let Some(agent) = bucket.pop() {
                return Some(agent);
            }
            self.buckets[self.current] = Vec::new();
            self.current += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_turns_in_the_order_of_time() {
        let mut wheel = Wheel::default();
        for (at, agent) in [(2.0, 3), (0.5, 1), (1.0, 2)] {
            wheel.put(at, agent);
        }
        assert_eq!(wheel.next(), Some(1));
        // An event in the past is the next one.
        wheel.put(0.0, 9);
        let rest: Vec<u32> = std::iter::from_fn(|| wheel.next()).collect();
        assert_eq!(rest, [9, 2, 3]);
    }

    #[test]
    fn a_peak_is_the_mean_of_its_window() {
        assert_eq!(peak(&[0.0, 8.0, 2.0, 0.0], 1), 8.0);
        assert_eq!(peak(&[0.0, 8.0, 2.0, 0.0], 2), 5.0);
        assert_eq!(peak(&[6.0], 10), 0.6);
        assert_eq!(peak(&[], 10), 0.0);
    }

    #[test]
    fn every_agent_comes_back_and_all_that_failed_is_counted() {
        let cell = super::super::scenarios::cell(5_000);
        let fault = Fault {
            serves_at: 20.0,
            offline_at: Some(0.0),
            ..Fault::default()
        };
        let outcome = simulate(cell, fault, Arrival::Reset, 1);
        assert_eq!(outcome.attempts - outcome.failed, 5_000);
        assert!(outcome.failed > 10_000, "{outcome:?}");
        assert_eq!(outcome.offline, 5_000);
        assert!(outcome.half_back > 20.0 && outcome.all_back < 120.0);
    }
}
