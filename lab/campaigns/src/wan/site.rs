//! An origin whose objects a section sets and replaces.
//!
//! Used by all sections that fetch. It answers conditions by entity tag and resumed transfers, as
//! a static file server does.
//!
//! Invariant: an entity tag belongs to one content.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_testkit::{Origin, RawRequest, Script};

/// What is served at one path.
#[derive(Clone, Debug)]
pub struct Served {
    content: Arc<Vec<u8>>,
    cache_control: String,
}

impl Served {
    pub fn with(content: &Arc<Vec<u8>>, cache_control: &str) -> Self {
        Self {
            content: Arc::clone(content),
            cache_control: cache_control.to_owned(),
        }
    }

    /// Content that is stale at once, so that a cache asks for a newer version, and never serves
    /// the older one in its place.
    pub fn stale(content: &Arc<Vec<u8>>) -> Self {
        Self::with(content, "public, max-age=0, must-revalidate")
    }

    /// Content that is fresh for so long, in whole seconds.
    pub fn fresh_for(content: &Arc<Vec<u8>>, lifetime: Duration) -> Self {
        Self::with(content, &format!("public, max-age={}", lifetime.as_secs()))
    }

    /// Content that no cache stores.
    pub fn no_store(content: &Arc<Vec<u8>>) -> Self {
        Self::with(content, "no-store")
    }

    /// Content that stays fresh.
    pub fn fresh(content: &Arc<Vec<u8>>) -> Self {
        Self::with(content, "public, max-age=86400")
    }
}

/// A running origin; it ends when dropped.
pub struct Site {
    pub origin: Origin,
    served: Arc<Mutex<HashMap<String, Served>>>,
}

impl Site {
    pub async fn start() -> anyhow::Result<Self> {
        let served: Arc<Mutex<HashMap<String, Served>>> = Arc::default();
        let shared = Arc::clone(&served);
        let origin = Origin::start(move |request| {
            let found = lock(&shared).get(path(request)).cloned();
            match found {
                Some(found) => answer(request, &found),
                None => Script::response(404, &[], "nothing here"),
            }
        });
        Ok(Self {
            origin: origin.await?,
            served,
        })
    }

    /// Serves this at `path` from now on.
    pub fn set(&self, path: &str, served: Served) {
        lock(&self.served).insert(path.to_owned(), served);
    }

    /// Serves nothing any more.
    pub fn clear(&self) {
        lock(&self.served).clear();
    }

    pub fn url(&self, path: &str) -> String {
        self.origin.url(path)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The path of a request, in absolute-form as well.
fn path(request: &RawRequest) -> &str {
    let target = request.target();
    match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

fn answer(request: &RawRequest, served: &Served) -> Script {
    let content = &served.content;
    let tag = tag(content);
    let fields = [
        ("ETag", tag.as_str()),
        ("Cache-Control", served.cache_control.as_str()),
        ("Content-Type", "application/octet-stream"),
    ];
    if request.field("If-None-Match") == Some(&tag) {
        return Script::response(304, &fields, "");
    }
    let first = request
        .field("Range")
        .filter(|_| request.field("If-Range").is_none_or(|it| it == tag))
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
        .and_then(|first| first.parse::<usize>().ok())
        .filter(|first| *first < content.len());
    let Some(first) = first else {
        return Script::response(200, &fields, &**content);
    };
    let range = format!("bytes {first}-{}/{}", content.len() - 1, content.len());
    let fields = [&fields[..], &[("Content-Range", range.as_str())]].concat();
    Script::response(206, &fields, &content[first..])
}

fn tag(content: &[u8]) -> String {
    // The same in every process, and fast.
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
