//! Squid's native access log:
//! `time elapsed client code/status bytes method URL user hierarchy/peer type`.
//!
//! Size and status are those of the response to the client, its head included. A client whose copy
//! was not modified got a head only, so the size of the object is not known then.

use super::fields::{NOT_MODIFIED, is_storable, micros, number, status};
use super::{Reason, Request};

/// Reads a line.
pub fn parse(line: &[u8]) -> Result<Request<'_>, Reason> {
    let mut fields = [&b""[..]; FIELDS];
    let mut found = 0;
    let words = line.split(|byte| *byte == b' ');
    for word in words.filter(|word| !word.is_empty()).take(FIELDS) {
        fields[found] = word;
        found += 1;
    }
    if found < FIELDS {
        return Err(Reason::Fields { wanted: FIELDS });
    }
    let [time, _elapsed, client, outcome, bytes, method, name, ..] = fields;
    let slash = outcome.iter().position(|byte| *byte == b'/');
    let status_text = slash.map_or(&b""[..], |at| &outcome[at + 1..]);
    let status = status(status_text).ok_or(Reason::Status)?;
    let bytes = number(bytes).ok_or(Reason::Size)?;
    Ok(Request {
        time_us: micros(time).ok_or(Reason::Time)?,
        client,
        name,
        bytes: (status != NOT_MODIFIED).then_some(bytes),
        group: b"",
        may_be_stored: is_storable(method, status),
    })
}

/// Custom formats may add some.
const FIELDS: usize = 10;
