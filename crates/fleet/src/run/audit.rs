//! The books: what agents were promised, held against what PostgreSQL has.
//!
//! Invariant: a ledger is kept by the agent, from the acknowledgements it received; the tables are
//! written by the service. Neither knows of the other, so when they agree nothing that was
//! acknowledged is missing and nothing is there twice.

use std::collections::HashMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::fleet::Outcome;
use crate::ledger::Balance;

/// One row an agent: the books, and what is really there.
const TABLES: &str = "SELECT s.agent_id, s.acked_seq, s.stored_count, s.rejected_count, s.gap_count,
           coalesce(m.rows, 0), coalesce(m.numbers, 0), coalesce(m.highest, 0)
      FROM agent_state s
      LEFT JOIN (SELECT agent_id, count(*) AS rows, count(DISTINCT seq) AS numbers, max(seq) AS highest
                   FROM host_metrics GROUP BY agent_id) m USING (agent_id)";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// Agents whose ledgers were handed over, and how many there should be.
    pub agents: u64,
    pub expected: u64,
    pub taken: u64,
    pub acked: u64,
    pub rejected: u64,
    /// Taken and never acknowledged: late, but not lost.
    pub open: u64,
    /// Promises that the service went back on, as agents saw it.
    pub broken: u64,
    /// None where there was no database to look at.
    pub tables: Option<Tables>,
}

/// Samples, or numbers, by what is wrong with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    pub stored: u64,
    /// Acknowledged to an agent, and not in the tables.
    pub missing: u64,
    pub twice: u64,
    /// Rows that the books do not know of, or know of and are not there.
    pub unbooked: u64,
    /// Gaps that no agent declared.
    pub gaps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    acked: u64,
    stored: u64,
    rejected: u64,
    gaps: u64,
    rows: u64,
    numbers: u64,
    highest: u64,
}

impl Books {
    pub async fn of(
        outcome: &Outcome,
        database: Option<&str>,
        expected: u64,
    ) -> anyhow::Result<Books> {
        let mut books = Books::from_ledgers(&outcome.balances, expected);
        if let Some(url) = database {
            let text = svc_sandbox::query(url, TABLES).await.context("the books")?;
            books.tables = Some(compare(&outcome.balances, &rows(&text)?));
        }
        Ok(books)
    }

    pub fn from_ledgers(balances: &[Balance], expected: u64) -> Books {
        let sum = |value: fn(&Balance) -> u64| balances.iter().map(value).sum();
        Books {
            agents: balances.len() as u64,
            expected,
            taken: sum(|balance| balance.taken - balance.base),
            acked: sum(|balance| balance.acked - balance.base),
            rejected: sum(|balance| balance.rejected),
            open: sum(|balance| balance.taken - balance.acked),
            broken: sum(|balance| balance.broken),
            tables: None,
        }
    }

    pub fn balance(&self) -> bool {
        let wrong = |tables: Tables| tables.missing + tables.twice + tables.unbooked + tables.gaps;
        self.agents == self.expected && self.broken == 0 && self.tables.map_or(0, wrong) == 0
    }
}

fn rows(text: &str) -> anyhow::Result<HashMap<&str, Row>> {
    let row = |line| parse(line).with_context(|| format!("not a row: {line}"));
    text.lines().map(row).collect()
}

fn parse(line: &str) -> Option<(&str, Row)> {
    let (agent, numbers) = line.split_once('|')?;
    let numbers: Result<Vec<u64>, _> = numbers.split('|').map(str::parse).collect();
    let [acked, stored, rejected, gaps, rows, numbers, highest] = numbers.ok()?[..] else {
        return None;
    };
    let row = Row {
        acked,
        stored,
        rejected,
        gaps,
        rows,
        numbers,
        highest,
    };
    Some((agent, row))
}

/// An agent that never got as far as an identity was promised nothing.
fn compare(balances: &[Balance], rows: &HashMap<&str, Row>) -> Tables {
    let mut tables = Tables::default();
    for balance in balances
        .iter()
        .filter(|balance| !balance.agent_id.is_empty())
    {
        let Some(row) = rows.get(balance.agent_id.as_str()) else {
            tables.missing += balance.acked;
            continue;
        };
        tables.stored += row.rows;
        tables.missing += balance.acked.saturating_sub(row.acked);
        tables.missing += row.stored.saturating_sub(row.numbers);
        tables.twice += row.rows - row.numbers;
        tables.unbooked += row.numbers.saturating_sub(row.stored);
        tables.unbooked += row.highest.saturating_sub(row.acked);
        tables.unbooked += row.acked.abs_diff(row.stored + row.rejected + row.gaps);
        tables.gaps += if balance.base == 0 { row.gaps } else { 0 };
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(acked: u64) -> Vec<Balance> {
        let agent_id = "a".to_owned();
        let (taken, acked) = (acked, acked);
        vec![Balance {
            agent_id,
            taken,
            acked,
            ..Balance::default()
        }]
    }

    fn audit(acked: u64, row: &str) -> Tables {
        compare(&ledger(acked), &rows(&format!("a|{row}")).unwrap())
    }

    /// acked, stored, rejected, gaps | rows, distinct numbers, highest number
    #[test]
    fn each_fault_shows_and_good_books_balance() {
        let good = audit(5, "5|4|1|0|4|4|5");
        assert_eq!(
            good,
            Tables {
                stored: 4,
                ..Tables::default()
            }
        );
        assert_eq!(audit(6, "5|5|0|0|5|5|5").missing, 1, "above the watermark");
        assert_eq!(audit(5, "5|5|0|0|4|4|5").missing, 1, "a row is gone");
        assert_eq!(audit(5, "5|5|0|0|6|5|5").twice, 1);
        assert_eq!(audit(5, "5|4|0|1|4|4|5").gaps, 1);
        assert_eq!(audit(5, "5|5|0|0|6|6|6").unbooked, 2);
        assert_eq!(
            compare(&ledger(3), &HashMap::new()).missing,
            3,
            "no such agent"
        );
    }

    #[test]
    fn a_ledger_that_was_not_handed_over_is_noticed() {
        assert!(Books::from_ledgers(&ledger(3), 1).balance());
        assert!(!Books::from_ledgers(&ledger(3), 2).balance());
    }
}
