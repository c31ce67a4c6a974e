//! libCacheSim's `oracleGeneral`: records of 24 bytes, little-endian: time in seconds (u32), object
//! (u64), size (u32), and when the object is requested next (i64), which only an oracle would use.
//!
//! Objects have numbers, not names; here the number in decimal is the name.

use std::io::Write as _;

use super::{Reason, Request};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 24;

/// Reads a record. `scratch` takes the name.
pub fn parse<'a>(record: &[u8], scratch: &'a mut Vec<u8>) -> Result<Request<'a>, Reason> {
    let record: &[u8; RECORD_BYTES] = record.try_into().map_err(|_| Reason::Cut)?;
    let (time, object, bytes) = fields(record);
    scratch.clear();
    write!(scratch, "{object}").expect("a vector takes what is written to it");
    Ok(Request {
        time_us: u64::from(time) * 1_000_000,
        client: b"",
        name: scratch,
        bytes: Some(bytes.into()),
        group: b"",
        may_be_stored: true,
    })
}

/// Whether `head` looks like the beginning of such a file. Text does not: its "times" go back.
pub fn fits(head: &[u8]) -> bool {
    let (records, rest) = head.as_chunks::<RECORD_BYTES>();
    let records = &records[..records.len().min(RECORDS_LOOKED_AT)];
    let times = records.iter().map(|record| fields(record).0);
    let is_whole = rest.is_empty() || records.len() == RECORDS_LOOKED_AT;
    let has_zeros = records.iter().all(|record| record.contains(&0));
    is_whole && !records.is_empty() && has_zeros && times.is_sorted()
}

fn fields(record: &[u8; RECORD_BYTES]) -> (u32, u64, u32) {
    let [
        t0,
        t1,
        t2,
        t3,
        object @ ..,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
    ] = record;
    let [.., b0, b1, b2, b3, _, _, _, _, _, _, _, _] = record;
    (
        u32::from_le_bytes([*t0, *t1, *t2, *t3]),
        u64::from_le_bytes(*object),
        u32::from_le_bytes([*b0, *b1, *b2, *b3]),
    )
}

const RECORDS_LOOKED_AT: usize = 100;
