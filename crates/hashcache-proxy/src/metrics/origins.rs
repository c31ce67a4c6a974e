//! Figures for the sites' origins on `/metrics`.
//!
//! Called by `exposition` at each scrape.
//!
//! Invariant: at most [`ORIGINS_SHOWN`] origins have separate lines, so the page stays small for
//! any configuration; all others are summed under `site="other",origin="other"`.

use hashcache_site::counters::OriginFigures;
use hashcache_site::live::LiveSites;

use super::moment::Moment;
use super::table::{AddLine, Figure, Number, Values::Lines, counter, gauge};

/// Figures for origins; each has a line per origin.
pub(super) static FIGURES: &[Figure] = &[
    counter(
        "hashcache_site_origin_requests",
        "Requests sent to origins of sites",
        Lines(|it, add| lines(it, add, |figures| Number::Whole(figures.requests))),
    ),
    counter(
        "hashcache_site_origin_failures",
        "Requests to origins of sites without a response in time, or with status 502 to 504",
        Lines(|it, add| lines(it, add, |figures| Number::Whole(figures.failures))),
    ),
    counter(
        "hashcache_site_origin_responses",
        "Heads of responses received from origins of sites",
        Lines(|it, add| lines(it, add, |figures| Number::Whole(figures.responses))),
    ),
    counter(
        "hashcache_site_origin_outs",
        "Times that an origin of a site was put out of service",
        Lines(|it, add| lines(it, add, |figures| Number::Whole(figures.outs))),
    ),
    counter(
        "hashcache_site_origin_response_seconds",
        "Seconds from requests to origins of sites to the heads of their responses, summed",
        Lines(|it, add| {
            lines(it, add, |figures| {
                Number::Real(figures.response_time.as_secs_f64())
            });
        }),
    ),
    gauge(
        "hashcache_site_origin_out",
        "1 if the origin of a site is out of service",
        Lines(|it, add| lines(it, add, |figures| Number::Truth(figures.is_out))),
    ),
    gauge(
        "hashcache_site_origin_failing",
        "1 if the last request to the origin of a site failed, or got a status of 500 or above",
        Lines(|it, add| lines(it, add, |figures| Number::Truth(figures.is_failing))),
    ),
];

fn lines(moment: &Moment<'_>, add: &mut AddLine<'_>, value: fn(&OriginFigures) -> Number) {
    for origin in moment.origins() {
        let labels = [("site", &*origin.site), ("origin", &*origin.origin)];
        add(&labels, value(&origin.figures));
    }
}

/// An origin with a separate line, or the sum over all others.
pub(super) struct ShownOrigin {
    site: String,
    origin: String,
    figures: OriginFigures,
}

/// Returns the origins with separate lines, and the sum over the others if there are any.
pub(super) fn shown(sites: &LiveSites) -> Vec<ShownOrigin> {
    let mut shown: Vec<ShownOrigin> = Vec::new();
    for site in sites.all() {
        for (origin, figures) in site.figures() {
            if shown.len() < ORIGINS_SHOWN {
                shown.push(ShownOrigin {
                    site: site.spec.name(),
                    origin: origin.to_string(),
                    figures,
                });
                continue;
            }
            if shown.len() == ORIGINS_SHOWN {
                shown.push(ShownOrigin {
                    site: "other".to_owned(),
                    origin: "other".to_owned(),
                    figures: OriginFigures::default(),
                });
            }
            if let Some(other) = shown.last_mut() {
                other.figures = other.figures.plus(figures);
            }
        }
    }
    shown
}

/// Maximum origins with separate lines: 300 sites with three origins each.
const ORIGINS_SHOWN: usize = 900;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hashcache_site::spec::{Site, SiteOrigin, Sites};

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::tests::exposition;

    fn page(origins: u16) -> String {
        let mut site = Site::at("http://127.0.0.1:1".parse().unwrap());
        site.origins.extend((2..=origins).map(|port| SiteOrigin {
            url: format!("http://127.0.0.1:{port}").parse().unwrap(),
            weight: 1,
        }));
        let sites = LiveSites::new(&Sites::new(vec![site]).unwrap(), None);
        for n in 0..usize::from(origins) {
            let site = &sites.all()[0];
            site.note(&site.endpoint(n), hashcache_site::health::Outcome::Failed);
        }
        let sites = Arc::new(sites);
        let exposition = exposition(&Metrics::new(1)).with_sites(move || Arc::clone(&sites));
        exposition.openmetrics().unwrap()
    }

    #[test]
    fn an_origin_has_a_line_in_each_family() {
        let text = page(1);
        for line in [
            "requests_total{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 0",
            "failures_total{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 1",
            "responses_total{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 0",
            "outs_total{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 0",
            "response_seconds_total{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 0.0",
            "out{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 0",
            "failing{site=\"127.0.0.1:1\",origin=\"http://127.0.0.1:1\"} 1",
        ] {
            let line = format!("hashcache_site_origin_{line}\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_page_stays_small_for_any_number_of_origins() {
        let (some, many) = (page(900), page(1000));
        let is_of_origin = |line: &&str| line.starts_with("hashcache_site_origin_");
        let lines = |text: &str| text.lines().filter(is_of_origin).count();
        assert_eq!(lines(&some), 7 * ORIGINS_SHOWN);
        assert_eq!(lines(&many), 7 * (ORIGINS_SHOWN + 1));
        let other = "failures_total{site=\"other\",origin=\"other\"} 100\n";
        assert!(many.contains(other) && !some.contains("\"other\""));
    }
}
