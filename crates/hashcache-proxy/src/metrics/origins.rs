//! The origins of sites on `/metrics`.
//!
//! Called by `exposition` at each scrape.
//!
//! Invariant: at most [`ORIGINS_SHOWN`] origins have numbers of their own, so that the page stays
//! small for any configuration; all others together are `site="other",origin="other"`.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::site::counters::OriginFigures;
use crate::site::live::LiveSites;

/// Writes all families.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, sites: &LiveSites) -> fmt::Result {
    let origins = shown(sites);
    if origins.is_empty() {
        return Ok(());
    }
    for (name, help, figure) in COUNTERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for origin in &origins {
            let labels = origin.labels();
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&figure(&origin.figures), None)?;
        }
    }
    let mut family = encoder.encode_descriptor(
        "hashcache_site_origin_response_seconds",
        "Seconds from requests to origins of sites to the heads of their responses, summed",
        None,
        MetricType::Counter,
    )?;
    for origin in &origins {
        let seconds = origin.figures.response_time.as_secs_f64();
        let labels = origin.labels();
        let mut metric = family.encode_family(&labels)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
    }
    for (name, help, state) in STATES {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for origin in &origins {
            let is_so = u64::from(state(&origin.figures));
            family
                .encode_family(&origin.labels())?
                .encode_gauge(&is_so)?;
        }
    }
    Ok(())
}

type Figure = fn(&OriginFigures) -> u64;
type State = fn(&OriginFigures) -> bool;

const STATES: [(&str, &str, State); 2] = [
    (
        "hashcache_site_origin_out",
        "1 if the origin of a site is out of service",
        |figures| figures.is_out,
    ),
    (
        "hashcache_site_origin_failing",
        "1 if the last request to the origin of a site failed, or got a status of 500 or above",
        |figures| figures.is_failing,
    ),
];

const COUNTERS: [(&str, &str, Figure); 4] = [
    (
        "hashcache_site_origin_requests",
        "Requests sent to origins of sites",
        |figures| figures.requests,
    ),
    (
        "hashcache_site_origin_failures",
        "Requests to origins of sites without a response in time, or with status 502 to 504",
        |figures| figures.failures,
    ),
    (
        "hashcache_site_origin_responses",
        "Heads of responses received from origins of sites",
        |figures| figures.responses,
    ),
    (
        "hashcache_site_origin_outs",
        "Times that an origin of a site was put out of service",
        |figures| figures.outs,
    ),
];

struct Shown {
    site: String,
    origin: String,
    figures: OriginFigures,
}

impl Shown {
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("site", &self.site), ("origin", &self.origin)]
    }
}

/// The origins that have numbers of their own, and the sum of the others if there are any.
fn shown(sites: &LiveSites) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for site in sites.all() {
        for (origin, figures) in site.figures() {
            if shown.len() < ORIGINS_SHOWN {
                shown.push(Shown {
                    site: site.spec.name(),
                    origin: origin.to_string(),
                    figures,
                });
                continue;
            }
            if shown.len() == ORIGINS_SHOWN {
                shown.push(Shown {
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

/// Origins with numbers of their own: 300 sites of three.
const ORIGINS_SHOWN: usize = 900;

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::site::spec::{Site, SiteOrigin, Sites};

    #[derive(Debug)]
    struct Page(LiveSites);

    impl Collector for Page {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode(&mut encoder, &self.0)
        }
    }

    fn page(origins: u16) -> String {
        let mut site = Site::at("http://127.0.0.1:1".parse().unwrap());
        site.origins.extend((2..=origins).map(|port| SiteOrigin {
            url: format!("http://127.0.0.1:{port}").parse().unwrap(),
            weight: 1,
        }));
        let sites = LiveSites::new(&Sites::new(vec![site]).unwrap(), None);
        for n in 0..usize::from(origins) {
            let site = &sites.all()[0];
            site.note(&site.endpoint(n), crate::site::health::Outcome::Failed);
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page(sites)));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        text
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
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(lines(&some), 7 * ORIGINS_SHOWN);
        assert_eq!(lines(&many), 7 * (ORIGINS_SHOWN + 1));
        let other = "failures_total{site=\"other\",origin=\"other\"} 100\n";
        assert!(many.contains(other) && !some.contains("other"));
    }
}
