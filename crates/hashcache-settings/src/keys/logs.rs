//! The access log.

use super::choices::LOG_FORMAT;
use super::types::{ACCESS_LOG, TRUTH};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Logs",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    one!("access_log", startup.access_log, ACCESS_LOG)
        .flag()
        .default("none")
        .about("Access log: a file, `-` for standard output, or `none`"),
    one!("log_format", startup.log_format, LOG_FORMAT)
        .flag()
        .default("squid")
        .about("Format of the access log")
        .details(
            "squid is Squid's native format, combined that of Apache and nginx, json one object \
             per line.",
        ),
    one!("log_strip_query", startup.log_strip_query, TRUTH)
        .flag()
        .about("Leave query strings out of the access log"),
    one!("log_anonymize", startup.log_anonymize, TRUTH)
        .flag()
        .about("Log the network of a client (/24, /48) instead of its address")
        .details("Users are left out too. The same holds for the history and the dashboard."),
];
