//! The three log formats: Squid native, Apache combined, JSON.
//!
//! Called by `WorkerLog::write` under the worker's lock, so it is optimised: numbers are formatted
//! by `itoa`, the date once a second, without allocation except to grow the buffer.
//!
//! Invariant: a call appends exactly one line, whatever the client sent. Combined lines have `id=`,
//! `error=`, `link_bytes=` and `link_coding=` after the standard fields, where parsers ignore them.
//! Squid lines have only the ten native fields, because calamaris rejects longer lines. Times are
//! UTC.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hashcache_base::clock::UnixMillis;
use hashcache_http::{UnixTime, octets};
use http::Version;

use super::entry::{LogEntry, Outcome};
use super::escape::{self, Quoting};
use crate::settings::LogFormat;

/// Form of the lines, equal for all workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineStyle {
    pub(super) format: LogFormat,
    pub(super) query: QueryForm,
    pub(super) target: TargetForm,
    pub(super) client: ClientForm,
}

/// Form of a client's address in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientForm {
    /// The whole address, with the port if the format has a port.
    Address,
    /// Only the network, which shows the source of load but identifies no person.
    Network,
}

/// Selects whether query strings are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryForm {
    Kept,
    Stripped,
}

/// Form of the target in the combined format; the other formats have a field for the authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetForm {
    /// Scheme, authority and path, as clients of a forward proxy send it.
    Absolute,
    /// Only the path, as clients of an origin send it.
    Path,
}

/// Formats lines; caches the date of the last second.
#[derive(Debug)]
pub(super) struct Formatter {
    style: LineStyle,
    second: Option<u64>,
    date: Vec<u8>,
}

impl Formatter {
    pub(super) fn new(style: LineStyle) -> Self {
        Self {
            style,
            second: None,
            date: Vec::new(),
        }
    }

    /// Appends the line of `entry`; its last byte was sent at `end`.
    pub(super) fn push(&mut self, line: &mut Vec<u8>, entry: &LogEntry<'_>, end: UnixMillis) {
        // A single growth instead of several; nearly all lines are shorter.
        line.reserve(1 << 10);
        match self.style.format {
            LogFormat::Squid => self.push_squid(line, entry, end),
            LogFormat::Combined => self.push_combined(line, entry),
            LogFormat::Json => self.push_json(line, entry),
        }
        line.push(b'\n');
    }

    fn push_client(&self, line: &mut Vec<u8>, address: IpAddr) {
        push_ip(
            line,
            match self.style.client {
                ClientForm::Address => address,
                ClientForm::Network => network(address),
            },
        );
    }

