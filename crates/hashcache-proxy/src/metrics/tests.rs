//! Counters and their exposition.

use std::net::SocketAddr;

use hashcache_base::clock::{Clock, UnixMillis};
use serde_json::Value;

use super::links::LinkView;
use super::*;
use crate::access_log::{AccessLogger, RequestId};

/// An entry of a request that took so long.
fn entry(outcome: Outcome, duration: Duration) -> LogEntry<'static> {
    LogEntry {
        start: UnixMillis(0),
        duration,
        first_byte: None,
        client: SocketAddr::from(([192, 0, 2, 7], 1)),
        user: None,
        method: "GET",
        scheme: "http",
        authority: "a.test",
        path: "/",
        version: http::Version::HTTP_11,
        status: 200,
        outcome,
        aborted: false,
        client_bytes: 100,
        origin_bytes: 0,
        link: None,
        next_hop: None,
        error: None,
        request_id: RequestId(1),
        user_agent: None,
        referer: None,
        content_type: None,
    }
}

fn figures() -> EngineFigures {
    EngineFigures {
        rules: 11,
        store: StoreState::Ready,
        objects: 7,
        objects_exact: true,
        index_bytes: 1,
        index_slots: 4,
        index_objects: 2,
        hot_bytes: 2,
        pending_bytes: 3,
        memory_used_bytes: 5,
        memory_limit_bytes: 6,
        memory_aside_bytes: 8,
        capacity_bytes: 4,
        devices: 1,
        devices_out: 0,
        group_reads: 11,
        prefetched: 12,
        prefetched_present: 15,
        prefetched_dropped: 16,
        lookup_reads: [
            ("group", 20),
            ("group_again", 21),
            ("no_group", 22),
            ("alone", 23),
            ("short_of_memory", 24),
            ("span", 25),
            ("rest", 26),
            ("row", 27),
        ],
        false_reads: 17,
        readmitted: 13,
        forgotten: 14,
        devices_uring: 0,
        device: DeviceFigures {
            reads: 5,
            writes: 6,
            read_bytes: 7,
            written_bytes: 8,
        },
    }
}

pub(super) fn exposition(metrics: &Arc<Metrics>) -> Exposition {
    let (clock, log) = (Arc::new(Clock::start(None)), Arc::new(AccessLogger::none()));
    let upstream = || hashcache_upstream::UpstreamFigures { busy: 9, idle: 10 };
    Exposition::new(Arc::clone(metrics), clock, log, figures, upstream)
}

/// The value of the one line of `/metrics` that begins so.
fn value(metrics: &Arc<Metrics>, name: &str) -> String {
    let text = exposition(metrics).openmetrics().unwrap();
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = lines
        .next()
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
        .to_owned();
    assert_eq!(lines.next(), None, "{name}");
    value
}

#[test]
fn numbers_of_tables_are_those_of_their_enums() {
    for (at, (class, _)) in CLASSES.iter().enumerate() {
        assert_eq!(*class as usize, at);
    }
    for (at, (limit, _)) in Limit::ALL.iter().enumerate() {
        assert_eq!(*limit as usize, at);
    }
    assert!(DURATION_BOUNDS.is_sorted());
}

#[test]
fn limits_are_named_as_in_the_settings() {
    let limits = format!("{:?}", hashcache_base::limits::Limits::default());
    let fields = limits
        .split(['{', ','])
        .filter_map(|part| part.trim().split_once(": "));
    let fields: Vec<&str> = fields.map(|(name, _)| name).collect();
    for (_, name) in Limit::ALL {
        let is_of_cache = ["memory", "max_object_size"].contains(&name);
        assert!(is_of_cache || fields.contains(&name), "{name}");
    }
}

#[test]
fn counts_of_all_workers_are_summed() {
    let metrics = Metrics::new(3);
    for number in 0..3 {
        metrics
            .worker(number)
            .record(&entry(Outcome::Hit, Duration::ZERO));
        metrics.worker(number).fetched(50, 40);
    }
    metrics
        .worker(1)
        .record(&entry(Outcome::Miss, Duration::ZERO));
    assert_eq!(
        value(&metrics, "hashcache_requests_total{result=\"hit\"}"),
        "3"
    );
    assert_eq!(
        value(&metrics, "hashcache_requests_total{result=\"miss\"}"),
        "1"
    );
    assert_eq!(
        value(&metrics, "hashcache_requests_total{result=\"bypass\"}"),
        "0"
    );
    assert_eq!(value(&metrics, "hashcache_client_bytes_total"), "400");
    assert_eq!(value(&metrics, "hashcache_origin_bytes_total"), "150");
    assert_eq!(value(&metrics, "hashcache_origin_body_bytes_total"), "120");
}

#[test]
fn a_failed_request_is_an_error_under_its_name() {
    let metrics = Metrics::new(1);
    let failed = LogEntry {
        error: Some("loop"),
        ..entry(Outcome::Miss, Duration::ZERO)
    };
    metrics.worker(0).record(&failed);
    assert_eq!(
        value(&metrics, "hashcache_requests_total{result=\"error\"}"),
        "1"
    );
    assert_eq!(
        value(&metrics, "hashcache_failures_total{error=\"loop\"}"),
        "1"
    );
    assert_eq!(
        value(&metrics, "hashcache_failures_total{error=\"unreachable\"}"),
        "0"
    );
}

