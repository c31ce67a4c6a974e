//! Requests of Boston University's browsers, 1994 and 1995 (Cunha, Bestavros, Crovella: BU-CS
//! TR-95-010), as one file of tab-separated fields: time, machine, user, session, URL, octets
//! received, seconds.
//!
//! 0 octets: the browser's own cache answered, so the trace does not say the size.

use super::fields::{micros, number};
use super::{Reason, Request};

/// Reads a line.
pub fn parse(line: &[u8]) -> Result<Request<'_>, Reason> {
    let mut fields = [&b""[..]; FIELDS];
    let mut found = 0;
    for field in line.split(|byte| *byte == b'\t') {
        if let Some(place) = fields.get_mut(found) {
            *place = field;
        }
        found += 1;
    }
    if found != FIELDS {
        return Err(Reason::Fields { wanted: FIELDS });
    }
    let [time, _machine, client, _session, name, bytes, _seconds] = fields;
    if name.is_empty() {
        return Err(Reason::Name);
    }
    let bytes = number(bytes).ok_or(Reason::Size)?;
    Ok(Request {
        time_us: micros(time).ok_or(Reason::Time)?,
        client,
        name,
        bytes: (bytes > 0).then_some(bytes),
        group: b"",
        may_be_stored: true,
    })
}

const FIELDS: usize = 7;
