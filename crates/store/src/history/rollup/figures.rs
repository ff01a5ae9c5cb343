//! The figures of a rollup: three numbers for each part of its list.

use std::{borrow::Cow, cmp::Reverse, collections::HashMap};

use uuid::Uuid;

use super::{
    Gauge, Source,
    increase::{Increase, Last, OnFall},
};
use crate::history::shape::{Part, Shape};

pub(super) struct Figures {
    pub(super) shape: Uuid,
    pub(super) own_list: Option<Shape>,
    pub(super) figures: Vec<[Option<i64>; 3]>,
}

enum Figure {
    Gauge(Gauge),
    Counter(Increase),
}

impl Figures {
    pub(super) fn of(
        of: &[Source<'_>],
        order: &[(usize, usize)],
        before: Option<&Last<'_>>,
    ) -> Figures {
        let list = list(of);
        let places = places(of, &list);
        let start = |part: &Part<'_>| Figure::start(part, before);
        let mut figures: Vec<Figure> = list.parts.iter().map(start).collect();
        add_gauges(of, &places, &mut figures);
        if list.parts.iter().any(|part| part.counter) {
            add_counters(of, order, &places, &mut figures);
        }
        Figures {
            shape: list.name,
            figures: figures.iter().map(Figure::numbers).collect(),
            own_list: match list {
                Cow::Owned(list) => Some(list),
                Cow::Borrowed(_) => None,
            },
        }
    }
}

/// The list that the figures are about. The longest list comes first, because it often has all parts of the others.
fn list<'a>(of: &[Source<'a>]) -> Cow<'a, Shape> {
    let mut shapes: Vec<&Shape> = of.iter().map(|source| source.shape).collect();
    shapes.sort_unstable_by_key(|shape| (Reverse(shape.parts.len()), shape.name));
    shapes.dedup_by_key(|shape| shape.name);
    if let [only] = shapes[..]
        && !only.repeats
    {
        return Cow::Borrowed(only);
    }
    let union = Shape::union(shapes.iter().copied());
    let same = shapes.into_iter().find(|shape| shape.name == union.name);
    same.map_or(Cow::Owned(union), Cow::Borrowed)
}

/// For each source and part the place of its figure, if the list has it.
fn places(of: &[Source<'_>], list: &Shape) -> Vec<Vec<Option<usize>>> {
    if of.iter().all(|source| source.shape.name == list.name) {
        let same = (0..list.parts.len()).map(Some).collect();
        return vec![same; of.len()];
    }
    let keys = list.parts.iter().map(Part::key).zip(0..);
    let by_key: HashMap<(&str, &str), usize> = keys.collect();
    let places = of.iter().map(|source| {
        let parts = source.shape.parts.iter();
        parts.map(|part| by_key.get(&part.key()).copied()).collect()
    });
    places.collect()
}

fn add_gauges(of: &[Source<'_>], places: &[Vec<Option<usize>>], figures: &mut [Figure]) {
    for (source, places) in of.iter().zip(places) {
        for (values, place) in source.chunk.parts.iter().zip(places) {
            let figure = place.map(|place| &mut figures[place]);
            if let Some(Figure::Gauge(gauge)) = figure {
                values.iter().for_each(|value| gauge.add(*value));
            }
        }
    }
}

/// A part that a list names twice is added twice, in the order of the list.
fn add_counters(
    of: &[Source<'_>],
    order: &[(usize, usize)],
    places: &[Vec<Option<usize>>],
    figures: &mut [Figure],
) {
    for (source, sample) in order {
        let chunk = of[*source].chunk;
        let uptime = chunk.uptime_seconds[*sample];
        for (values, place) in chunk.parts.iter().zip(&places[*source]) {
            let figure = place.map(|place| &mut figures[place]);
            if let Some(Figure::Counter(increase)) = figure {
                increase.add(values[*sample], uptime, OnFall::CountFromZero);
            }
        }
    }
}

impl Figure {
    fn start(part: &Part<'_>, before: Option<&Last<'_>>) -> Figure {
        if !part.counter {
            return Figure::Gauge(Gauge::NONE);
        }
        let before = before.and_then(|last| last.counter(part.key()));
        Figure::Counter(Increase::from(before))
    }

    fn numbers(&self) -> [Option<i64>; 3] {
        match self {
            Figure::Counter(increase) => [None, Some(increase.total()), None],
            Figure::Gauge(gauge) if gauge.least == gauge.greatest => {
                [Some(gauge.least), None, None]
            }
            Figure::Gauge(gauge) => {
                let span = gauge.span();
                [span.least, span.mean, span.greatest].map(Some)
            }
        }
    }
}
