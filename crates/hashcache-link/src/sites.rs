//! Bytes that a link has saved, by the content's host.
//!
//! `request/framed` in the proxy at the parent and `unframe` in `hashcache-upstream` at the child
//! note each finished response; the link status shows the hosts with the largest savings.
//!
//! Invariant: at most [`HOSTS_MAX`] hosts are known. A new host replaces the host with the smallest
//! savings, so a client that uses many hosts does not remove the important hosts.
//! Cost: one lock per response; a pass over all hosts if a new host meets a full table.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hashcache_base::sort::sort_by_key;
use hashcache_wan::stats::Totals;
use serde_json::{Value, json};

/// Content bytes and frame bytes, by host.
#[derive(Debug, Default)]
pub struct SiteSavings(Mutex<HashMap<Box<str>, Bytes>>);

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    content: u64,
    frames: u64,
}

impl Bytes {
    fn saved(self) -> u64 {
        self.content.saturating_sub(self.frames)
    }
}

impl SiteSavings {
    /// Notes a response from `host`.
    pub fn note(&self, host: &str, totals: Totals) {
        if host.len() > HOST_BYTES_MAX || totals.content_bytes == 0 {
            return;
        }
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !hosts.contains_key(host) && hosts.len() >= HOSTS_MAX {
            let least = hosts.iter().min_by_key(|(_, bytes)| bytes.saved());
            if let Some(least) = least.map(|(host, _)| host.clone()) {
                hosts.remove(&least);
            }
        }
        let bytes = hosts.entry(host.into()).or_default();
        bytes.content += totals.content_bytes;
        bytes.frames += totals.frame_bytes;
    }

    /// The hosts with the largest savings, the largest first.
    pub(crate) fn top(&self) -> Value {
        let hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hosts: Vec<(&str, Bytes)> = hosts
            .iter()
            .map(|(host, bytes)| (&**host, *bytes))
            .collect();
        sort_by_key(&mut hosts, |(host, bytes)| {
            (std::cmp::Reverse(bytes.saved()), *host)
        });
        let top = hosts.into_iter().take(TOP).map(|(host, bytes)| {
            json!({
                "host": host,
                "content_bytes": bytes.content,
                "frame_bytes": bytes.frames,
                "saved_bytes": bytes.saved(),
            })
        });
        top.collect()
    }
}

const HOSTS_MAX: usize = 512;
/// No DNS name is longer than 253 bytes.
const HOST_BYTES_MAX: usize = 255;
/// How many hosts the status shows.
const TOP: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(content_bytes: u64, frame_bytes: u64) -> Totals {
        Totals {
            content_bytes,
            frame_bytes,
            ..Totals::default()
        }
    }

    #[test]
    fn the_hosts_that_save_most_stay_and_come_first() {
        let sites = SiteSavings::default();
        sites.note("large.example", totals(1_000_000, 10));
        sites.note("small.example", totals(1_000, 10));
        for n in 0..3 * HOSTS_MAX {
            sites.note(&format!("{n}.example"), totals(100, 200));
        }
        sites.note("small.example", totals(1_000, 10));
        sites.note(&"x".repeat(HOST_BYTES_MAX + 1), totals(u64::MAX, 0));
        let top = sites.top();
        let top = top.as_array().unwrap();
        assert_eq!(top.len(), TOP);
        assert_eq!(top[0]["host"], "large.example");
        assert_eq!(top[1]["host"], "small.example");
        assert_eq!(top[1]["content_bytes"], 2_000);
        assert_eq!(top[1]["saved_bytes"], 1_980);
        assert_eq!(top[2]["saved_bytes"], 0);
        assert_eq!(sites.0.lock().unwrap().len(), HOSTS_MAX);
    }
}