#[test]
fn a_tunnel_is_no_request_and_its_bytes_are_counted_apart() {
    let metrics = Metrics::new(1);
    metrics
        .worker(0)
        .record(&entry(Outcome::Tunnel, Duration::from_secs(100)));
    assert_eq!(value(&metrics, "hashcache_tunnel_bytes_total"), "100");
    assert_eq!(value(&metrics, "hashcache_client_bytes_total"), "0");
    assert_eq!(
        value(&metrics, "hashcache_request_duration_seconds_count"),
        "0"
    );
}

#[test]
fn durations_fall_into_cumulative_buckets() {
    let metrics = Metrics::new(2);
    for (number, ms) in [(0, 1), (1, 1), (0, 700), (1, 3_600_000)] {
        metrics
            .worker(number)
            .record(&entry(Outcome::Hit, Duration::from_millis(ms)));
    }
    let bucket = |bound: &str| {
        value(
            &metrics,
            &format!("hashcache_request_duration_seconds_bucket{{le=\"{bound}\"}}"),
        )
    };
    assert_eq!(bucket("0.00025"), "0");
    assert_eq!(bucket("0.001"), "2");
    assert_eq!(bucket("0.25"), "2");
    assert_eq!(bucket("1.0"), "3");
    assert_eq!(bucket("600.0"), "3");
    assert_eq!(bucket("+Inf"), "4");
    assert_eq!(
        value(&metrics, "hashcache_request_duration_seconds_count"),
        "4"
    );
    assert_eq!(
        value(&metrics, "hashcache_request_duration_seconds_sum"),
        "3600.702"
    );
}

#[test]
fn what_is_open_is_open_until_its_guard_is_dropped() {
    let metrics = Metrics::new(1);
    let worker = metrics.worker(0);
    let (one, two, tunnel) = (worker.connection(), worker.connection(), worker.tunnel());
    assert_eq!(value(&metrics, "hashcache_connections_open"), "2");
    assert_eq!(value(&metrics, "hashcache_tunnels_open"), "1");
    drop((one, tunnel));
    assert_eq!(value(&metrics, "hashcache_connections_open"), "1");
    assert_eq!(value(&metrics, "hashcache_tunnels_open"), "0");
    drop(two);
    assert_eq!(value(&metrics, "hashcache_connections_total"), "2");
}

#[test]
fn limits_are_counted_by_name() {
    let metrics = Metrics::new(1);
    metrics.worker(0).limit(Limit::HeadTime);
    metrics.worker(0).limit(Limit::MaxObjectSize);
    assert_eq!(
        value(&metrics, "hashcache_limit_hits_total{limit=\"head_time\"}"),
        "1"
    );
    assert_eq!(
        value(
            &metrics,
            "hashcache_limit_hits_total{limit=\"max_object_size\"}"
        ),
        "1"
    );
    assert_eq!(
        value(&metrics, "hashcache_limit_hits_total{limit=\"clients\"}"),
        "0"
    );
}

#[test]
fn a_bad_reload_shows_until_a_good_one() {
    let metrics = Metrics::new(1);
    let success = || value(&metrics, "hashcache_config_reload_success");
    assert_eq!(success(), "1");
    metrics.config_reloaded(Reload::Kept);
    assert_eq!(success(), "0");
    metrics.config_reloaded(Reload::Taken);
    assert_eq!(success(), "1");
}

#[test]
fn the_engines_figures_are_shown() {
    let metrics = Metrics::new(1);
    for (name, expected) in [
        ("hashcache_objects", "7"),
        ("hashcache_objects_exact", "1"),
        ("hashcache_index_bytes", "1"),
        ("hashcache_index_bits_per_slot", "2.0"),
        ("hashcache_index_bits_per_object", "4.0"),
        ("hashcache_hot_bytes", "2"),
        ("hashcache_pending_bytes", "3"),
        ("hashcache_memory_aside_bytes", "8"),
        ("hashcache_devices_out", "0"),
        ("hashcache_group_reads_total", "11"),
        ("hashcache_prefetched_total", "12"),
        ("hashcache_prefetched_present_total", "15"),
        ("hashcache_prefetched_dropped_total", "16"),
        ("hashcache_lookup_reads_total{cause=\"group\"}", "20"),
        ("hashcache_lookup_reads_total{cause=\"row\"}", "27"),
        ("hashcache_false_reads_total", "17"),
        ("hashcache_readmitted_total", "13"),
        ("hashcache_forgotten_total", "14"),
        ("hashcache_device_reads_total", "5"),
        ("hashcache_device_writes_total", "6"),
        ("hashcache_device_read_bytes_total", "7"),
        ("hashcache_device_written_bytes_total", "8"),
        ("hashcache_store_degraded", "0"),
        ("hashcache_clock_suspect", "0"),
        ("hashcache_offline", "0"),
        ("hashcache_access_log_dropped_total", "0"),
    ] {
        assert_eq!(value(&metrics, name), expected, "{name}");
    }
}

