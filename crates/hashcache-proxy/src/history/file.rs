//! The file of the history: a ring of records, one for each hour of 400 days.
//!
//! `History` writes the record of the current hour once a minute; `hashcache report` reads the
//! hours that it needs, also from the file of a running proxy.
//!
//! Invariants: the record of an hour has a fixed place, so the file is bounded: 38 MiB, with holes
//! where the proxy did not run. A write is one aligned block, so a killed process leaves the old
//! block or the new block. A record that was torn by a power cut fails the checksum; it is left out
//! and counted.
//! Cost: one write of 4 KiB a minute with requests, without a sync.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use hashcache_base::state_file::{Link, open_regular};
use rustix::fs::OFlags;

use super::record::{Hour, HourRecord, RECORD_BYTES};

/// Hours in the ring.
pub(super) const HOURS: u32 = 400 * 24;

/// Content of an hour's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// No request was counted in that hour, or the place has an hour from an earlier lap of the
    /// ring.
    Empty,
    /// An incomplete record.
    Damaged,
    /// The hour's record.
    Record(Box<HourRecord>),
}

/// Hours that were read, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Hours with any counts.
    pub hours: Vec<HourRecord>,
    /// Hours with an incomplete record.
    pub damaged: u64,
}

/// Reads the hours from `first` to `last` from the file at `path`; a missing file has no hours.
///
/// # Errors
/// The file cannot be opened or read.
pub fn read(path: &Path, first: Hour, last: Hour) -> io::Result<Read> {
    let file = match open_regular(path, Link::Refused) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::default()),
        file => file?,
    };
    let mut read = Read::default();
    let first = first.max(Hour(last.0.saturating_sub(HOURS - 1)));
    for hour in first.0..=last.0 {
        match read_place(&file, Hour(hour))? {
            Place::Empty => {}
            Place::Damaged => read.damaged += 1,
            Place::Record(record) => read.hours.push(*record),
        }
    }
    Ok(read)
}

/// Reads the record at the place for `hour`.
pub(super) fn read_place(file: &File, hour: Hour) -> io::Result<Place> {
    let mut place = Place::Empty;
    // The read may coincide with a write of the proxy; a repeated read finds a complete record.
    for _ in 0..READS {
        let mut bytes = [0; RECORD_BYTES];
        match file.read_exact_at(&mut bytes, offset(hour)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Place::Empty),
            other => other?,
        }
        place = match HourRecord::from_bytes(&bytes) {
            Some(record) if record.hour == hour => Place::Record(Box::new(record)),
            // A record from an earlier lap of the ring: the hour has no record.
            Some(record) if offset(record.hour) == offset(hour) => Place::Empty,
            None if bytes.iter().all(|byte| *byte == 0) => Place::Empty,
            Some(_) | None => Place::Damaged,
        };
        if place != Place::Damaged {
            break;
        }
    }
    Ok(place)
}

/// Writes a record to the file at `path`, which is created if it is missing.
pub(super) fn write(path: &Path, record: &HourRecord) -> io::Result<()> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    // Checked on the open file, because the path may name another file by now.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.write_all_at(&record.to_bytes()[..], offset(record.hour))
}

fn offset(hour: Hour) -> u64 {
    u64::from(hour.0 % HOURS) * RECORD_BYTES as u64
}

const READS: usize = 3;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;
    use crate::history::counts::{Counts, Kind, Totals};
    use crate::history::name::Name;

    fn record(hour: u32) -> HourRecord {
        let mut totals = Totals::default();
        totals.add(Kind::Disk, u64::from(hour));
        HourRecord {
            hour: Hour(hour),
            totals,
            ..HourRecord::default()
        }
    }

    fn hours(path: &Path, first: u32, last: u32) -> (Vec<u32>, u64) {
        let read = read(path, Hour(first), Hour(last)).unwrap();
        (
            read.hours.iter().map(|it| it.hour.0).collect(),
            read.damaged,
        )
    }

    #[test]
    fn hours_are_found_for_400_days_and_the_file_stays_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.history");
        assert_eq!(hours(&path, 0, 10), (vec![], 0));
        for hour in [3, 4, 9_600, 9_602, 19_199] {
            write(&path, &record(hour)).unwrap();
        }
        assert_eq!(hours(&path, 3, 9_602), (vec![3, 4, 9_600, 9_602], 0));
        // Hour 9603 has the place of hour 3.
        write(&path, &record(9_603)).unwrap();
        assert_eq!(hours(&path, 3, 9_603), (vec![4, 9_600, 9_602, 9_603], 0));
        assert_eq!(hours(&path, 0, u32::MAX), (vec![], 0));
        let facts = path.metadata().unwrap();
        assert_eq!(facts.len(), u64::from(HOURS) * 4096);
        assert_eq!(facts.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_record_is_left_out_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.history");
        for hour in 10..15 {
            write(&path, &record(hour)).unwrap();
        }
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0xff; 100], offset(Hour(12)) + 2_000)
            .unwrap();
        // A whole record at a place that is not its own.
        let strange = record(999).to_bytes();
        file.write_all_at(&strange[..], offset(Hour(13))).unwrap();
        assert_eq!(hours(&path, 10, 14), (vec![10, 11, 14], 2));
        // A file that was cut off in the middle of a record.
        file.set_len(offset(Hour(14)) + 100).unwrap();
        assert_eq!(hours(&path, 10, 14), (vec![10, 11], 2));
    }

    #[test]
    fn a_write_that_is_cut_off_anywhere_leaves_a_whole_record_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache.history");
        let full_hour = |client_bytes| {
            let mut record = record(10);
            record.totals.client_bytes = client_bytes;
            let line = |n: u64| {
                let counts = Counts {
                    client_bytes: client_bytes * n,
                    ..Counts::default()
                };
                (Name::new(format_args!("{n}.test")), counts)
            };
            record.lines[0].named = (0..32).map(line).collect();
            record
        };
        let (old, new) = (full_hour(1_000), full_hour(900_000));
        for at in 0..=RECORD_BYTES {
            write(&path, &old).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&new.to_bytes()[..at], offset(Hour(10)))
                .unwrap();
            match read_place(&File::open(&path).unwrap(), Hour(10)).unwrap() {
                Place::Record(found) => assert!([&old, &new].contains(&&*found), "{at}"),
                Place::Damaged => {}
                Place::Empty => panic!("the place was written: {at}"),
            }
            // The next minute mends the hour, and the neighbours were not touched.
            write(&path, &new).unwrap();
            assert_eq!(hours(&path, 8, 12), (vec![10], 0));
        }
    }

    #[test]
    fn no_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, others] = ["cache.history", "others"].map(|it| directory.path().join(it));
        std::fs::write(&others, "theirs").unwrap();
        symlink(&others, &path).unwrap();
        assert!(write(&path, &record(1)).is_err());
        assert!(read(&path, Hour(0), Hour(1)).is_err());
        assert_eq!(std::fs::read(&others).unwrap(), b"theirs");
    }
}
