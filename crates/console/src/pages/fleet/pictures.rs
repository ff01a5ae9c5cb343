//! The fleet at a glance: presence over a day, the distribution of vitals, the worst hosts, versions of agents.
//!
//! The service counts once a minute and leaves rows (`store/src/service/fleet_pictures.rs`), so the page costs the same for every fleet.

use jiff::{SignedDuration, Timestamp};
use svc_store::{BIN_PERCENT, FleetPictures, PresencePoint, VersionCount, VitalPicture, WorstHost};
use uuid::Uuid;

use crate::{
    error::AppError,
    state::App,
    view::{Bar, Columns, Presence, Share, count, version_query},
};

/// The time from one point of presence to the next, and how many of them are drawn.
const POINT_SECONDS: i64 = 300;
const POINTS: usize = 288;
const POINTS_AN_HOUR: usize = 12;

/// Pictures that are older say so.
const LATE: SignedDuration = SignedDuration::from_mins(5);

pub struct Pictures {
    pub at: Timestamp,
    pub late: bool,
    pub online: i64,
    pub offline: i64,
    pub presence: Presence,
    pub hours: Vec<Hour>,
    /// The fewest that were online, and when.
    pub fewest: Option<(i64, Timestamp)>,
    pub vitals: Vec<Vital>,
    pub versions: Vec<Version>,
    /// Agents of versions that are not listed.
    pub others: i64,
}

/// A line of the table that says what the picture of presence shows.
pub struct Hour {
    pub begins: Timestamp,
    pub fewest: i64,
    pub most: i64,
}

pub struct Vital {
    pub name: &'static str,
    /// The page that has all of them in this order.
    pub all: Option<&'static str>,
    pub hosts: i64,
    pub picture: Columns,
    pub bins: Vec<Bin>,
    pub worst: Vec<Worst>,
}

pub struct Worst {
    pub id: Uuid,
    pub hostname: String,
    pub bar: Bar,
}

/// A line of the table that says what a distribution shows.
pub struct Bin {
    pub from: usize,
    pub to: usize,
    pub hosts: i64,
}

pub struct Version {
    pub version: String,
    pub agents: i64,
    pub share: Share,
    pub search: String,
}

impl Pictures {
    /// `None` until the service has counted an agent.
    pub async fn read(app: &App) -> Result<Option<Self>, AppError> {
        let Some((at, pictures)) = app.store.console_pictures().await? else {
            return Ok(None);
        };
        if pictures.online + pictures.offline == 0 {
            return Ok(None);
        }
        let begins = begin_of_day(Timestamp::now());
        let points = app.store.console_fleet_presence(begins).await?;
        Ok(Some(Self::of(at, pictures, begins, &points)))
    }

    fn of(
        at: Timestamp,
        found: FleetPictures,
        begins: Timestamp,
        points: &[PresencePoint],
    ) -> Self {
        let FleetPictures {
            online, offline, ..
        } = found;
        let agents = online + offline;
        let fewest = points.iter().min_by_key(|point| point.online);
        let fewest = fewest.map(|point| (i64::from(point.online), point.at));
        let listed: i64 = found.versions.iter().map(|version| version.agents).sum();
        let version = |found: VersionCount| Version {
            share: Share(found.agents as f64 / agents as f64),
            search: version_query(&found.version),
            version: found.version,
            agents: found.agents,
        };
        Self {
            at,
            late: Timestamp::now().duration_since(at) > LATE,
            online,
            offline,
            presence: presence(begins, points, online, offline),
            hours: hours(begins, points),
            fewest,
            vitals: vec![
                vital("CPU", found.cpu, None),
                vital("Memory", found.memory, None),
                vital("Fullest disk", found.disk, Some("/hosts?sort=disk")),
            ],
            versions: found.versions.into_iter().map(version).collect(),
            others: agents - listed,
        }
    }
}

/// The first point of the day that ends now.
fn begin_of_day(now: Timestamp) -> Timestamp {
    let newest = now.as_second().div_euclid(POINT_SECONDS);
    let first = (newest + 1 - POINTS as i64) * POINT_SECONDS;
    Timestamp::from_second(first).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn place(begins: Timestamp, at: Timestamp) -> Option<usize> {
    let seconds = at.as_second() - begins.as_second();
    let place = usize::try_from(seconds.div_euclid(POINT_SECONDS)).ok();
    place.filter(|place| *place < POINTS)
}

fn presence(begins: Timestamp, points: &[PresencePoint], online: i64, offline: i64) -> Presence {
    let mut counts = vec![None; POINTS];
    for point in points {
        if let Some(place) = place(begins, point.at) {
            counts[place] = Some((point.online, point.offline));
        }
    }
    let (online, offline) = (count(&online), count(&offline));
    Presence {
        counts,
        title: format!(
            "Hosts online in the last 24 hours. Now {online} are online and {offline} are offline."
        ),
    }
}

/// Hours without a point are left out.
fn hours(begins: Timestamp, points: &[PresencePoint]) -> Vec<Hour> {
    let hour = |point: &PresencePoint| place(begins, point.at).map(|at| at / POINTS_AN_HOUR);
    let hours = points.chunk_by(|one, next| hour(one) == hour(next));
    let line = |points: &[PresencePoint]| {
        let online = || points.iter().map(|point| i64::from(point.online));
        Some(Hour {
            begins: points.first()?.at,
            fewest: online().min()?,
            most: online().max()?,
        })
    };
    hours.filter_map(line).collect()
}

fn vital(name: &'static str, found: VitalPicture, all: Option<&'static str>) -> Vital {
    let hosts = found.hosts();
    let bin = |(place, hosts): (usize, &i64)| Bin {
        from: place * BIN_PERCENT,
        to: (place + 1) * BIN_PERCENT,
        hosts: *hosts,
    };
    let bins = found.bins.iter().enumerate().map(bin);
    Vital {
        name,
        all,
        hosts,
        bins: bins.filter(|bin| bin.hosts > 0).collect(),
        picture: Columns {
            title: format!(
                "{name} of {} hosts that are online, in steps of 5 %",
                count(&hosts)
            ),
            bins: found.bins,
        },
        worst: found.worst.into_iter().map(worst).collect(),
    }
}

fn worst(host: WorstHost) -> Worst {
    Worst {
        id: host.host_id,
        hostname: host.hostname,
        bar: Bar(Some(host.percent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_ends_with_the_five_minutes_of_now() {
        let now: Timestamp = "2026-11-19T10:22:16Z".parse().unwrap();
        let begins = begin_of_day(now);
        assert_eq!(begins.to_string(), "2026-11-18T10:25:00Z");
        assert_eq!(place(begins, now), Some(POINTS - 1));
        assert_eq!(place(begins, begins), Some(0));
        let before = begins - SignedDuration::from_secs(1);
        assert_eq!(place(begins, before), None);
    }
}
