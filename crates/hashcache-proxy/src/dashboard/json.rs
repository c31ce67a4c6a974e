//! The figures as JSON, for `hashcache top` and other programs.
//!
//! Invariant: new keys may be added, but an existing key never changes.

use serde_json::{Map, Value, json};

use super::rates::Moment;
use super::view::{SHOWN, failing, mean_wait_us, memory, slowest};
use crate::history::counts::{By, Counts, Kind, Totals};
use crate::history::name::Name;

impl Moment {
    pub(super) fn to_json(&self) -> Value {
        let (live, overview) = (&self.view.live, &self.view.overview);
        let engine = &live.engine;
        let (recent, time) = &overview.recent;
        let mut recent = totals(recent);
        recent.insert("seconds".to_owned(), time.as_secs_f64().into());
        let peers = live
            .peers
            .iter()
            .map(|peer| json!({ "name": peer.name, "kind": peer.kind, "up": peer.is_up }));
        let peers: Value = peers.collect();
        let sites = overview.of(By::Site);
        let of = |by| lines(&overview.of(by).top(SHOWN).0);
        json!({
            "version": live.version,
            "uptime_seconds": live.uptime_seconds,
            "store": engine.store.word(),
            "offline": live.is_offline,
            "clock_suspect": live.clock_suspect,
            "since_start": totals(&overview.since_start),
            "recent": recent,
            "rates": self.rates.to_json(),
            "day": totals(&overview.day),
            "week": totals(&overview.week),
            "damaged_hours": overview.damaged,
            "connections": {
                "clients": live.connections,
                "tunnels": live.tunnels,
                "origins_busy": live.upstream.busy,
                "origins_idle": live.upstream.idle,
            },
            "memory": Map::from_iter(memory(&self.view).map(|(name, bytes)| {
                (name.to_owned(), bytes.into())
            })),
            "memory_limit": engine.memory_limit_bytes,
            "resident_bytes": live.resident_bytes,
            "disk": {
                "capacity_bytes": engine.capacity_bytes,
                "objects": engine.objects,
                "devices": engine.devices,
                "devices_out": engine.devices_out,
                "reads": engine.device.reads,
                "read_bytes": engine.device.read_bytes,
                "writes": engine.device.writes,
                "written_bytes": engine.device.written_bytes,
                "too_large": live.too_large,
            },
            "peers": peers,
            "links": live.links,
            "intercept": live.intercept,
            "authority_seconds_left": live.authority_seconds_left,
            "sites": of(By::Site),
            "clients": of(By::Client),
            "networks": of(By::Network),
            "users": of(By::User),
            "failing": lines(&failing(sites)),
            "slowest": lines(&slowest(sites)),
        })
    }
}

fn totals(totals: &Totals) -> Map<String, Value> {
    let kinds = Kind::ALL.iter().map(|(kind, name)| {
        let counts = totals.of(*kind);
        let counts = json!({ "requests": counts.requests, "bytes": counts.bytes });
        ((*name).to_owned(), counts)
    });
    let all = [
        ("requests", totals.requests().into()),
        ("hits", totals.hits().into()),
        ("client_bytes", totals.client_bytes.into()),
        ("origin_bytes", totals.origin_bytes.into()),
        ("served_bytes", totals.served_bytes().into()),
        ("saved_bytes", totals.saved_bytes().into()),
        ("kinds", Value::Object(kinds.collect())),
    ];
    all.map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

fn lines(lines: &[(Name, Counts)]) -> Value {
    let lines = lines.iter().map(|(name, counts)| {
        json!({
            "name": name.as_str(),
            "requests": counts.requests,
            "hits": counts.hits,
            "client_bytes": counts.client_bytes,
            "saved_bytes": counts.saved_bytes(),
            "failures": counts.failures,
            "mean_wait_ms": mean_wait_us(counts) as f64 / 1000.0,
        })
    });
    lines.collect()
}
