//! Figures in tables, goals that some of them must meet, and how both are printed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a stage of the benchmark has measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    pub tables: Vec<Table>,
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// What the figures do not say, in whole sentences.
    #[serde(default)]
    pub remark: String,
}

/// The first column has the names of the rows. A row may have fewer figures than there are columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<f64>)>,
}

/// A figure that must be large or small enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    pub name: String,
    pub measured: f64,
    pub required: f64,
    /// Whether `required` is a minimum; otherwise it is a maximum.
    #[serde(default)]
    pub at_least: bool,
    /// Whether it holds for fleets of any size on any machine.
    #[serde(skip)]
    any_size: bool,
}

impl Table {
    pub fn new(names: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|column| (*column).to_owned());
        Table {
            columns: [names.into()].into_iter().chain(columns).collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(mut self, name: impl Into<String>, figures: impl Into<Vec<f64>>) -> Table {
        self.rows.push((name.into(), figures.into()));
        self
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} |", self.columns.join(" | "))?;
        writeln!(f, "{}|", "|---".repeat(self.columns.len()))?;
        for (name, figures) in &self.rows {
            let mut cells: Vec<String> = figures.iter().map(|figure| number(*figure)).collect();
            cells.resize(self.columns.len() - 1, String::new());
            writeln!(f, "| {name} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}

impl Goal {
    pub fn at_most(name: impl Into<String>, measured: f64, required: f64) -> Goal {
        Goal {
            name: name.into(),
            measured,
            required,
            at_least: false,
            any_size: false,
        }
    }

    pub fn at_least(name: impl Into<String>, measured: f64, required: f64) -> Goal {
        Goal {
            at_least: true,
            ..Goal::at_most(name, measured, required)
        }
    }

    /// At most this much, whatever the machine and the size of the fleet: the ratio of two figures of one run cancels the
    /// speed of the machine.
    pub fn ratio(name: impl Into<String>, measured: f64, required: f64) -> Goal {
        Goal {
            any_size: true,
            ..Goal::at_most(name, measured, required)
        }
    }

    /// Must not happen, whatever the machine and the size of the fleet.
    pub fn never(name: impl Into<String>, count: u64) -> Goal {
        Goal::ratio(name, count as f64, 0.0)
    }

    /// A figure that is not a number meets no goal.
    pub fn met(&self) -> bool {
        match self.at_least {
            true => self.measured >= self.required,
            false => self.measured <= self.required,
        }
    }

    /// Doubles the bound for a divided fleet, which is small and noisy. Returns whether the goal means anything there.
    pub fn widen(&mut self) -> bool {
        self.required *= 2.0;
        self.any_size
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.at_least { "≥" } else { "≤" };
        let (measured, required) = (number(self.measured), number(self.required));
        write!(f, "{} {measured} ({sign} {required})", self.name)
    }
}

/// Three digits, or all of a whole part that is longer.
fn number(figure: f64) -> String {
    let size = figure.abs();
    let digits = if figure.fract() == 0.0 || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    format!("{figure:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_fails_and_a_divided_fleet_has_slack() {
        let mut memory = Goal::ratio("memory, × bare echo", 1.2, 1.15);
        assert!(!memory.met());
        assert!(memory.widen() && memory.met());
        let mut offline = Goal::never("went offline", 1);
        assert!(offline.widen() && !offline.met());
        assert!(!Goal::at_least("registrations/s", 90.0, 700.0).widen());
        assert!(!Goal::ratio("0 / 0 is not a number", f64::NAN, 1.0).met());
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0146, 1.4, 41.78, 243.0, 15_507.2, 10.0, 0.0].map(number);
        assert_eq!(shown, ["0.015", "1.40", "41.8", "243", "15507", "10", "0"]);
        let goal = Goal::at_least("heartbeats/s", 15_507.2, 20_000.0);
        assert_eq!(goal.to_string(), "heartbeats/s 15507 (≥ 20000)");
    }

    #[test]
    fn a_row_may_be_shorter_than_the_head() {
        let shown = Table::new("load", &["a", "b"]).row("bare", [1.5]);
        let expected = "| load | a | b |\n|---|---|---|\n| bare | 1.50 |  |\n";
        assert_eq!(shown.to_string(), expected);
    }
}
