//! The dashboard with figures that were counted here.

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config};
use hashcache_base::clock::Clock;
use hashcache_upstream::UpstreamFigures;
use http_body_util::BodyExt as _;

use super::*;
use crate::access_log::AccessLogger;
use crate::history::name::Persons;
use crate::metrics::{EngineFigures, Metrics, StoreState};

pub(crate) fn dashboard_of_tests() -> Arc<Dashboard> {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    let cache = Cache::open(config).unwrap();
    let (clock, log) = (Arc::new(Clock::start(None)), Arc::new(AccessLogger::none()));
    let metrics = Metrics::new(1);
    let history = History::start(None, Persons::Named, (&cache, 1), (&clock, &metrics));
    let engine = || EngineFigures {
        store: StoreState::Ready,
        memory_limit_bytes: 100,
        memory_used_bytes: 60,
        memory_aside_bytes: 5,
        index_bytes: 10,
        hot_bytes: 20,
        ..EngineFigures::default()
    };
    let exposition = Exposition::new(metrics, clock, log, engine, UpstreamFigures::default);
    Dashboard::new(exposition, history, Buttons::Shown)
}

#[tokio::test(start_paused = true)]
async fn streams_are_few_and_each_ends_within_a_minute() {
    let dashboard = dashboard_of_tests();
    let mut open: Vec<_> = (0..STREAMS).map(|_| dashboard.events().unwrap()).collect();
    assert!(dashboard.events().is_none());
    let stream = open.pop().unwrap();
    let begun = Instant::now();
    let all = stream.collect().await.unwrap().to_bytes();
    assert!(
        begun.elapsed() < Duration::from_secs(55),
        "{:?}",
        begun.elapsed()
    );
    let text = std::str::from_utf8(&all).unwrap();
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 25);
    for event in events {
        let data = event.strip_prefix("retry: 500\ndata: ").unwrap();
        let parts: Value = serde_json::from_str(data).unwrap();
        assert!(parts["figures"].as_str().unwrap().contains("requests/s"));
    }
    // The stream is gone, so another one may be opened.
    assert!(dashboard.events().is_some());
    drop(open);
    let again: Vec<_> = (0..STREAMS).map(|_| dashboard.events().unwrap()).collect();
    assert_eq!(again.len(), STREAMS);
}

#[tokio::test]
async fn the_page_is_whole_without_a_script_and_loads_nothing_from_elsewhere() {
    let dashboard = dashboard_of_tests();
    let response = dashboard.page();
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
    assert!(!policy.contains("unsafe"));
    let html = std::str::from_utf8(response.body()).unwrap();
    for part in [
        "Where bytes come from",
        "Memory",
        "Disk",
        "Sites",
        "Interception",
    ] {
        assert!(html.contains(part), "{part} in {html}");
    }
    for not in ["http:", "https:", "style=", "onclick", "<script>", "<img"] {
        assert!(!html.contains(not), "{not} in {html}");
    }
    assert!(SCRIPT.starts_with("\"use strict\""));
}

#[tokio::test]
async fn memory_is_shown_by_purpose_and_adds_up() {
    let json = dashboard_of_tests().json();
    let memory = json["memory"].as_object().unwrap();
    let sum: u64 = memory.values().map(|it| it.as_u64().unwrap()).sum();
    // The index is beside the limit.
    assert_eq!(sum, 100 + 10, "{json:#}");
    assert_eq!(memory["connections and transfers"], 40);
    assert_eq!(memory["program"], 5);
    assert_eq!(memory["free"], 35);
}