    /// Returns the user. If only the network of clients is logged, there is none, because the name
    /// would identify the client.
    fn user<'a>(&self, entry: &LogEntry<'a>) -> Option<&'a str> {
        entry
            .user
            .filter(|_| self.style.client == ClientForm::Address)
    }

    fn push_user(&self, line: &mut Vec<u8>, entry: &LogEntry<'_>) {
        let user = self.user(entry).unwrap_or_default();
        push_or_dash(line, user.as_bytes(), Quoting::Url, FIELD_BYTES);
    }

    fn push_squid(&self, line: &mut Vec<u8>, entry: &LogEntry<'_>, end: UnixMillis) {
        // Squid logs the time at which the request finished.
        push_number(line, end.seconds());
        line.push(b'.');
        push_padded(line, end.subsec_millis(), 3, b'0');
        line.push(b' ');
        push_padded(line, millis(entry.duration), 6, b' ');
        line.push(b' ');
        self.push_client(line, entry.client.ip());
        line.push(b' ');
        line.extend_from_slice(squid_code(entry).as_bytes());
        if entry.aborted {
            line.extend_from_slice(b"_ABORTED");
        }
        line.push(b'/');
        push_padded(line, u64::from(entry.status), 3, b'0');
        line.push(b' ');
        push_number(line, entry.client_bytes);
        line.push(b' ');
        push_or_dash(line, entry.method.as_bytes(), Quoting::Url, METHOD_BYTES);
        line.push(b' ');
        self.push_url(line, entry, TargetForm::Absolute);
        line.push(b' ');
        self.push_user(line, entry);
        line.push(b' ');
        match entry
            .next_hop
            .and_then(|hop| Some((hop.code, hop.address?)))
        {
            Some((code, address)) => {
                line.extend_from_slice(code.as_bytes());
                line.push(b'/');
                push_ip(line, address.ip());
            }
            None => line.extend_from_slice(b"HIER_NONE/-"),
        }
        line.push(b' ');
        push_or_dash(line, media_type(entry), Quoting::Url, FIELD_BYTES);
    }

    fn push_combined(&mut self, line: &mut Vec<u8>, entry: &LogEntry<'_>) {
        self.push_client(line, entry.client.ip());
        line.extend_from_slice(b" - ");
        self.push_user(line, entry);
        line.extend_from_slice(b" [");
        line.extend_from_slice(self.date(entry.start.seconds(), combined_date));
        line.extend_from_slice(b"] \"");
        push_or_dash(line, entry.method.as_bytes(), Quoting::Url, METHOD_BYTES);
        line.push(b' ');
        self.push_url(line, entry, self.style.target);
        line.push(b' ');
        line.extend_from_slice(b"HTTP/");
        line.extend_from_slice(version(entry.version).as_bytes());
        line.extend_from_slice(b"\" ");
        push_padded(line, u64::from(entry.status), 3, b'0');
        line.push(b' ');
        push_number(line, entry.client_bytes);
        line.extend_from_slice(b" \"");
        match entry.referer {
            Some(referer) => self.push_referer(line, referer, Quoting::Quoted),
            None => line.push(b'-'),
        }
        line.extend_from_slice(b"\" \"");
        push_or_dash(
            line,
            entry.user_agent.unwrap_or_default(),
            Quoting::Quoted,
            FIELD_BYTES,
        );
        line.push(b'"');
        push_id_and_error(line, entry);
    }

    /// Appends a JSON line. The keys follow the Elastic Common Schema where it defines a key.
    fn push_json(&mut self, line: &mut Vec<u8>, entry: &LogEntry<'_>) {
        line.extend_from_slice(b"{\"@timestamp\":\"");
        line.extend_from_slice(self.date(entry.start.seconds(), iso_date));
        line.push(b'.');
        push_padded(line, entry.start.subsec_millis(), 3, b'0');
        line.extend_from_slice(b"Z\",\"event.duration\":");
        push_number(line, nanos(entry.duration));
        if let Some(first_byte) = entry.first_byte {
            line.extend_from_slice(b",\"hashcache.first_byte_ns\":");
            push_number(line, nanos(first_byte));
        }
        line.extend_from_slice(b",\"client.ip\":\"");
        self.push_client(line, entry.client.ip());
        line.push(b'"');
        if self.style.client == ClientForm::Address {
            line.extend_from_slice(b",\"client.port\":");
            push_number(line, u64::from(entry.client.port()));
        }
        let text = |line: &mut Vec<u8>, key: &str, value: &[u8], bound: usize| {
            line.extend_from_slice(b",\"");
            line.extend_from_slice(key.as_bytes());
            line.extend_from_slice(b"\":\"");
            escape::push(line, value, Quoting::Json, bound);
            line.push(b'"');
        };
        if let Some(user) = self.user(entry) {
            text(line, "user.name", user.as_bytes(), FIELD_BYTES);
        }
        text(
            line,
            "http.request.method",
            entry.method.as_bytes(),
            METHOD_BYTES,
        );
        text(
            line,
            "http.version",
            version(entry.version).as_bytes(),
            FIELD_BYTES,
        );
        text(line, "url.scheme", entry.scheme.as_bytes(), FIELD_BYTES);
        let authority = escape::without_userinfo(entry.authority);
        text(line, "url.authority", authority.as_bytes(), FIELD_BYTES);
        line.extend_from_slice(b",\"url.original\":\"");
        self.push_target(line, &octets(entry.path), Quoting::Json);
        line.extend_from_slice(b"\",\"http.response.status_code\":");
        push_number(line, u64::from(entry.status));
        line.extend_from_slice(b",\"hashcache.outcome\":\"");
        line.extend_from_slice(entry.outcome.row().word.as_bytes());
        line.extend_from_slice(b"\",\"http.response.bytes\":");
        push_number(line, entry.client_bytes);
        line.extend_from_slice(b",\"hashcache.origin_bytes\":");
        push_number(line, entry.origin_bytes);
        if let Some(link) = entry.link {
            line.extend_from_slice(b",\"hashcache.link_bytes\":");
            push_number(line, link.bytes);
            line.extend_from_slice(b",\"hashcache.link_coding\":\"");
            line.extend_from_slice(link.coding.as_bytes());
            line.push(b'"');
        }
        if entry.aborted {
            line.extend_from_slice(b",\"hashcache.aborted\":true");
        }
        if let Some(upstream) = entry.next_hop.and_then(|hop| hop.address) {
            line.extend_from_slice(b",\"server.ip\":\"");
            push_ip(line, upstream.ip());
            line.extend_from_slice(b"\",\"server.port\":");
            push_number(line, u64::from(upstream.port()));
        }
        if let Some(peer) = entry.next_hop.and_then(|hop| hop.peer) {
            text(line, "hashcache.peer", peer.as_bytes(), FIELD_BYTES);
        }
        if let Some(error) = entry.error {
            text(line, "error.code", error.as_bytes(), FIELD_BYTES);
        }
        line.extend_from_slice(b",\"http.request.id\":\"");
        push_hex(line, entry.request_id.0);
        line.push(b'"');
        if let Some(agent) = entry.user_agent {
            text(line, "user_agent.original", agent, FIELD_BYTES);
        }
        if let Some(referer) = entry.referer {
            line.extend_from_slice(b",\"http.request.referrer\":\"");
            self.push_referer(line, referer, Quoting::Json);
            line.push(b'"');
        }
        if entry.content_type.is_some() {
            text(
                line,
                "http.response.mime_type",
                media_type(entry),
                FIELD_BYTES,
            );
        }
        line.push(b'}');
    }

    fn push_url(&self, line: &mut Vec<u8>, entry: &LogEntry<'_>, target: TargetForm) {
        let authority = escape::without_userinfo(entry.authority).as_bytes();
        if authority.is_empty() && entry.path.is_empty() {
            // Squid's text for a head that cannot be parsed.
            line.extend_from_slice(b"error:invalid-request");
            return;
        }
        if entry.path.is_empty() {
            escape::push(line, authority, Quoting::Url, FIELD_BYTES);
            return;
        }
        if target == TargetForm::Absolute && !authority.is_empty() {
            escape::push(line, entry.scheme.as_bytes(), Quoting::Url, FIELD_BYTES);
            line.extend_from_slice(b"://");
            escape::push(line, authority, Quoting::Url, FIELD_BYTES);
        }
        self.push_target(line, &octets(entry.path), Quoting::Url);
    }

    fn push_target(&self, line: &mut Vec<u8>, target: &[u8], escape: Quoting) {
        let (before, after) = escape::around_userinfo(self.stripped(target));
        escape::push(line, before, escape, TARGET_BYTES);
        escape::push(line, after, escape, TARGET_BYTES);
    }

    fn push_referer(&self, line: &mut Vec<u8>, referer: &[u8], escape: Quoting) {
        let (before, after) = escape::around_userinfo(self.stripped(referer));
        escape::push(line, before, escape, FIELD_BYTES);
        escape::push(line, after, escape, FIELD_BYTES);
    }

    fn stripped<'a>(&self, target: &'a [u8]) -> &'a [u8] {
        match self.style.query {
            QueryForm::Kept => target,
            QueryForm::Stripped => escape::without_query(target),
        }
    }

    /// Returns the date of `second`; most lines have the same second as the previous line.
    fn date(&mut self, second: u64, make: fn(&mut Vec<u8>, u64)) -> &[u8] {
        if self.second != Some(second) {
            self.date.clear();
            make(&mut self.date, second);
            self.second = Some(second);
        }
        &self.date
    }
}

