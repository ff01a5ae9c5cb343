//! A host's history as plots take it: columns of numbers over one time axis, with `null` where
//! nothing is known, and beside them gaps with their reasons, presence, and events.

mod gaps;
mod range;
pub mod values;

use std::collections::{BTreeMap, HashSet};

use axum::{
    extract::{Query, State},
    response::Response,
};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use svc_common::text::visible;
use svc_store::{
    DiskColumns, EventMark, GapRecord, HostId, HostState, PresenceMark, RollupPoint, SampleColumns,
};

use crate::{
    assets::typed,
    error::AppError,
    id::{Id, Subject},
    session::User,
    state::App,
};
use gaps::{Gap, explained, gaps, silence};
pub use range::{Asked, RANGES, Range};

/// How many file systems a plot has at most.
const DISKS: usize = 8;

/// The values of the points, where they are known.
type Column = Vec<Option<f64>>;

/// Times are seconds since 1970.
#[derive(Debug, Default, Serialize)]
struct Series {
    from: i64,
    to: i64,
    source: &'static str,
    t: Vec<i64>,
    cpu: Column,
    load: Column,
    memory: Column,
    rx: Column,
    tx: Column,
    disks: BTreeMap<String, Column>,
    gaps: Vec<Gap>,
    presence: Vec<Stretch>,
    marks: Vec<Mark>,
}

#[derive(Debug, Serialize)]
struct Stretch {
    from: i64,
    to: i64,
    online: bool,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Mark {
    at: i64,
    kind: String,
    actor: String,
    text: String,
}

/// `GET /hosts/{id}/series?range=24h`
pub async fn series(
    State(app): State<App>,
    _user: User,
    Id(host): Id<HostId>,
    Query(asked): Query<Asked>,
) -> Result<Response, AppError> {
    let range = asked.range().unwrap_or(&RANGES[1]);
    let (_, series) = Series::read(&app, host, range).await?;
    let json = serde_json::to_string(&series);
    let json = json.map_err(|_| AppError::Internal("plots cannot be written"))?;
    Ok(typed("application/json", json))
}

/// The values of one column. `None` is a point without values, which interrupts the lines.
fn column<P: Copy>(points: &[Option<P>], value: impl Fn(P) -> Option<f64>) -> Column {
    let values = points.iter().map(|point| point.and_then(&value));
    values.collect()
}

impl Series {
    /// The history of a host, and its state.
    async fn read(app: &App, host: HostId, range: &Range) -> Result<(HostState, Self), AppError> {
        let state = app.store.console_host_state(host).await?;
        let state = state.ok_or(HostId::MISSING)?;
        let now = Timestamp::now();
        let from = now - SignedDuration::from_hours(range.hours);
        let mut series = Self {
            from: from.as_second(),
            to: now.as_second(),
            source: range.source,
            ..Self::default()
        };
        let presence = app.store.console_presence(host, from).await?;
        series.presence = stretches(&presence, series.from, series.to);
        let (reasons, silence) = (app.store.console_gaps(host, from).await?, silence(&state));
        match range.step {
            None => {
                let samples = app.store.console_samples(host, from).await?;
                series.gaps = gaps(&samples, &reasons, series.to, &silence);
                series.samples(&samples);
            }
            Some((step, seconds)) => {
                let points = app.store.console_rollups(host, from, step).await?;
                series.rollups(&points, seconds, &reasons, &silence);
            }
        }
        if series.t.is_empty() {
            series.gaps = vec![Gap::new(series.from, series.to, silence)];
        }
        series.mark(app.store.console_host_events(host, from).await?);
        series.show_hidden();
        Ok((state, series))
    }

    fn mark(&mut self, events: Vec<EventMark>) {
        let marks = events.into_iter().map(|event| Mark {
            at: event.at.as_second(),
            kind: event.kind.to_string(),
            actor: event.actor.unwrap_or_default(),
            text: event.text,
        });
        self.marks = marks.collect();
    }

    /// A script shows these texts.
    fn show_hidden(&mut self) {
        let disks = std::mem::take(&mut self.disks).into_iter();
        let disks = disks.map(|(name, values)| (visible(&name).into_owned(), values));
        self.disks = disks.collect();
        let gaps = self.gaps.iter_mut().map(|gap| &mut gap.reason);
        let presence = self.presence.iter_mut().map(|part| &mut part.reason);
        let marks = self.marks.iter_mut();
        let marks = marks.flat_map(|mark| [&mut mark.actor, &mut mark.text]);
        for text in gaps.chain(presence).chain(marks) {
            *text = visible(text).into_owned();
        }
    }

