//! The size of a measurement: fleets, rates, windows.

use std::time::Duration;

/// The length of a measurement.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Agents per second while a fleet connects.
const ARRIVALS: f64 = 300.0;

/// By what the full size of every fleet is divided; 1 in a real run.
#[derive(Clone, Copy, Debug)]
pub struct Scale(pub u32);

impl Scale {
    pub fn agents(self, full: u32) -> u32 {
        (full / self.0).max(1)
    }

    /// Rates are divided as well, so that each agent reports as often as in a full run.
    pub fn rate(self, full: f64) -> f64 {
        full / f64::from(self.0)
    }
}

pub fn ramp(agents: u32) -> Duration {
    interval(agents, ARRIVALS)
}

/// The interval of each agent if all together do something `rate` times per second.
pub fn interval(agents: u32, rate: f64) -> Duration {
    Duration::from_secs_f64(f64::from(agents) / rate.max(0.001))
}
