//! What may happen to ten million agents in fifty cells, and what must hold.

use svc_proto::contract::BackoffBounds;

use super::{
    arrival::{Arrival, STEPS},
    cell::{Cell, Fault, HANDSHAKE_DEADLINE},
    costs::{DIRECTORY_WRITE, FAILOVER, MOVE, OPENING, Work},
    engine::INTERVAL,
};

/// A cell has its instances in three zones, and one of its three PostgreSQL servers in each.
const ZONES: u32 = 3;
/// An agent that lost its stream is shown as offline after a lease and two intervals, counted from the lease's last
/// renewal (5 s ago at most) while other instances live, and after the outage grace if the cell served nobody.
const SWEPT_AFTER: f64 = 10.0 + 60.0;
const OUTAGE_GRACE: f64 = 150.0;
/// A cell that is lost returns after this long, and the directory after that.
const CELL_AWAY: f64 = 600.0;
const DIRECTORY_AWAY: f64 = 3_600.0;
const NETWORK_AWAY: f64 = 30.0;
/// The contract's longest wait. After it an agent may have to wait for its next sample, and for others.
const LONGEST_BACKOFF: f64 = BackoffBounds::STANDARD.most.as_secs() as f64;
/// All machines of the fleet are replaced in a month, so that one of them enrols in this many agent-seconds.
const LIFE: f64 = 30.0 * 86_400.0;
/// A redirected cell gives drain slots over this time.
const REDIRECT: f64 = 300.0;
/// A step of a drain: slots at 200 a second for a cell of 200,000, and time in which all of the step report.
const STEP_SLOTS: f64 = 10.0;
const STEP_EVERY: f64 = 40.0;

/// One row of the table: cells to which the same happens.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub cells: u32,
    pub cell: Cell,
    pub fault: Fault,
    pub arrival: Arrival,
    /// The moment from which the time to be back counts, in seconds after the fault.
    pub since: f64,
    /// All must be back so many seconds after that.
    pub limit: f64,
}

/// A cell for so many agents. For 200,000: 4 cores for the instances, 8 for PostgreSQL, two of them for its writers.
pub fn cell(agents: u32) -> Cell {
    let part = f64::from(agents) / 200_000.0;
    Cell {
        agents,
        cores: Work {
            service: 4.0,
            database: 8.0,
        }
        .times(part),
        reporting: agents,
        writers: 2.0 * part,
        // A quarter of the connections of 12 instances with room for 25,000 agents each.
        unproven: 12.0 * 25_000.0 / 4.0 * part,
        deadline: HANDSHAKE_DEADLINE,
        opening: OPENING,
    }
}

/// All scenarios for a fleet of so many cells with so many agents each.
pub fn scenarios(cells: u32, agents: u32) -> Vec<Scenario> {
    let whole = cell(agents);
    let calm = Scenario {
        name: "",
        cells,
        cell: whole,
        fault: Fault::default(),
        arrival: Arrival::Reset,
        since: 0.0,
        limit: 120.0,
    };
    let away = |seconds: f64, offline_at| Fault {
        serves_at: seconds,
        stores_at: 0.0,
        offline_at,
    };
    let mut all = vec![
        Scenario {
            name: "cell lost for 10 min",
            cells: 1,
            fault: away(CELL_AWAY, Some(CELL_AWAY + OUTAGE_GRACE)),
            since: CELL_AWAY,
            limit: OUTAGE_GRACE,
            ..calm.clone()
        },
        Scenario {
            name: "storm: every connection cut at once",
            ..calm.clone()
        },
        Scenario {
            name: "storm after 30 s without a network",
            fault: away(NETWORK_AWAY, None),
            since: NETWORK_AWAY,
            limit: LONGEST_BACKOFF + 2.0 * INTERVAL,
            ..calm.clone()
        },
    ];
    all.extend(zone(cells, &calm));
    all.extend(directory(cells, agents, &calm));
    let moved = Cell {
        opening: MOVE,
        ..whole
    };
    let redirect = Scenario {
        cells: 1,
        cell: moved,
        limit: REDIRECT + 60.0,
        ..calm
    };
    all.extend([
        Scenario {
            name: "redirect: one cell into an empty one, with slots",
            arrival: Arrival::Spread { over: REDIRECT },
            ..redirect.clone()
        },
        Scenario {
            name: "redirect: the same at once, without slots",
            arrival: Arrival::Spread { over: 1.0 },
            ..redirect.clone()
        },
        Scenario {
            name: "drain of one cell into another, by one percent",
            arrival: Arrival::Steps {
                every: STEP_EVERY,
                over: STEP_SLOTS,
            },
            limit: STEP_EVERY * f64::from(STEPS) + INTERVAL,
            ..redirect
        },
    ]);
    all
}

