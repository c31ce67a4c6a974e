//! Names for stored responses: the cache key, or for another variant a name derived from the key.
//!
//! Made by `look_up`, and handed by `request` in the proxy to `fetch`, which may choose another
//! place after it has seen the response.
//!
//! Invariant: a derived name contains the variant table's nonce. When the object under the key is
//! removed, the nonce is lost, and therefore all derived objects are lost too. Cost: building a
//! derived name allocates; cloning a place does not.

use bytes::Bytes;
use hashcache_http::{VariantPlace, VariantTable};

/// The place where the response to a request is stored, or would be stored.
#[derive(Clone, Debug)]
pub struct ObjectPlace {
    /// The cache key; the object under this key holds the variant table.
    pub key: Bytes,
    /// The object's name: the key, or a name derived from the key.
    pub name: Bytes,
    /// The nonce of the variant table that was read under the key.
    pub nonce: Option<u64>,
}

impl ObjectPlace {
    /// The place under the key itself; no table was read there.
    pub fn from_key(key: Bytes) -> Self {
        Self {
            name: key.clone(),
            key,
            nonce: None,
        }
    }

    /// The place for a variant in `table`, which was read under the key.
    pub fn within(self, table: &VariantTable, place: VariantPlace) -> Self {
        let name = match place {
            VariantPlace::Here => self.key.clone(),
            VariantPlace::Derived(hash) => table.derived_name(&self.key, hash).into(),
        };
        Self {
            name,
            nonce: Some(table.nonce()),
            key: self.key,
        }
    }

    /// Returns true if this is the first variant's place, which holds the table.
    pub fn is_under_key(&self) -> bool {
        self.name == self.key
    }
}
