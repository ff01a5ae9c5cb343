//! What the console draws of the whole fleet: how many hosts are online, how the vitals of those are distributed, which hosts are
//! the worst, and the versions of agents.
//!
//! One instance counts at a time. It passes once over agents, presence and latest vitals, and leaves one row, so a page costs the
//! same for every fleet. Offline hosts are in no distribution: their vitals are those of another time.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;

use crate::{pg::tx::TxLimits, prelude::*, statements::locks};

/// How many percent a bin of a distribution covers.
pub const BIN_PERCENT: usize = 5;
const BINS: usize = 100 / BIN_PERCENT;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetPictures {
    /// Active agents by presence.
    pub online: i64,
    pub offline: i64,
    pub cpu: VitalPicture,
    pub memory: VitalPicture,
    /// The fullest file system of each host.
    pub disk: VitalPicture,
    /// The most frequent versions of active agents, the most frequent first.
    pub versions: Vec<VersionCount>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VitalPicture {
    /// Hosts in each bin of [`BIN_PERCENT`]; 100 % is in the last.
    pub bins: Vec<i64>,
    /// The hosts with the highest values, the highest first.
    pub worst: Vec<WorstHost>,
}

impl VitalPicture {
    /// How many hosts have the vital.
    pub fn hosts(&self) -> i64 {
        self.bins.iter().sum()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstHost {
    pub host_id: Uuid,
    pub hostname: String,
    pub percent: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionCount {
    pub version: String,
    pub agents: i64,
}

/// Time has passed since the last count, or nothing was measured then and now there is something: a new installation shows its first host
/// without a wait. An index has the agents that instances hold.
const DUE: &str = "-- fleet_pictures_refresh
    SELECT NOT happened_within((SELECT at FROM fleet_pictures), $1)
        OR (SELECT measured = 0 FROM fleet_pictures)
           AND EXISTS (SELECT FROM (SELECT agent_id FROM agent_state WHERE instance_id IS NOT NULL LIMIT 1000) s
                         JOIN agents a ON a.id = s.agent_id JOIN host_vitals v ON v.host_id = a.host_id
                        WHERE v.vitals_at IS NOT NULL)";

/// 200,000 hosts take 1.3 to 1.8 s on two busy cores.
const LIMITS: TxLimits = TxLimits {
    statement: Duration::from_secs(20),
    lock: Duration::from_secs(2),
    idle: Duration::from_secs(10),
    deadline: Duration::from_secs(30),
};

/// The fleet is joined once and kept in memory (about 200 bytes a host), counted in one pass, and searched for each kind of worst hosts.
const SETTINGS: &str = "SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off; SET LOCAL work_mem = '64MB'";

const COUNT: &str = "-- fleet_pictures_refresh
    WITH fleet AS MATERIALIZED (
        SELECT a.host_id, a.version, s.presence,
               CASE s.presence WHEN 'online' THEN v.cpu_percent END::float8 AS cpu,
               CASE s.presence WHEN 'online' THEN 100.0::float8 * v.memory_used_bytes / nullif(v.memory_total_bytes, 0) END AS memory,
               CASE s.presence WHEN 'online' THEN v.fullest_disk_percent END::float8 AS disk
          FROM agents a
          JOIN agent_state s ON s.agent_id = a.id
          JOIN host_vitals v ON v.host_id = a.host_id
         WHERE a.status = 'active'),
    counted AS (
        SELECT CASE grouping(presence, version, cpu, memory, disk)
                   WHEN 15 THEN 'presence' WHEN 23 THEN 'version' WHEN 27 THEN 'cpu' WHEN 29 THEN 'memory' ELSE 'disk' END AS picture,
               coalesce(presence, version) AS name, coalesce(cpu, memory, disk) AS bin, count(*)::float8 AS value
          FROM (SELECT presence, version, floor(cpu / $1)::int AS cpu, floor(memory / $1)::int AS memory, floor(disk / $1)::int AS disk
                  FROM fleet) binned
         GROUP BY GROUPING SETS ((presence), (version), (cpu), (memory), (disk)))
    SELECT picture, name, bin, value, NULL::uuid AS host_id FROM counted
     WHERE picture <> 'version' AND (picture = 'presence' OR bin IS NOT NULL)
     UNION ALL
    (SELECT picture, name, NULL, value, NULL FROM counted WHERE picture = 'version' ORDER BY value DESC, name LIMIT 10)
     UNION ALL
    SELECT 'worst cpu', h.hostname, NULL, w.cpu, h.id
      FROM (SELECT host_id, cpu FROM fleet WHERE cpu IS NOT NULL ORDER BY cpu DESC, host_id LIMIT 10) w JOIN hosts h ON h.id = w.host_id
     UNION ALL
    SELECT 'worst memory', h.hostname, NULL, w.memory, h.id
      FROM (SELECT host_id, memory FROM fleet WHERE memory IS NOT NULL ORDER BY memory DESC, host_id LIMIT 10) w JOIN hosts h ON h.id = w.host_id
     UNION ALL
    SELECT 'worst disk', h.hostname, NULL, w.disk, h.id
      FROM (SELECT host_id, disk FROM fleet WHERE disk IS NOT NULL ORDER BY disk DESC, host_id LIMIT 10) w JOIN hosts h ON h.id = w.host_id";

const WRITE: &str = "-- fleet_pictures_refresh
    INSERT INTO fleet_pictures (at, measured, pictures) VALUES (now(), $1, $2)
    ON CONFLICT (singleton) DO UPDATE SET at = excluded.at, measured = excluded.measured, pictures = excluded.pictures";

/// Within its five minutes a row is written again.
const POINT: &str = "-- fleet_pictures_refresh
    INSERT INTO fleet_presence (at, online, offline)
    VALUES (to_timestamp(floor(extract(epoch FROM now())::float8 / 300) * 300), $1, $2)
    ON CONFLICT (at) DO UPDATE SET online = excluded.online, offline = excluded.offline";

/// What lies in the future was written before the clock was set back.
const PRUNE: &str = "-- fleet_pictures_refresh
    DELETE FROM fleet_presence WHERE at < now() - interval '25 hours' OR at > now()";

record! {
    /// What was counted: hosts in a bin, agents with a presence or a version, or the value of one of the worst hosts.
    struct Counted {
        picture: String,
        name: Option<String>,
        bin: Option<i32>,
        value: f64,
        host_id: Option<Uuid>,
    }
}

impl Store {
    /// Counts the fleet, if the last count is older than `period`. Returns whether it did: another instance may be at it.
    pub async fn fleet_pictures_refresh(&self, period: Duration) -> Result<bool> {
        let seconds = period.as_secs_f64();
        let name = "fleet_pictures_refresh";
        self.run_within(name, Maintenance, &LIMITS, async |tx: Tx| {
            if !tx.try_lock(locks::FLEET_PICTURES).await?
                || !tx.query_value::<bool>(DUE, &params![seconds]).await?
            {
                return Ok(false);
            }
            tx.batch(SETTINGS).await?;
            let counted = tx.query_all(COUNT, &params![BIN_PERCENT as f64]).await?;
            let pictures = assemble(counted);
            let small = |count: i64| i32::try_from(count).unwrap_or(i32::MAX);
            let (online, offline) = (small(pictures.online), small(pictures.offline));
            let measured = small(pictures.cpu.hosts());
            let pictures = Json(pictures);
            tx.execute(WRITE, &params![measured, pictures]).await?;
            tx.execute(POINT, &params![online, offline]).await?;
            tx.execute(PRUNE, &[]).await?;
            Ok(true)
        })
        .await
    }
}

fn assemble(counted: Vec<Counted>) -> FleetPictures {
    let mut by_picture: BTreeMap<String, Vec<Counted>> = BTreeMap::new();
    for row in counted {
        by_picture.entry(row.picture.clone()).or_default().push(row);
    }
    let mut take = |picture: &str| {
        let mut rows = by_picture.remove(picture).unwrap_or_default();
        rows.sort_by(|a, b| b.value.total_cmp(&a.value));
        rows
    };
    let mut pictures = FleetPictures::default();
    for row in take("presence") {
        match row.name.as_deref() {
            Some("online") => pictures.online = row.value as i64,
            Some("offline") => pictures.offline = row.value as i64,
            _ => {} // In another cell.
        }
    }
    let version = |row: Counted| VersionCount {
        version: row.name.unwrap_or_default(),
        agents: row.value as i64,
    };
    pictures.versions = take("version").into_iter().map(version).collect();
    pictures.cpu = vital(take("cpu"), take("worst cpu"));
    pictures.memory = vital(take("memory"), take("worst memory"));
    pictures.disk = vital(take("disk"), take("worst disk"));
    pictures
}

fn vital(counts: Vec<Counted>, worst: Vec<Counted>) -> VitalPicture {
    let mut bins = vec![0; BINS];
    for row in counts {
        let bin = usize::try_from(row.bin.unwrap_or_default()).unwrap_or_default();
        bins[bin.min(BINS - 1)] += row.value as i64;
    }
    let host = |row: Counted| {
        Some(WorstHost {
            host_id: row.host_id?,
            hostname: row.name?,
            percent: row.value,
        })
    };
    let worst = worst.into_iter().filter_map(host).collect();
    VitalPicture { bins, worst }
}