/// A zone dies without a word: each cell loses a third of its instances, and a third of the cells their primary as well.
fn zone(cells: u32, calm: &Scenario) -> [Scenario; 2] {
    let whole = calm.cell;
    let left = 1.0 - 1.0 / f64::from(ZONES);
    let failing_over = cells.div_ceil(ZONES);
    let cell = Cell {
        agents: whole.agents / ZONES,
        cores: Work {
            service: whole.cores.service * left,
            ..whole.cores
        },
        unproven: whole.unproven * left,
        ..whole
    };
    let fault = |stores_at, offline_at| Fault {
        serves_at: 0.0,
        stores_at,
        offline_at: Some(offline_at),
    };
    let lost = Scenario {
        cell,
        arrival: Arrival::Silent,
        ..calm.clone()
    };
    [
        Scenario {
            name: "zone lost: cells with their primary elsewhere",
            cells: cells - failing_over,
            fault: fault(0.0, SWEPT_AFTER),
            ..lost.clone()
        },
        Scenario {
            name: "zone lost: cells with their primary in it",
            cells: failing_over,
            fault: fault(FAILOVER, FAILOVER + OUTAGE_GRACE),
            ..lost
        },
    ]
}

/// Newcomers of one hour wait for the directory. Agents that a cell knows do not ask it.
fn directory(cells: u32, agents: u32, calm: &Scenario) -> [Scenario; 2] {
    let newcomers = |agents: f64| (agents * DIRECTORY_AWAY / LIFE).ceil() as u32;
    let all = newcomers(f64::from(cells) * f64::from(agents));
    let waiting = Scenario {
        fault: Fault {
            serves_at: DIRECTORY_AWAY,
            ..Fault::default()
        },
        arrival: Arrival::Spread {
            over: DIRECTORY_AWAY,
        },
        since: DIRECTORY_AWAY,
        limit: LONGEST_BACKOFF + 2.0 * INTERVAL,
        ..calm.clone()
    };
    let cores = Work {
        service: 2.0,
        database: 2.0,
    };
    let itself = Cell {
        agents: all,
        cores,
        reporting: 0,
        writers: 1.0,
        unproven: 25_000.0 / 4.0,
        deadline: HANDSHAKE_DEADLINE,
        opening: Work {
            database: DIRECTORY_WRITE,
            ..OPENING
        },
    };
    let served = Cell {
        agents: newcomers(f64::from(agents)),
        opening: MOVE,
        ..calm.cell
    };
    [
        Scenario {
            name: "directory lost for 1 h: itself, newcomers only",
            cells: 1,
            cell: itself,
            ..waiting.clone()
        },
        Scenario {
            name: "directory lost for 1 h: cells, newcomers only",
            cell: served,
            ..waiting
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_zone_is_a_part_of_every_cell() {
        let all = scenarios(50, 200_000);
        let zones = all.iter().filter(|one| one.name.starts_with("zone"));
        assert_eq!(zones.clone().map(|one| one.cells).sum::<u32>(), 50);
        assert!(zones.clone().all(|one| one.cell.agents == 66_666));
        let failover = zones.filter(|one| one.fault.stores_at > 0.0);
        assert_eq!(failover.map(|one| one.cells).sum::<u32>(), 17);
    }

    #[test]
    fn what_happens_to_ten_million_agents_happens_to_all_of_them() {
        let storms = scenarios(50, 200_000);
        let storm = storms.iter().find(|one| one.name.starts_with("storm"));
        let agents = storm.map(|one| one.cells * one.cell.agents);
        assert_eq!(agents, Some(10_000_000));
    }
}
