//! Where a response is stored: under the cache key, or under a derived name as another variant.
//!
//! Made by `look_up`, and handed by `request` of the proxy to its `fetch`, which may choose another
//! place after it has seen the response.
//!
//! Invariant: a derived name contains the nonce of its variant table. So all derived objects are
//! lost when the object under the key is removed. Cost: a name; none for a clone.

use bytes::Bytes;
use hashcache_http::{VariantPlace, VariantTable};

/// Where the response to a request is stored, or would be.
#[derive(Clone, Debug)]
pub struct ObjectPlace {
    /// The cache key; the object under it holds the variant table.
    pub key: Bytes,
    /// The name of the object: the key, or a name derived from it.
    pub name: Bytes,
    /// The nonce of the variant table that was read under the key.
    pub nonce: Option<u64>,
}

impl ObjectPlace {
    /// The place under the key itself; no table was read there.
    pub fn of(key: Bytes) -> Self {
        Self {
            name: key.clone(),
            key,
            nonce: None,
        }
    }

    /// The place of a variant in `table`, which was read under the key.
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

    /// Whether this is the place of the first variant, which holds the table.
    pub fn is_under_key(&self) -> bool {
        self.name == self.key
    }
}
