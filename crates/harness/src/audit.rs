//! The audit: compares what agents were acknowledged with what PostgreSQL has stored.
//!
//! An agent keeps its ledger from the acknowledgements it receives; the service writes the tables.
//! The two are independent, so if they agree, no acknowledged sample is missing and none is stored
//! twice.

use std::collections::HashMap;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::Balance;

/// One row per agent: its books in `agent_state`, and its rows in `host_metrics`. Numbers that another cell has are settled
/// without a row, like rejected ones.
const TABLES: &str = "SELECT s.agent_id, s.acked_seq, s.stored_count, s.rejected_count + s.moved_count, s.gap_count,
           coalesce(m.rows, 0), coalesce(m.numbers, 0), coalesce(m.highest, 0)
      FROM agent_state s
      LEFT JOIN (SELECT agent_id, count(*) AS rows, count(DISTINCT seq) AS numbers, max(seq) AS highest
                   FROM host_metrics GROUP BY agent_id) m USING (agent_id)";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Ledgers in this audit, and how many there should be.
    pub agents: u64,
    pub expected: u64,
    pub taken: u64,
    pub acked: u64,
    pub rejected: u64,
    /// Taken and not acknowledged: late, but not lost.
    pub open: u64,
    /// Acknowledgements that the service took back or invented, as the agents saw them.
    pub broken: u64,
    /// `None` if there was no database to compare with.
    pub tables: Option<Tables>,
}

/// What the tables have, and the number of faults of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    pub stored: u64,
    /// Acknowledged to an agent and not in the tables.
    pub missing: u64,
    pub twice: u64,
    /// Differences between the books in `agent_state` and the rows.
    pub unbooked: u64,
    /// Gaps of agents that have declared none.
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

impl AuditReport {
    /// Audits the ledgers, and compares them with the tables where there is a database.
    pub async fn of(
        balances: &[Balance],
        database: Option<&str>,
        expected: u64,
    ) -> anyhow::Result<AuditReport> {
        let mut report = AuditReport::from_ledgers(balances, expected);
        if let Some(url) = database {
            report.tables = Some(compare(balances, &rows(url).await?));
        }
        Ok(report)
    }

    fn from_ledgers(balances: &[Balance], expected: u64) -> AuditReport {
        let sum = |value: fn(&Balance) -> u64| balances.iter().map(value).sum();
        AuditReport {
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

    /// Whether every ledger is there and agrees with the tables.
    pub fn balance(&self) -> bool {
        let faults = self.tables.map_or(0, |tables| tables.faults());
        self.agents == self.expected && self.broken == 0 && faults == 0
    }

    /// Fails unless everything that new agents took is acknowledged and stored once.
    pub fn ensure_complete(&self) -> anyhow::Result<()> {
        let stored = self.tables.map_or(0, |tables| tables.stored);
        ensure!(self.balance(), "the books do not balance: {self:?}");
        ensure!(self.open == 0, "not acknowledged: {self:?}");
        ensure!(stored + self.rejected == self.acked, "not stored: {self:?}");
        Ok(())
    }
}

impl Tables {
    /// Compares the books of all agents with their rows, without ledgers. Gaps are no fault here:
    /// agents may have declared them.
    pub async fn of(database: &str) -> anyhow::Result<Tables> {
        let mut tables = Tables::default();
        for row in rows(database).await?.values() {
            tables.add(row);
        }
        Ok(tables)
    }

    pub fn faults(&self) -> u64 {
        self.missing + self.twice + self.unbooked + self.gaps
    }

    fn add(&mut self, row: &Row) {
        self.stored += row.rows;
        self.missing += row.stored.saturating_sub(row.numbers);
        self.twice += row.rows - row.numbers;
        self.unbooked += row.numbers.saturating_sub(row.stored);
        self.unbooked += row.highest.saturating_sub(row.acked);
        self.unbooked += row.acked.abs_diff(row.stored + row.rejected + row.gaps);
    }
}

async fn rows(database: &str) -> anyhow::Result<HashMap<String, Row>> {
    let text = svc_sandbox::query(database, TABLES).await;
    parse_all(&text.context("the books")?)
}

fn parse_all(text: &str) -> anyhow::Result<HashMap<String, Row>> {
    let row = |line| parse(line).with_context(|| format!("not a row: {line}"));
    text.lines().map(row).collect()
}

fn parse(line: &str) -> Option<(String, Row)> {
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
    Some((agent.to_owned(), row))
}

/// An agent that never registered has no id and no acknowledgements.
fn compare(balances: &[Balance], rows: &HashMap<String, Row>) -> Tables {
    let mut tables = Tables::default();
    for balance in balances
        .iter()
        .filter(|balance| !balance.agent_id.is_empty())
    {
        let Some(row) = rows.get(&balance.agent_id) else {
            tables.missing += balance.acked;
            continue;
        };
        tables.add(row);
        tables.missing += balance.acked.saturating_sub(row.acked);
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
        compare(&ledger(acked), &parse_all(&format!("a|{row}")).unwrap())
    }

    /// acked, stored, rejected, gaps | rows, distinct numbers, highest number
    #[test]
    fn the_audit_finds_each_kind_of_fault() {
        let good = audit(5, "5|4|1|0|4|4|5");
        assert_eq!(
            good,
            Tables {
                stored: 4,
                ..Tables::default()
            }
        );
        assert_eq!(audit(6, "5|5|0|0|5|5|5").missing, 1, "above the watermark");
        assert_eq!(audit(5, "5|5|0|0|4|4|5").missing, 1, "a row is missing");
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
    fn the_audit_finds_a_missing_ledger() {
        assert!(AuditReport::from_ledgers(&ledger(3), 1).balance());
        assert!(!AuditReport::from_ledgers(&ledger(3), 2).balance());
    }
}
