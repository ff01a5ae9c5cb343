//! The size of each stage.

use std::time::Duration;

/// Heartbeats per second at which a comparable service was measured on the same machine.
pub const LOW_RATE: f64 = 333.0;

#[derive(Clone, Debug)]
pub struct Sizes {
    pub rss: Vec<u32>,
    pub pace_agents: u32,
    pub pace_rate: f64,
    pub low_agents: u32,
    pub saturate_agents: u32,
    /// One fleet on one instance and on this many, at a low rate.
    pub instances: usize,
    pub instances_agents: u32,
    pub instances_rate: f64,
    /// Autovacuum looks for work once a minute. At a low rate what it finds is a good part of all that PostgreSQL does, so
    /// every measurement must have as many rounds of it.
    pub instances_window: Duration,
    /// Hosts with an hour of history, and how many of them have a month.
    pub history_hosts: u32,
    pub history_long: u32,
    /// Hosts of the hour that is compacted by itself.
    pub hour_hosts: u32,
    pub enrol_agents: u32,
    pub handshakers: u32,
    pub storm_agents: u32,
    pub kill_agents: u32,
    pub growth: Vec<u32>,
    pub growth_rate: f64,
    pub fifty_agents: u32,
    pub fifty_time: Duration,
    /// The largest fleet of the climb, and how many agents each step adds.
    pub climb_goal: u32,
    pub climb_step: u32,
    /// The length of a measurement.
    pub window: Duration,
    /// Agents per second while a fleet connects.
    pub arrivals: u32,
}

impl Sizes {
    pub fn new(quick: bool, divide: u32) -> Sizes {
        let sizes = if quick { Sizes::quick() } else { Sizes::full() };
        sizes.divided(divide)
    }

    fn full() -> Sizes {
        Sizes {
            rss: vec![5_000, 18_000],
            pace_agents: 10_000,
            pace_rate: 3_300.0,
            low_agents: 10_000,
            saturate_agents: 12_000,
            instances: 10,
            instances_agents: 18_000,
            instances_rate: 700.0,
            instances_window: Duration::from_mins(2),
            history_hosts: 2_000,
            history_long: 5,
            hour_hosts: 100_000,
            enrol_agents: 10_000,
            handshakers: 64,
            storm_agents: 5_000,
            kill_agents: 18_000,
            growth: vec![1_000, 2_000, 5_000, 18_000],
            // The most that the smallest fleet may report.
            growth_rate: 1_900.0,
            fifty_agents: 50_000,
            fifty_time: Duration::from_mins(10),
            climb_goal: 200_000,
            climb_step: 16_700,
            window: Duration::from_secs(30),
            arrivals: 300,
        }
    }

    fn quick() -> Sizes {
        Sizes {
            rss: vec![2_000],
            pace_agents: 2_000,
            pace_rate: 1_000.0,
            low_agents: 2_000,
            saturate_agents: 6_000,
            instances: 5,
            instances_agents: 2_000,
            instances_rate: 100.0,
            instances_window: Duration::from_secs(15),
            history_hosts: 500,
            history_long: 2,
            hour_hosts: 10_000,
            enrol_agents: 1_000,
            handshakers: 32,
            storm_agents: 1_000,
            kill_agents: 1_000,
            growth: vec![500, 2_000],
            growth_rate: 300.0,
            fifty_agents: 2_000,
            fifty_time: Duration::from_secs(60),
            climb_goal: 4_000,
            climb_step: 2_000,
            window: Duration::from_secs(15),
            arrivals: 300,
        }
    }

    /// Divides the rates as well, so that each agent reports as often as before.
    fn divided(mut self, by: u32) -> Sizes {
        let agents = [
            &mut self.pace_agents,
            &mut self.low_agents,
            &mut self.saturate_agents,
            &mut self.instances_agents,
            &mut self.history_hosts,
            &mut self.hour_hosts,
            &mut self.enrol_agents,
            &mut self.storm_agents,
            &mut self.kill_agents,
            &mut self.fifty_agents,
            &mut self.climb_goal,
            &mut self.climb_step,
        ];
        let fleets = self
            .rss
            .iter_mut()
            .chain(self.growth.iter_mut())
            .chain(agents);
        fleets.for_each(|agents| *agents = (*agents / by).max(1));
        self.pace_rate /= f64::from(by);
        self.instances_rate /= f64::from(by);
        self.history_long = self.history_long.min(self.history_hosts);
        self.growth_rate /= f64::from(by);
        self
    }

    pub fn ramp(&self, agents: u32) -> Duration {
        Duration::from_secs_f64(f64::from(agents) / f64::from(self.arrivals))
    }
}

/// The interval of each agent if all together report `rate` times per second.
pub fn interval(agents: u32, rate: f64) -> Duration {
    Duration::from_secs_f64(f64::from(agents) / rate.max(0.001))
}
