//! The variant table: places of the stored responses for a URL that differ by request fields (RFC
//! 9111 4.1).
//!
//! The first response is stored under the cache key itself, the others under names derived from the
//! key; the table is in the metadata of the first response. The proxy reads the table at every
//! lookup that finds it, and changes it when a response is stored or a 304 selects a stored
//! response.
//!
//! Invariants: two requests share a row only if the normalised values (`vary`) of all fields in the
//! table are equal, except for a hash collision, which attackers cannot produce without the secret
//! nonce. A reader still compares the stored values, unless the row is an alias. Derived names
//! contain the nonce, so they are lost with the table.
//! Cost: one hash over the values, a search among at most sixteen rows.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | nonce |
//! | 1 | number of fields, then for each its length (1) and its name |
//! | 1 | number of rows, oldest first, then for each: |
//! | 8 | hash of the request's values |
//! | 8 | version of the object |
//! | 1 | bit 0: 0 under the key, 1 derived; bit 1: an alias; bits 2 to 7: the client's tag |
//! | 8 | derived: the hash in its name |
//! | 1 | length of the entity tag, 0 for none, then the tag |
//!
//! Integers are little-endian.

use std::hash::Hasher;

use http::header::{HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH};
use siphasher::sip::SipHasher24;

use crate::entity_tag::EntityTag;
use crate::vary::{VARY_FIELDS_MAX, VaryRow};

/// A hash with six bits that usually distinguishes the clients in a table; no client can choose it
/// without the nonce.
pub fn client_tag(nonce: u64, client: &[u8]) -> u8 {
    let mut hasher = SipHasher24::new_with_keys(nonce, HASH_KEY);
    hasher.write(client);
    let [.., last] = hasher.finish().to_be_bytes();
    last >> CLIENT_SHIFT
}

/// Maximum number of rows in a table.
pub const VARIANTS_MAX: usize = 16;

/// Places of a URL's variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantTable {
    nonce: u64,
    /// Sorted.
    names: Vec<HeaderName>,
    /// Oldest first.
    rows: Vec<Variant>,
}

/// A row: the object that answers requests with certain values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Hash of the values.
    pub values: u64,
    /// Place of the object.
    pub place: VariantPlace,
    /// Version of the object; the row does not apply to any other version.
    pub version: u64,
    /// True if upstream selected the object by entity tag for these values, although it was stored
    /// for other values.
    pub alias: bool,
    /// Tag of the client that first requested it, see [`client_tag`].
    pub client: u8,
    /// Entity tag of the object, if any.
    pub etag: Option<Box<[u8]>>,
}

/// Place of an object in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariantPlace {
    /// Under the cache key itself.
    Here,
    /// Under the name derived from this hash.
    Derived(u64),
}

impl VariantTable {
    /// A table without rows, for responses that vary by `names`. The nonce must be random and
    /// secret.
    pub fn new(nonce: u64, names: &[HeaderName]) -> VariantTable {
        let mut names = names.to_vec();
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        let rows = Vec::new();
        VariantTable { nonce, names, rows }
    }

    /// Identifies this table among all tables, including later tables for the same key.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The fields with the values that select a row.
    pub fn names(&self) -> &[HeaderName] {
        &self.names
    }

    /// The rows, oldest first.
    pub fn rows(&self) -> &[Variant] {
        &self.rows
    }

    /// Returns true if the table has all fields that a response's Vary names.
    pub fn covers(&self, names: &[HeaderName]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }

    /// The fields of the table and `names` together, for a table that covers both; only `names` if
    /// both together are too many.
    pub fn widened(&self, names: &[HeaderName]) -> Vec<HeaderName> {
        let more = names.iter().filter(|name| !self.names.contains(name));
        let all: Vec<_> = self.names.iter().chain(more).cloned().collect();
        if all.len() <= VARY_FIELDS_MAX {
            all
        } else {
            names.to_vec()
        }
    }

