//! Figures for clients' quotas and rates on `/metrics`.
//!
//! Called by `exposition` at each scrape. Without limits in use there are no lines.
//!
//! Invariant: a label is the name of a limit, and a configuration has at most 64 limits. Clients
//! and users are not labels here.

use hashcache_access::quota::LimitFigures;

use super::moment::Moment;
use super::table::{
    AddLine, Figure, Number,
    Values::{Lines, Maybe},
    counter, gauge,
};

/// Figures for quotas and rates.
pub(super) static FIGURES: &[Figure] = &[
    gauge(
        "hashcache_quota_subjects",
        "Clients and users whose use of limits is remembered, over all limits",
        Maybe(|it| Some(it.limiter()?.subjects)),
    ),
    counter(
        "hashcache_quota_subjects_forgotten",
        "Clients and users that were forgotten for new ones, those that had used least first",
        Maybe(|it| Some(it.limiter()?.forgotten)),
    ),
    counter(
        "hashcache_quota_save_failures",
        "Failed writes of the file with the usage of quotas",
        Maybe(|it| Some(it.limiter()?.save_failures)),
    ),
    counter(
        "hashcache_quota_bytes",
        "Bytes from upstream that were counted in the quotas of a limit",
        Lines(|it, add| lines(it, add, |limit| limit.bytes)),
    ),
    counter(
        "hashcache_quota_refusals",
        "Requests refused because the quota of a limit was used up",
        Lines(|it, add| lines(it, add, |limit| limit.quota_refusals)),
    ),
    counter(
        "hashcache_quota_request_refusals",
        "Requests refused because there were more per second than a limit allows",
        Lines(|it, add| lines(it, add, |limit| limit.request_refusals)),
    ),
];

fn lines(moment: &Moment<'_>, add: &mut AddLine<'_>, value: fn(&LimitFigures) -> u64) {
    for limit in moment.limiter().iter().flat_map(|figures| &figures.limits) {
        add(&[("limit", &*limit.name)], Number::Whole(value(limit)));
    }
}

#[cfg(test)]
mod tests {
    use hashcache_access::quota::LimiterFigures;

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::tests::exposition;

    fn page(figures: LimiterFigures) -> String {
        let exposition = exposition(&Metrics::new(1)).with_limiter(move || figures.clone());
        exposition.openmetrics().unwrap()
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
        assert!(!page(LimiterFigures::default()).contains("hashcache_quota_"));
    }
}
