//! Progress on standard error: one changing line on a terminal, a line every 10 s elsewhere.

use std::{
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

use crate::fleet::{Totals, format_errors, format_quantiles};

const LINE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Progress {
    agents: u64,
    terminal: bool,
    shown_at: Option<Instant>,
    before: Option<(Duration, u64)>,
    rate: f64,
}

impl Progress {
    pub fn new(agents: u64) -> Progress {
        Progress {
            agents,
            terminal: stderr().is_terminal(),
            shown_at: None,
            before: None,
            rate: 0.0,
        }
    }

    /// Errors are ignored: a run does not fail because its progress cannot be shown.
    pub fn show(&mut self, totals: &Totals) {
        self.measure(totals);
        let due = self.shown_at.is_none_or(|at| at.elapsed() >= LINE_INTERVAL);
        if !self.terminal && !due {
            return;
        }
        self.shown_at = Some(Instant::now());
        let line = self.line(totals);
        let _ = match self.terminal {
            true => write!(stderr(), "\r\x1b[2K{line}"),
            false => writeln!(stderr(), "{line}"),
        };
    }

    pub fn end(&self) {
        if self.terminal {
            let _ = writeln!(stderr());
        }
    }

    /// Workers send updates only twice a second, so the rate is computed when the count has changed.
    fn measure(&mut self, totals: &Totals) {
        let (age, acked) = (totals.age, totals.counts.acked);
        match self.before {
            Some((then, before)) if acked > before => {
                let seconds = age.saturating_sub(then).as_secs_f64();
                self.rate = (acked - before) as f64 / seconds.max(0.001);
                self.before = Some((age, acked));
            }
            Some(_) => {}
            None => self.before = Some((age, acked)),
        }
    }

    fn line(&self, totals: &Totals) -> String {
        format!(
            "{:>4} s  {}/{} connected  {:.0} acknowledged/s  ack {}  errors: {}",
            totals.age.as_secs(),
            totals.counts.connected,
            self.agents,
            self.rate,
            format_quantiles(&totals.window.ack),
            format_errors(&totals.errors)
        )
    }
}