    /// The hash of a request's values; `None` if they exceed the size of a row.
    pub fn values(&self, request: &HeaderMap) -> Option<u64> {
        let row = VaryRow::select(&self.names, request)?;
        let mut hasher = SipHasher24::new_with_keys(self.nonce, HASH_KEY);
        hasher.write(row.as_bytes());
        Some(hasher.finish())
    }

    /// The row for these values.
    pub fn find(&self, values: u64) -> Option<&Variant> {
        self.rows.iter().find(|row| row.values == values)
    }

    /// Adds a row, or replaces the row with the same values. Rows with another version in the same
    /// place are removed. If there are more than [`VARIANTS_MAX`] rows, the oldest row of the
    /// client with the most rows is removed, so that invented values cannot evict the rows of other
    /// clients. The row for the object under the cache key stays, because that object is read in
    /// any case.
    pub fn set(&mut self, variant: Variant) {
        let is_over = |row: &Variant| {
            row.values == variant.values
                || (row.place == variant.place && row.version != variant.version)
        };
        self.rows.retain(|row| !is_over(row));
        if self.rows.len() >= VARIANTS_MAX {
            let stays = |row: &Variant| row.place == VariantPlace::Here && !row.alias;
            let goes = self.client_with_most(&variant);
            let oldest = self.rows.iter();
            let mut oldest = oldest.enumerate().filter(|(_, row)| !stays(row));
            let first = oldest.clone().next();
            let oldest = oldest.find(|(_, row)| row.client == goes).or(first);
            self.rows.remove(oldest.map_or(0, |(at, _)| at));
        }
        let etag = variant.etag.filter(|etag| etag.len() <= ETAG_BYTES_MAX);
        self.rows.push(Variant { etag, ..variant });
    }

    /// The client with the most rows after `more` is added; on a tie, the client of `more`.
    fn client_with_most(&self, more: &Variant) -> u8 {
        let count = |client: u8| self.rows.iter().filter(|row| row.client == client).count();
        let own = (more.client, count(more.client) + 1);
        let others = self.rows.iter().filter(|row| row.client != more.client);
        let others = others.map(|row| (row.client, count(row.client)));
        others
            .chain([own])
            .max_by_key(|(_, rows)| *rows)
            .unwrap_or(own)
            .0
    }

    /// Removes the rows for a removed object.
    pub fn forget(&mut self, place: VariantPlace) {
        self.rows.retain(|row| row.place != place);
    }

