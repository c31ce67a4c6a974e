//! Defines each record on disk once: the fields, their offsets and their types.
//!
//! `record!` turns lines like `offset field: type` into a struct, an encoder, a decoder and a
//! [`RecordLayout`]. Bytes between fields are reserved: written as zeros and not read. Other
//! modules in `format` fill in these structs and validate decoded values; no other code has an
//! offset.
//!
//! Invariant: a record's fields are in order, do not overlap and fit into the record (checked at
//! compile time); `docs/FORMAT.md` has the same fields (checked by a test).
//! Cost: offsets are constants, so reading a field needs no lookup and no check.

use crate::key::KeyHash;
use crate::object::Version;

/// The fields of a record, as a table.
#[derive(Clone, Copy)]
pub(crate) struct RecordLayout {
    /// Heading for the record's table in `docs/FORMAT.md`.
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the document"))]
    pub(crate) record: &'static str,
    /// Size of the whole record, or its fixed part if a variable part follows.
    pub(crate) bytes: usize,
    /// Name, offset, size in bytes.
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

impl RecordLayout {
    /// Returns true if the fields are in order, do not overlap and fit into the record.
    pub(crate) const fn is_sound(self) -> bool {
        let (mut n, mut end) = (0, 0);
        while n < self.fields.len() {
            let (_, offset, size) = self.fields[n];
            if offset < end {
                return false;
            }
            end = offset + size;
            n += 1;
        }
        end <= self.bytes
    }
}

/// A possible field type: a little-endian integer, a byte array, or our own number types.
pub(crate) trait Field: Sized {
    const BYTES: usize;
    /// Fills `out`, which has `BYTES` bytes.
    fn write(&self, out: &mut [u8]);
    /// Reads `bytes`, which has `BYTES` bytes.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! integers {
    ($($integer:ty)*) => { $(
        impl Field for $integer {
            const BYTES: usize = size_of::<Self>();

            fn write(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(Field::read(bytes))
            }
        }
    )* };
}

integers!(u8 u16 u32 u64 u128);

impl<const N: usize> Field for [u8; N] {
    const BYTES: usize = N;

    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }

    fn read(bytes: &[u8]) -> Self {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
}

impl Field for KeyHash {
    const BYTES: usize = 16;

    fn write(&self, out: &mut [u8]) {
        self.to_bytes().write(out);
    }

    fn read(bytes: &[u8]) -> Self {
        Self::from_bytes(Field::read(bytes))
    }
}

impl Field for Version {
    const BYTES: usize = 8;

    fn write(&self, out: &mut [u8]) {
        self.0.write(out);
    }