    fn samples(&mut self, samples: &SampleColumns) {
        let points = self.points(&samples.sampled_at);
        self.cpu = column(&points, |i| Some(rounded(samples.cpu_percent[i].into())));
        self.load = column(&points, |i| Some(rounded(samples.load_1m[i].into())));
        self.memory = column(&points, |i| {
            percent(samples.memory_used_bytes[i], samples.memory_total_bytes[i])
        });
        self.rx = rates(&points, &samples.sampled_at, &samples.network_rx_bytes);
        self.tx = rates(&points, &samples.sampled_at, &samples.network_tx_bytes);
        for disk in newest(&samples.disks) {
            let used = column(&points, |i| {
                percent(disk.used_bytes[i], disk.total_bytes[i])
            });
            self.disks.insert(disk.mount_point.clone(), used);
        }
    }

    /// Sets the times of the points. A point is a sample, by its place, or nothing: where samples are missing, the lines break.
    fn points(&mut self, times: &[Timestamp]) -> Vec<Option<usize>> {
        let breaks: HashSet<i64> = self.gaps.iter().map(|gap| gap.from).collect();
        let mut points = Vec::with_capacity(times.len() + breaks.len());
        for (place, at) in times.iter().enumerate() {
            points.push(Some(place));
            self.t.push(at.as_second());
            if place + 1 < times.len() && breaks.contains(&at.as_second()) {
                points.push(None);
                self.t.push(at.as_second() + 1);
            }
        }
        points
    }

    /// A rollup stands at the beginning of its time. A gap begins at the end of the rollup before.
    fn rollups(
        &mut self,
        rollups: &[RollupPoint],
        step: i64,
        reasons: &[GapRecord],
        silence: &str,
    ) {
        let mut points = Vec::with_capacity(rollups.len());
        for point in rollups {
            let at = point.at.as_second();
            if let Some(last) = self.t.last().copied()
                && at - last > step * 3 / 2
            {
                let gap = explained((last + step, at), step, &self.presence, reasons);
                self.gaps.push(gap);
                points.push(None);
                self.t.push(last + step);
            }
            points.push(Some(point));
            self.t.push(at);
        }
        if let Some(last) = self.t.last()
            && self.to - last > step * 3 / 2
        {
            self.gaps.push(Gap::new(last + step, self.to, silence));
        }
        self.cpu = column(&points, |point| Some(rounded(point.cpu_percent)));
        self.load = column(&points, |point| Some(rounded(point.load_1m)));
        self.memory = column(&points, |point| {
            percent(point.memory_used_bytes, point.memory_total_bytes)
        });
        self.rx = column(&points, |point| Some(point.network_rx.round()));
        self.tx = column(&points, |point| Some(point.network_tx.round()));
        let disk = column(&points, |point| point.fullest_disk_percent.map(rounded));
        self.disks.insert("the fullest disk".into(), disk);
    }
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn percent(part: i64, whole: i64) -> Option<f64> {
    (whole > 0).then(|| rounded(100.0 * part as f64 / whole as f64))
}

/// Bytes a second since the point before. A counter that decreased was reset: nothing is known.
fn rates(points: &[Option<usize>], times: &[Timestamp], counter: &[i64]) -> Column {
    let rate = |last: usize, now: usize| {
        let time = (times[now] - times[last]).total(jiff::Unit::Second).ok()?;
        let increase = counter[now] - counter[last];
        (time > 0.0 && increase >= 0).then(|| (increase as f64 / time).round())
    };
    let before = std::iter::once(&None).chain(points);
    let pairs = points.iter().zip(before);
    pairs.map(|(now, last)| rate((*last)?, (*now)?)).collect()
}

/// The file systems that a plot has: those that the newest samples name, without those whose size is unknown.
fn newest(disks: &[DiskColumns]) -> impl Iterator<Item = &DiskColumns> {
    let last = |disk: &&DiskColumns| disk.total_bytes.iter().rposition(|total| *total > 0);
    let mut known: Vec<_> = disks
        .iter()
        .filter_map(|disk| Some((last(&disk)?, disk)))
        .collect();
    known.sort_by_key(|(last, _)| std::cmp::Reverse(*last));
    known.into_iter().take(DISKS).map(|(_, disk)| disk)
}

/// Presence from change to change, cut to the range.
fn stretches(marks: &[PresenceMark], from: i64, to: i64) -> Vec<Stretch> {
    let ends = marks.iter().skip(1).map(|mark| mark.at.as_second());
    let ends = ends.chain([to]);
    marks
        .iter()
        .zip(ends)
        .map(|(mark, end)| Stretch {
            from: mark.at.as_second().max(from),
            to: end,
            online: mark.online,
            reason: mark.reason.clone().unwrap_or_default(),
        })
        .collect()
}