fn squid_code(entry: &LogEntry<'_>) -> &'static str {
    match entry.outcome {
        // The client's own copy is valid: a hit without content.
        Outcome::Hit | Outcome::MemoryHit if entry.status == 304 => "TCP_IMS_HIT",
        outcome => outcome.row().squid,
    }
}

fn push_id_and_error(line: &mut Vec<u8>, entry: &LogEntry<'_>) {
    line.extend_from_slice(b" id=");
    push_hex(line, entry.request_id.0);
    if let Some(error) = entry.error {
        line.extend_from_slice(b" error=");
        escape::push(line, error.as_bytes(), Quoting::Url, FIELD_BYTES);
    }
    if let Some(link) = entry.link {
        line.extend_from_slice(b" link_bytes=");
        push_number(line, link.bytes);
        line.extend_from_slice(b" link_coding=");
        line.extend_from_slice(link.coding.as_bytes());
    }
}

/// Returns the media type without parameters.
fn media_type<'a>(entry: &LogEntry<'a>) -> &'a [u8] {
    let field = entry.content_type.unwrap_or_default();
    let end = field
        .iter()
        .position(|&byte| byte == b';')
        .unwrap_or(field.len());
    field[..end].trim_ascii()
}

fn push_or_dash(line: &mut Vec<u8>, field: &[u8], escape: Quoting, bound: usize) {
    if field.is_empty() {
        line.push(b'-');
    } else {
        escape::push(line, field, escape, bound);
    }
}