    fn read(bytes: &[u8]) -> Self {
        Self(Field::read(bytes))
    }
}

/// Defines a record: `struct Name = "heading in FORMAT.md", size in bytes { offset field: type }`.
macro_rules! record {
    (
        $(#[$about:meta])*
        struct $name:ident = $heading:literal, $bytes:literal;
        $( $(#[$about_field:meta])* $offset:literal $field:ident: $type:ty, )*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $( $(#[$about_field])* pub(crate) $field: $type, )*
        }

        impl $name {
            /// Size on disk.
            pub(crate) const BYTES: usize = $bytes;
            pub(crate) const LAYOUT: $crate::format::layout::RecordLayout =
                $crate::format::layout::RecordLayout {
                    record: $heading,
                    bytes: $bytes,
                    fields: &[ $( (
                        stringify!($field),
                        $offset,
                        <$type as $crate::format::layout::Field>::BYTES,
                    ), )* ],
                };

            /// Writes the record to the start of `out`, which has room for it.
            pub(crate) fn encode(&self, out: &mut [u8]) {
                let out: &mut [u8; $bytes] =
                    out.first_chunk_mut().expect("the caller has room for the record");
                *out = [0; $bytes];
                $( {
                    use $crate::format::layout::Field;
                    let end = $offset + <$type as Field>::BYTES;
                    self.$field.write(&mut out[$offset..end]);
                } )*
            }

            /// Decodes the record that `bytes` starts with, if there are enough; nothing is
            /// verified yet.
            pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
                let bytes: &[u8; $bytes] = bytes.first_chunk()?;
                Some(Self { $( $field: {
                    use $crate::format::layout::Field;
                    let end = $offset + <$type as Field>::BYTES;
                    Field::read(&bytes[$offset..end])
                }, )* })
            }
        }

        const _: () = assert!($name::LAYOUT.is_sound());
    };
}

pub(crate) use record;

/// Most records start with a MAC over the bytes that follow.
pub(crate) const MAC_BYTES: usize = 8;

/// The bytes that the MAC at the start of `record` covers.
pub(crate) fn covered(record: &[u8]) -> &[u8] {
    &record[MAC_BYTES..]
}

/// Puts `mac` at the start of `record`.
pub(crate) fn seal(record: &mut [u8], mac: u64) {
    mac.write(&mut record[..MAC_BYTES]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::super::RECORDS;
    use super::*;

    /// Name, offset, size.
    type Row = (String, usize, usize);

    const RESERVED: &str = "reserved";

    /// The rows that the document must have: the fields, and what lies between them.
    fn rows(layout: &RecordLayout) -> Vec<Row> {
        let (mut rows, mut end) = (vec![], 0);
        let whole = [(RESERVED, layout.bytes, 0)];
        for (name, offset, size) in layout.fields.iter().chain(&whole) {
            if *offset > end {
                rows.push((RESERVED.to_owned(), end, offset - end));
            }
            if *size > 0 {
                rows.push((name.replace('_', " "), *offset, *size));
            }
            end = offset + size;
        }
        rows
    }

    /// The tables below headings `record: NAME`. Rows whose offset or size is no number are about
    /// what has no fixed length.
    fn tables(document: &str) -> BTreeMap<String, Vec<Row>> {
        let mut tables: BTreeMap<String, Vec<Row>> = BTreeMap::new();
        let mut current = None;
        for line in document.lines() {
            if line.starts_with('#') {
                current = line.split_once("record: ").map(|(_, name)| name.to_owned());
                if let Some(name) = &current {
                    assert!(tables.insert(name.clone(), vec![]).is_none(), "two {name}");
                }
            } else if let (Some(name), Some(cells)) = (&current, line.strip_prefix('|')) {
                let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
                if let (Ok(offset), Ok(size)) = (cells[0].parse(), cells[1].parse()) {
                    let row = (cells[2].trim_matches('`').to_owned(), offset, size);
                    tables.entry(name.clone()).or_default().push(row);
                }
            }
        }
        tables
    }

    fn read(path: impl AsRef<Path>) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    #[test]
    fn the_document_has_the_fields_of_every_record_and_no_others() {
        let documented = tables(&read("../../docs/FORMAT.md"));
        let coded = RECORDS
            .iter()
            .map(|it| (it.record.to_owned(), rows(it)))
            .collect::<BTreeMap<_, _>>();
        assert_eq!(coded.len(), RECORDS.len(), "two records of one name");
        for (name, rows) in &coded {
            assert_eq!(documented.get(name), Some(rows), "record {name}");
        }
        for name in documented.keys() {
            assert!(coded.contains_key(name), "only in the document: {name}");
        }
    }

    #[test]
    fn every_record_is_compared_with_the_document() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/format");
        let files = std::fs::read_dir(directory).unwrap();
        let defined = |path: &Path| {
            let text = read(path);
            let lines = text.lines().filter(|line| line.trim() == "record! {");
            lines.count()
        };
        let defined: usize = files.map(|file| defined(&file.unwrap().path())).sum();
        let probes = 1;
        assert_eq!(defined, RECORDS.len() + probes);
    }

    record! {
        /// With reserved bytes between its fields and at its end.
        struct Probe = "PROBE", 16;
        0 first: u16,
        4 second: u32,
        8 third: [u8; 3],
    }

    #[test]
    fn fields_lie_where_the_definition_says_and_reserved_bytes_are_zero() {
        let probe = Probe {
            first: 0x0201,
            second: 0x0807_0605,
            third: [9, 10, 11],
        };
        let mut out = [0xff; 17];
        probe.encode(&mut out);
        assert_eq!(
            out,
            [1, 2, 0, 0, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0, 0, 0xff]
        );
        out[2] = 1;
        assert_eq!(Probe::decode(&out), Some(probe));
        assert_eq!(Probe::decode(&out[..Probe::BYTES - 1]), None);
    }

    #[test]
    fn what_overlaps_or_sticks_out_is_no_layout() {
        let with = |fields| RecordLayout {
            fields,
            ..Probe::LAYOUT
        };
        assert!(with(&[("a", 0, 8), ("b", 8, 8)]).is_sound());
        assert!(!with(&[("a", 0, 8), ("b", 7, 8)]).is_sound());
        assert!(!with(&[("a", 0, 8), ("b", 9, 8)]).is_sound());
        assert!(!with(&[("a", 8, 8), ("b", 0, 8)]).is_sound());
    }
}
