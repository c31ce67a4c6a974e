//! Fields that this proxy adds to a response from upstream, and its outcome in the log.

use hashcache_http::{CacheStatus, Forward};
use http::{HeaderMap, Version};

use crate::access_log::Outcome;
use crate::connection::Connection;

/// Adds Via and Cache-Status to a response from upstream.
pub(super) fn add_own(connection: &Connection, fields: &mut HeaderMap, status: CacheStatus<'_>) {
    let common = &connection.worker.common;
    common.via.append_via(fields, Version::HTTP_11);
    status.append(&common.name, fields);
}

pub(super) fn outcome_of(forward: Forward) -> Outcome {
    match forward {
        Forward::Bypass => Outcome::Bypass,
        Forward::Method => Outcome::Method,
        Forward::VaryMiss => Outcome::VaryMiss,
        Forward::Request => Outcome::Request,
        Forward::Stale => Outcome::Stale,
        Forward::Partial => Outcome::Partial,
        Forward::UriMiss | Forward::Miss => Outcome::Miss,
    }
}
