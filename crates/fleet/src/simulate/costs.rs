//! What an opening, a report and a move cost, as the benchmark has measured it (docs/benchmarks.md).
//!
//! All costs are CPU seconds. A test compares them with the stored results, so that the simulation does not go on with
//! figures of a service that has changed. Where nothing was measured by itself, the figure is an upper bound.

/// Work for the service and for PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub service: f64,
    pub database: f64,
}

impl Work {
    pub const fn and(self, other: Work) -> Work {
        Work {
            service: self.service + other.service,
            database: self.database + other.database,
        }
    }

    pub fn times(self, factor: f64) -> Work {
        Work {
            service: self.service * factor,
            database: self.database * factor,
        }
    }
}

/// Stage `storm`: 5,000 agents connected in 3.99 s, on two cores that service, PostgreSQL and agents share.
pub const OPENING_OF_MACHINE: f64 = 3.99 * 2.0 / 5_000.0;
/// Stage `storm`. PostgreSQL was not measured by itself: it gets all that the service did not take, although part of that
/// was the agents' own.
pub const OPENING: Work = Work {
    service: 612e-6,
    database: OPENING_OF_MACHINE - 612e-6,
};
/// Stage `enrol`: a registration of a newcomer.
pub const REGISTRATION: Work = Work {
    service: 1_336e-6,
    database: 1_013e-6,
};
/// An agent that moves costs its new cell no more than a newcomer does.
pub const MOVE: Work = REGISTRATION.and(OPENING);
/// Stage `saturate`: PostgreSQL's part of a sample that comes in a large batch.
pub const STORED_SAMPLE: f64 = 28.8e-6;
/// Stage `climb`: cores that 200,400 agents take, divided by them.
pub const CONNECTED: Work = Work {
    service: 0.787 / 200_400.0,
    database: 0.404 / 200_400.0,
};
/// Stage `instances`: p99 of the acknowledgements of a fleet on one instance, and about twice the median.
pub const ACKNOWLEDGED_WITHIN: f64 = 0.831;
/// One `INSERT` in a transaction of its own, PostgreSQL 15 on a machine of the same class: a write of the directory.
pub const DIRECTORY_WRITE: f64 = 74e-6;
/// A primary that dies, until the next one accepts writes: Patroni with a lease of 20 s, measured in a drill.
pub const FAILOVER: f64 = 25.1;

#[cfg(test)]
mod tests {
    use super::{super::measured::tests::stored, *};
    use crate::bench::results::Stage;

    /// Absolute figures vary by a third from run to run.
    const VARIANCE: f64 = 1.0 / 3.0;

    #[test]
    fn the_costs_are_those_of_the_stored_results() -> anyhow::Result<()> {
        let micros = |seconds: f64| seconds * 1e6;
        let last = 200_400.0;
        for (cost, stage, row, column) in [
            (OPENING_OF_MACHINE * 2_500.0, Stage::Storm, "5000", 0),
            (micros(OPENING.service), Stage::Storm, "5000", 2),
            (micros(REGISTRATION.database), Stage::Enrol, "10000", 1),
            (micros(REGISTRATION.service), Stage::Enrol, "10000", 2),
            (micros(STORED_SAMPLE), Stage::Saturate, "service", 1),
            (CONNECTED.service * last, Stage::Climb, "200400", 2),
            (CONNECTED.database * last, Stage::Climb, "200400", 3),
            (ACKNOWLEDGED_WITHIN * 1e3, Stage::Instances, "1", 7),
        ] {
            let stored = stored(stage, row, column)?;
            let error = (cost / stored - 1.0).abs();
            assert!(
                error <= VARIANCE,
                "{stage:?} {row}: {cost} instead of {stored}"
            );
        }
        Ok(())
    }
}
