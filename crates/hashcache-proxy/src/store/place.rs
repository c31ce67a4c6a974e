//! Where the answer to a request is stored: under the cache key, or beside it as another variant.
//!
//! Made by `request` when it looks up, handed on to `fetch`, which may find another place once it
//! has seen the response.
//!
//! Invariant: a derived name belongs to the table whose nonce is in it, so whatever lies there is
//! lost when what lies under the key is removed. Cost: two names.

use hashcache_http::{VariantPlace, VariantTable};

/// Where the answer to a request is stored, or would be.
#[derive(Clone, Debug)]
pub(crate) struct ObjectPlace {
    /// The cache key: what lies there holds the variant table.
    pub(crate) key: Vec<u8>,
    /// The name of the object: the key, or one derived of it.
    pub(crate) name: Vec<u8>,
    /// Which table was seen under the key.
    pub(crate) nonce: Option<u64>,
}

impl ObjectPlace {
    /// Under the key itself; no table was seen there.
    pub(crate) fn of(key: Vec<u8>) -> Self {
        Self {
            name: key.clone(),
            key,
            nonce: None,
        }
    }

    /// The same in a table that was seen under the key.
    pub(crate) fn within(self, table: &VariantTable, place: VariantPlace) -> Self {
        let name = match place {
            VariantPlace::Here => self.key.clone(),
            VariantPlace::Derived(hash) => table.derived_name(&self.key, hash),
        };
        Self {
            name,
            nonce: Some(table.nonce()),
            key: self.key,
        }
    }

    /// Whether it is the place of the first variant, which holds the table.
    pub(crate) fn is_under_key(&self) -> bool {
        self.name == self.key
    }
}
