//! The capacity meter: how full the instances are, and how many more agents fit.
//!
//! What an agent costs is measured: by the instance itself when it has enough agents to tell, otherwise
//! by the benchmark (docs/benchmarks.md, docs/sizing.md). The instance's scarcest resource decides. The
//! database's processors are not counted: nothing in the database tells how many it has.

use svc_store::{
    CORES_PER_REPORT_A_SECOND, DatabaseState, InstanceLoad, InstanceRecord, PLANNED, TELLING_AGENTS,
};

use crate::view::{Bar, bytes, count, share};

/// The bound of docs/sizing.md for a connected agent.
const AGENT_BYTES: f64 = 96.0 * 1024.0;

/// One line of the meter.
pub struct Meter {
    pub name: &'static str,
    pub text: String,
    pub bar: Bar,
}

pub struct Capacity {
    pub meters: Vec<Meter>,
    /// Unknown while no instance says how full it is.
    pub room: Option<Room>,
}

/// How many more agents fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Room {
    pub agents: i64,
    /// What runs out first.
    pub limit: &'static str,
}

impl Room {
    /// Rounded to two digits: the figure is an estimate.
    pub fn shown(&self) -> String {
        let unit = 10_i64.pow(self.agents.max(1).ilog10().saturating_sub(1));
        count(&(self.agents / unit * unit))
    }
}

impl Capacity {
    pub fn of(instances: &[InstanceRecord], database: &DatabaseState) -> Self {
        let loads: Vec<InstanceLoad> = instances.iter().filter_map(InstanceRecord::load).collect();
        let mut meters = Vec::new();
        if !loads.is_empty() {
            meters.extend([agents(&loads), cores(&loads), memory(&loads), queue(&loads)]);
        }
        meters.push(Meter {
            name: "Database connections",
            text: format!("{} of {}", database.connections, database.max_connections),
            bar: share(&database.connections, &database.max_connections),
        });
        Self {
            meters,
            room: room(&loads),
        }
    }
}

fn agents(loads: &[InstanceLoad]) -> Meter {
    let held = total(loads, |load| load.agents);
    let most = total(loads, |load| load.max_connections);
    Meter {
        name: "Agents",
        text: format!("{} of {} connections", count(&held), count(&most)),
        bar: share(&held, &most),
    }
}

fn cores(loads: &[InstanceLoad]) -> Meter {
    let used: f64 = loads.iter().map(|load| load.cores_used).sum();
    let all: f64 = loads.iter().map(|load| load.cores).sum();
    Meter {
        name: "Processors",
        text: format!("{used:.2} of {all:.0} cores"),
        bar: Bar::of(used, all),
    }
}

fn memory(loads: &[InstanceLoad]) -> Meter {
    let used = total(loads, |load| load.memory_bytes);
    let most = loads.iter().map(|load| load.memory_limit_bytes).sum();
    bytes_of("Memory", used, most, "")
}

/// What waits in the queues of all instances.
pub fn queue(loads: &[InstanceLoad]) -> Meter {
    let used = total(loads, |load| load.queue_bytes);
    let most = loads.iter().map(|load| load.max_queue_bytes).sum();
    let oldest = loads.iter().map(|load| load.queue_oldest_seconds);
    let oldest = oldest.fold(0.0, f64::max);
    let late = match oldest {
        1.0.. => format!(", the oldest report waits for {oldest:.0} s"),
        _ => String::new(),
    };
    bytes_of("Queue", used, most, &late)
}

fn bytes_of(name: &'static str, used: i64, most: Option<i64>, more: &str) -> Meter {
    Meter {
        name,
        text: match most {
            Some(most) => format!("{} of {}{more}", bytes(&used), bytes(&most)),
            None => format!("{}{more}", bytes(&used)),
        },
        bar: most.map_or(Bar(None), |most| share(&used, &most)),
    }
}

fn total(loads: &[InstanceLoad], of: fn(&InstanceLoad) -> i64) -> i64 {
    loads.iter().map(of).sum()
}

/// The room of all instances together.
fn room(loads: &[InstanceLoad]) -> Option<Room> {
    let rooms: Vec<Room> = loads.iter().map(room_of).collect();
    let tightest = rooms.iter().min_by_key(|room| room.agents)?;
    Some(Room {
        limit: tightest.limit,
        agents: rooms.iter().map(|room| room.agents).sum(),
    })
}

fn room_of(load: &InstanceLoad) -> Room {
    let connections = (load.max_connections - load.agents) as f64;
    let processors = (load.cores * PLANNED - load.cores_used) / cores_per_agent(load);
    let memory = load.memory_limit_bytes.map_or(f64::INFINITY, |limit| {
        (limit as f64 * PLANNED - load.memory_bytes as f64) / AGENT_BYTES
    });
    let limits = [
        ("connections", connections),
        ("processors", processors),
        ("memory", memory),
    ];
    let least = limits.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
    let (limit, agents) = least.unwrap_or(("connections", 0.0));
    Room {
        limit,
        agents: agents.max(0.0) as i64,
    }
}

/// An instance that has just started has measured nothing yet: a tenth of the benchmark is the least
/// that is believed.
fn cores_per_agent(load: &InstanceLoad) -> f64 {
    let benchmark = CORES_PER_REPORT_A_SECOND / load.heartbeat_seconds.max(1.0);
    match load.agents {
        TELLING_AGENTS.. => (load.cores_used / load.agents as f64).max(benchmark / 10.0),
        _ => benchmark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: InstanceLoad = InstanceLoad {
        agents: 0,
        max_connections: 20_000,
        cores_used: 0.0,
        cores: 2.0,
        memory_bytes: 0,
        memory_limit_bytes: Some(8 << 30),
        queue_bytes: 0,
        max_queue_bytes: None,
        queue_oldest_seconds: 0.0,
        heartbeat_seconds: 30.0,
        certificate_expires_at: None,
    };

    #[test]
    fn the_scarcest_resource_decides() {
        let limit = |load: &InstanceLoad| room_of(load).limit;
        assert_eq!(room_of(&FREE).agents, 20_000);
        assert_eq!(limit(&FREE), "connections");
        let small = InstanceLoad {
            memory_limit_bytes: Some(1 << 30),
            ..FREE
        };
        assert_eq!(limit(&small), "memory");
        let busy = InstanceLoad {
            agents: 10_000,
            cores_used: 1.3,
            ..FREE
        };
        assert_eq!(limit(&busy), "processors");
        assert!(
            (700..800).contains(&room_of(&busy).agents),
            "0.1 cores are left, and 10,000 agents take 1.3"
        );
        let full = InstanceLoad {
            agents: 20_000,
            ..FREE
        };
        assert_eq!(room_of(&full).agents, 0);
    }

    #[test]
    fn instances_add_up_and_the_estimate_is_rounded() {
        let both = room(&[FREE, FREE]).unwrap();
        assert_eq!(both.agents, 40_000);
        let shown = |agents| Room { agents, limit: "" }.shown();
        assert_eq!(shown(38_412), count(&38_000_i64));
        assert_eq!((shown(7), shown(0)), ("7".into(), "0".into()));
        assert_eq!(room(&[]), None);
    }
}
