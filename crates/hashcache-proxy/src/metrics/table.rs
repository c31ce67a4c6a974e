//! One row per metric: name, help, kind, labels, value, and path in `/stats`.
//!
//! The rows are in `figures`, `peers`, `origins`, `links` and `quotas`. `exposition` makes
//! `/metrics` and `/stats` from them, so a new metric needs a counter and a row.
//!
//! Cost: nothing until a page is requested.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde_json::{Map, Value};

use super::moment::Moment;

/// Callback for one sample: labels and value.
pub(super) type AddLine<'a> = dyn FnMut(&[(&str, &str)], Number) + 'a;

/// A sample's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Whole(u64),
    Real(f64),
    /// 1 or 0 in `/metrics`.
    Truth(bool),
}

/// Source of a metric's values.
#[derive(Clone, Copy)]
pub(super) enum Values {
    Whole(fn(&Moment<'_>) -> u64),
    Real(fn(&Moment<'_>) -> f64),
    /// 1 or 0 in `/metrics`, true or false in `/stats`.
    Truth(fn(&Moment<'_>) -> bool),
    /// An optional number; without it no sample in `/metrics` and null in `/stats`.
    Maybe(fn(&Moment<'_>) -> Option<u64>),
    /// One sample per value of this label.
    Words(&'static str, fn(&Moment<'_>) -> Vec<(&'static str, u64)>),
    /// Any samples, with any labels; never in `/stats`.
    Lines(fn(&Moment<'_>, &mut AddLine<'_>)),
}

/// A metric.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    /// Name in `/metrics`, without the `_total` of counters.
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    values: Values,
    /// Path in `/stats`, such as `device.reads`; empty: only in `/metrics`.
    stats: &'static str,
}

/// A counter.
pub(super) const fn counter(name: &'static str, help: &'static str, values: Values) -> Figure {
    figure(name, help, MetricType::Counter, values)
}

/// A gauge.
pub(super) const fn gauge(name: &'static str, help: &'static str, values: Values) -> Figure {
    figure(name, help, MetricType::Gauge, values)
}

const fn figure(
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    values: Values,
) -> Figure {
    Figure {
        name,
        help,
        kind,
        values,
        stats: "",
    }
}

impl Figure {
    /// Adds the metric to `/stats` at this path.
    pub(super) const fn stats(mut self, path: &'static str) -> Self {
        self.stats = path;
        self
    }

    /// Returns true if the path in `/stats` starts with `keys`.
    pub(super) fn is_below(&self, keys: &str) -> bool {
        self.stats.starts_with(keys)
    }

    /// Calls `add` for each sample.
    fn each_line(&self, moment: &Moment<'_>, add: &mut AddLine<'_>) {
        match self.values {
            Values::Whole(value) => add(&[], Number::Whole(value(moment))),
            Values::Real(value) => add(&[], Number::Real(value(moment))),
            Values::Truth(value) => add(&[], Number::Truth(value(moment))),
            Values::Maybe(value) => {
                if let Some(value) = value(moment) {
                    add(&[], Number::Whole(value));
                }
            }
            Values::Words(label, values) => {
                for (word, value) in values(moment) {
                    add(&[(label, word)], Number::Whole(value));
                }
            }
            Values::Lines(lines) => lines(moment, add),
        }
    }

    /// Writes the metric to `/metrics`, or nothing without samples.
    pub(super) fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        moment: &Moment<'_>,
    ) -> fmt::Result {
        let mut result = Ok(());
        // The descriptor is written with the first line.
        let (mut encoder, mut family) = (Some(encoder), None);
        self.each_line(moment, &mut |labels, number| {
            if result.is_err() {
                return;
            }
            if let Some(encoder) = encoder.take() {
                match encoder.encode_descriptor(self.name, self.help, None, self.kind) {
                    Ok(begun) => family = Some(begun),
                    Err(error) => result = Err(error),
                }
            }
            let Some(family) = &mut family else { return };
            result = if labels.is_empty() {
                self.encode_number(family, number)
            } else {
                let line = family.encode_family(&labels);
                line.and_then(|mut line| self.encode_number(&mut line, number))
            };
        });
        result
    }

    fn encode_number(
        &self,
        line: &mut prometheus_client::encoding::MetricEncoder<'_>,
        number: Number,
    ) -> fmt::Result {
        let is_counter = matches!(self.kind, MetricType::Counter);
        match number {
            Number::Whole(value) if is_counter => {
                line.encode_counter::<NoLabelSet, _, u64>(&value, None)
            }
            Number::Real(value) if is_counter => {
                line.encode_counter::<NoLabelSet, _, u64>(&value, None)
            }
            Number::Whole(value) => line.encode_gauge(&value),
            Number::Real(value) => line.encode_gauge(&value),
            Number::Truth(value) => line.encode_gauge(&u64::from(value)),
        }
    }

    /// Writes the metric to `stats`: a number, or an object with a number per label value.
    pub(super) fn write_to(&self, stats: &mut Map<String, Value>, moment: &Moment<'_>) {
        if self.stats.is_empty() {
            return;
        }
        let mut value = match self.values {
            Values::Words(..) => Value::Object(Map::new()),
            _ => Value::Null,
        };
        self.each_line(moment, &mut |labels, number| {
            let number = match number {
                Number::Whole(number) => Value::from(number),
                Number::Real(number) => Value::from(number),
                Number::Truth(number) => Value::from(number),
            };
            match (labels, &mut value) {
                ([(_, word)], Value::Object(words)) => {
                    drop(words.insert((*word).to_owned(), number));
                }
                (_, value) => *value = number,
            }
        });
        insert(stats, self.stats, value);
    }
}

/// Inserts `value` at a path of keys with dots between them.
pub(super) fn insert(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(object.insert(path.to_owned(), value)),
        Some((key, rest)) => {
            let inner = object
                .entry(key)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                insert(inner, rest, value);
            }
        }
    }
}