    /// Keeps the rows for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&Variant) -> bool) {
        self.rows.retain(keep);
    }

    /// The name of the object with this hash, derived from `key`.
    pub fn derived_name(&self, key: &[u8], hash: u64) -> Vec<u8> {
        let mut name = Vec::with_capacity(key.len() + DERIVED_BYTES);
        name.extend_from_slice(key);
        // No key has a zero byte after its port, so no key equals a derived name.
        name.extend_from_slice(b"\0v");
        name.extend_from_slice(&self.nonce.to_le_bytes());
        name.extend_from_slice(&hash.to_le_bytes());
        name
    }

    /// Turns a request that matches no row into a selection among the stored responses (RFC 9111
    /// 4.3.1): If-None-Match with the entity tags of all rows. Returns false if there are none; the
    /// request is then unchanged.
    pub fn set_choices(&self, request: &mut HeaderMap) -> bool {
        let mut tags: Vec<&[u8]> = Vec::new();
        for tag in self.rows.iter().filter_map(|row| row.etag.as_deref()) {
            if EntityTag::parse(tag).is_well_formed() && !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        let list = HeaderValue::from_bytes(&tags.join(&b", "[..]));
        let (false, Ok(list)) = (tags.is_empty(), list) else {
            return false;
        };
        crate::validate::remove_conditions(request);
        request.insert(IF_NONE_MATCH, list);
        true
    }

    /// The object that a 304 to a request by [`VariantTable::set_choices`] selects: the object with
    /// the entity tag in the 304 (RFC 9111 4.3.3), or the only object that was in the list.
    pub fn chosen(&self, etag: Option<&HeaderValue>) -> Option<&Variant> {
        let tag = |row: &Variant| row.etag.clone();
        let mut asked = self.rows.iter().filter(|row| row.etag.is_some());
        match etag {
            Some(named) => {
                let named = EntityTag::parse(named.as_bytes());
                asked.rfind(|row| {
                    let own = row.etag.as_deref().map(EntityTag::parse);
                    own.is_some_and(|own| own.equals_weakly(&named))
                })
            }
            None => {
                let first = asked.next()?;
                asked.all(|other| tag(other) == tag(first)).then_some(first)
            }
        }
    }

    /// Encodes the table, to be stored with the first response.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.nonce.to_le_bytes().to_vec();
        out.push(count(self.names.len()));
        for name in &self.names {
            out.push(count(name.as_str().len()));
            out.extend_from_slice(name.as_str().as_bytes());
        }
        out.push(count(self.rows.len()));
        for row in &self.rows {
            out.extend_from_slice(&row.values.to_le_bytes());
            out.extend_from_slice(&row.version.to_le_bytes());
            let alias = if row.alias { ALIAS } else { 0 } | row.client << CLIENT_SHIFT;
            match row.place {
                VariantPlace::Here => out.push(alias),
                VariantPlace::Derived(hash) => {
                    out.push(DERIVED | alias);
                    out.extend_from_slice(&hash.to_le_bytes());
                }
            }
            let etag = row.etag.as_deref().unwrap_or_default();
            out.push(count(etag.len()));
            out.extend_from_slice(etag);
        }
        out
    }

    /// Decodes a table; `None` if the bytes are not a valid table.
    pub fn from_bytes(bytes: &[u8]) -> Option<VariantTable> {
        let mut reader = TableReader(bytes);
        let nonce = reader.number()?;
        let fields = usize::from(reader.byte()?);
        if fields > VARY_FIELDS_MAX {
            return None;
        }
        let mut names: Vec<HeaderName> = Vec::with_capacity(fields);
        for _ in 0..fields {
            let length = usize::from(reader.byte()?);
            let bytes = reader.take(length)?;
            let name = HeaderName::from_bytes(bytes).ok()?;
            if name.as_str().as_bytes() != bytes {
                return None;
            }
            if names
                .last()
                .is_some_and(|last| last.as_str() >= name.as_str())
            {
                return None;
            }
            names.push(name);
        }
        let count = usize::from(reader.byte()?);
        if count > VARIANTS_MAX {
            return None;
        }
        let rows: Option<Vec<_>> = (0..count).map(|_| reader.row()).collect();
        let rows = rows?;
        reader
            .0
            .is_empty()
            .then_some(VariantTable { nonce, names, rows })
    }
}

struct TableReader<'a>(&'a [u8]);

impl<'a> TableReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn row(&mut self) -> Option<Variant> {
        let (values, version) = (self.number()?, self.number()?);
        let kind = self.byte()?;
        let place = match kind & DERIVED {
            0 => VariantPlace::Here,
            _ => VariantPlace::Derived(self.number()?),
        };
        let length = usize::from(self.byte()?);
        let etag = self.take(length)?;
        Some(Variant {
            values,
            place,
            version,
            alias: kind & ALIAS != 0,
            client: kind >> CLIENT_SHIFT,
            etag: (!etag.is_empty()).then(|| etag.into()),
        })
    }
}

/// Counts and lengths are below 256, because names, rows and tags are limited when they are added.
fn count(length: usize) -> u8 {
    u8::try_from(length).unwrap_or(u8::MAX)
}

const DERIVED: u8 = 1;
const ALIAS: u8 = 2;
const CLIENT_SHIFT: u8 = 2;

/// Longer tags are not stored in a row, so they are not sent upstream.
const ETAG_BYTES_MAX: usize = 255;

/// Zero byte, `v`, nonce, hash.
const DERIVED_BYTES: usize = 2 + 8 + 8;

/// The second half of the hash key; the first is the nonce.
const HASH_KEY: u64 = 0x7661_7269_616e_7473;

#[cfg(test)]
mod tests;