#[test]
fn connections_to_origins_are_shown_by_what_they_do() {
    let metrics = Metrics::new(1);
    let shown = |state| {
        value(
            &metrics,
            &format!("hashcache_upstream_connections{{state=\"{state}\"}}"),
        )
    };
    assert_eq!((shown("busy"), shown("idle")), ("9".into(), "10".into()));
    let stats = exposition(&metrics).stats(Detail::Names);
    let expected = serde_json::json!({"busy": 9, "idle": 10});
    assert_eq!(stats["upstream_connections"], expected);
}

#[test]
fn the_end_of_the_authority_is_told_where_there_is_one() {
    let metrics = Metrics::new(1);
    let name = "hashcache_ca_expires_timestamp_seconds";
    let text = || exposition(&metrics).openmetrics().unwrap();
    assert!(!text().contains(name));
    metrics.authority_ends(Some(1_953_028_882));
    assert!(text().contains(&format!("\n{name} 1953028882\n")));
    metrics.authority_ends(None);
    assert!(!text().contains(name));
}

#[test]
fn the_text_is_openmetrics_to_its_last_line() {
    let text = exposition(&Metrics::new(1)).openmetrics().unwrap();
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains(&format!(
        "hashcache_build_info{{version=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION")
    )));
    for line in text.lines().filter(|line| line.starts_with("# HELP")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(
            name.starts_with("hashcache_") || name.starts_with("process_"),
            "{line}"
        );
    }
}

#[test]
fn hosts_of_links_are_left_out_with_other_names() {
    let metrics = Metrics::new(1);
    let link = serde_json::json!({
        "up": true, "sites": [{"host": "a.test", "saved_bytes": 1, "content_bytes": 2}],
        "address": "192.0.2.1:5"
    });
    let status = serde_json::json!({"parents": [link], "children": [link]});
    let view = LinkView {
        figures: Vec::new(),
        status: status.clone(),
    };
    let exposition = exposition(&metrics).with_links(move || view.clone());
    assert_eq!(exposition.links(Detail::Names), status);
    let nameless = serde_json::json!({"parents": [{"up": true}], "children": [{"up": true}]});
    assert_eq!(exposition.links(Detail::Figures), nameless);
    assert_eq!(exposition.stats(Detail::Figures)["links"], nameless);
}

#[test]
fn stats_and_metrics_have_the_same_values() {
    let metrics = Metrics::new(1);
    metrics
        .worker(0)
        .record(&entry(Outcome::Hit, Duration::ZERO));
    let stats = exposition(&metrics).stats(Detail::Names);
    for (path, name) in [
        ("/requests/hit", "hashcache_requests_total{result=\"hit\"}"),
        ("/device/writes", "hashcache_device_writes_total"),
        (
            "/upstream_connections/idle",
            "hashcache_upstream_connections{state=\"idle\"}",
        ),
        ("/intercept/verified_hosts", "hashcache_verified_hosts"),
        ("/index_bits_per_slot", "hashcache_index_bits_per_slot"),
    ] {
        let shown = stats.pointer(path).map(Value::to_string);
        assert_eq!(shown, Some(value(&metrics, name)), "{path}");
    }
    assert_eq!(stats["intercept"]["refusing"], serde_json::json!([]));
}

#[test]
fn stats_has_the_promised_keys() {
    let metrics = Metrics::new(1);
    metrics
        .worker(0)
        .record(&entry(Outcome::Collapsed, Duration::ZERO));
    metrics.worker(0).fetched(50, 40);
    let stats = exposition(&metrics).stats(Detail::Names);
    let requests = serde_json::json!({
        "hit": 0, "miss": 0, "revalidated": 0, "collapsed": 1, "bypass": 0, "error": 0,
        "negative": 0
    });
    assert_eq!(stats["requests"], requests);
    let device = serde_json::json!({"reads": 5, "writes": 6, "read_bytes": 7, "written_bytes": 8});
    assert_eq!(stats["device"], device);
    assert_eq!(stats["lookup_reads"]["group_again"], Value::from(21));
    for (key, expected) in [
        ("client_bytes", Value::from(100)),
        ("origin_body_bytes", 40.into()),
        ("origin_bytes", 50.into()),
        ("objects", 7.into()),
        ("objects_exact", true.into()),
        ("index_bytes", 1.into()),
        ("index_bits_per_slot", 2.0.into()),
        ("index_bits_per_object", 4.0.into()),
        ("hot_bytes", 2.into()),
        ("pending_bytes", 3.into()),
        ("devices_out", 0.into()),
        ("group_reads", 11.into()),
        ("prefetched", 12.into()),
        ("prefetched_present", 15.into()),
        ("prefetched_dropped", 16.into()),
        ("false_reads", 17.into()),
        ("readmitted", 13.into()),
        ("forgotten", 14.into()),
        ("store", "ready".into()),
    ] {
        assert_eq!(stats[key], expected, "{key}");
    }
}