fn push_number(line: &mut Vec<u8>, number: u64) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_padded(line: &mut Vec<u8>, number: u64, width: usize, pad: u8) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number).as_bytes();
    line.resize(line.len() + width.saturating_sub(digits.len()), pad);
    line.extend_from_slice(digits);
}

fn push_hex(line: &mut Vec<u8>, number: u64) {
    for byte in number.to_be_bytes() {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        line.extend([digit(byte >> 4), digit(byte & 15)]);
    }
}

/// Returns the network of an address: a site or a street, not a household.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << (32 - 24))).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - 48))).into(),
    }
}

/// Appends an address; an IPv4-mapped address in IPv4 form.
fn push_ip(line: &mut Vec<u8>, address: IpAddr) {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            for (at, octet) in [a, b, c, d].into_iter().enumerate() {
                if at > 0 {
                    line.push(b'.');
                }
                push_number(line, u64::from(octet));
            }
        }
        // Writing to a `Vec` cannot fail.
        IpAddr::V6(address) => drop(write!(line, "{address}")),
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "0.9",
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2.0",
        Version::HTTP_3 => "3.0",
        _ => "1.1",
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `21/Nov/2026:21:47:02 +0000`
fn combined_date(date: &mut Vec<u8>, second: u64) {
    let ([year, month, day], [hour, minute, second]) = UnixTime(second).to_utc();
    let month = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    drop(write!(
        date,
        "{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} +0000"
    ));
}

/// `2026-11-21T21:47:02`; the caller appends the fraction.
fn iso_date(date: &mut Vec<u8>, second: u64) {
    let ([year, month, day], [hour, minute, second]) = UnixTime(second).to_utc();
    drop(write!(
        date,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
    ));
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
/// Longer methods, targets and fields are cut, because a line must be small compared to the queue.
const METHOD_BYTES: usize = 32;
const TARGET_BYTES: usize = 8 << 10;
const FIELD_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests;
