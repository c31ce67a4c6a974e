//! Quotas and rates of clients on `/metrics`.
//!
//! Called by `exposition` at each scrape. Without limits in use there is nothing to show.
//!
//! Invariant: a label is the name of a limit, of which a configuration has at most 64. Clients and
//! users have no numbers here.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::quota::{LimitFigures, LimiterFigures};

/// Writes all families.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, figures: &LimiterFigures) -> fmt::Result {
    if figures.limits.is_empty() {
        return Ok(());
    }
    encoder
        .encode_descriptor(
            "hashcache_quota_subjects",
            "Clients and users whose use of limits is remembered, over all limits",
            None,
            MetricType::Gauge,
        )?
        .encode_gauge(&figures.subjects)?;
    let whole = [
        (
            "hashcache_quota_subjects_forgotten",
            "Clients and users that were forgotten for new ones, those that had used least first",
            figures.forgotten,
        ),
        (
            "hashcache_quota_save_failures",
            "Failed writes of the file with the usage of quotas",
            figures.save_failures,
        ),
    ];
    for (name, help, count) in whole {
        encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    for (name, help, figure) in COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for limit in &figures.limits {
            let labels = [("limit", &*limit.name)];
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&figure(limit), None)?;
        }
    }
    Ok(())
}

type Figure = fn(&LimitFigures) -> u64;

const COUNTERS: [(&str, &str, Figure); 3] = [
    (
        "hashcache_quota_bytes",
        "Bytes from upstream that were counted in the quotas of a limit",
        |limit| limit.bytes,
    ),
    (
        "hashcache_quota_refusals",
        "Requests refused because the quota of a limit was used up",
        |limit| limit.quota_refusals,
    ),
    (
        "hashcache_quota_request_refusals",
        "Requests refused because there were more per second than a limit allows",
        |limit| limit.request_refusals,
    ),
];

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Page(LimiterFigures);

    impl Collector for Page {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode(&mut encoder, &self.0)
        }
    }

    fn page(figures: LimiterFigures) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page(figures)));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_limit_has_a_line_in_each_family_and_no_limits_have_none() {
        let text = page(LimiterFigures {
            subjects: 5,
            forgotten: 6,
            save_failures: 7,
            limits: vec![LimitFigures {
                name: "pupil".into(),
                bytes: 1,
                quota_refusals: 2,
                request_refusals: 3,
            }],
        });
        for line in [
            "subjects 5",
            "subjects_forgotten_total 6",
            "save_failures_total 7",
            "bytes_total{limit=\"pupil\"} 1",
            "refusals_total{limit=\"pupil\"} 2",
            "request_refusals_total{limit=\"pupil\"} 3",
        ] {
            let line = format!("hashcache_quota_{line}\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
        assert!(!page(LimiterFigures::default()).contains("quota"));
    }
}
