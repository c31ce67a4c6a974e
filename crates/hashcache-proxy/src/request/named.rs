//! The parent's search for a dictionary by content.
//!
//! A part of `framed`, before the first frame is written: the start of the content is collected and
//! sketched, then the table of objects sent to the child is searched, then the store.
//!
//! Invariants: a dictionary has the same origin as the response, and the stored digest equals the
//! digest that the child received. Content waits at most [`SEARCH_TIME`] for more content, and
//! [`FIND_TIME`] for the store.
//! Cost: 0.8 ms a MB for the sketch; memory for the collected content, at most 2 MiB, is reserved.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hashcache::Cache;
use hashcache_store::kept_name;
use hashcache_wan::digest::Digest;
use hashcache_wan::sent::{SentObject, Wanted};
use hashcache_wan::sketch::Sketcher;
use tokio::time::{Sleep, sleep, timeout};

use hashcache_link::dictionary::StoredContent;
use hashcache_link::sent_to::SentTo;

/// A response that may be a dictionary later, and may find a dictionary now.
pub(super) struct Resemblance {
    pub(super) sent: Arc<SentTo>,
    pub(super) cache: Cache,
    /// The cache key of the response; the first `origin_bytes` bytes name the origin.
    pub(super) key: Box<[u8]>,
    pub(super) origin_bytes: usize,
    pub(super) sketcher: Sketcher,
}

/// A search in progress.
pub(super) struct Search {
    /// The longest dictionary that the child accepts, bytes.
    named_max: u64,
    length: Option<u64>,
    /// Runs while the search waits for more content.
    wait: Option<Pin<Box<Sleep>>>,
    looking: Option<Looking>,
}

type Looking = Pin<Box<dyn Future<Output = Option<Named>>>>;

/// A dictionary that was found.
pub(super) struct Named {
    pub(super) key: Box<[u8]>,
    pub(super) content: StoredContent,
}

impl Search {
    pub(super) fn new(named_max: u64, length: Option<u64>) -> Self {
        Self {
            named_max,
            length,
            wait: None,
            looking: None,
        }
    }

    /// Ready when the search must not wait for more content.
    pub(super) fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let wait = self
            .wait
            .get_or_insert_with(|| Box::pin(sleep(SEARCH_TIME)));
        wait.as_mut().poll(context)
    }

    /// The dictionary, if there is one.
    pub(super) fn poll_find(
        &mut self,
        resemblance: &Resemblance,
        context: &mut Context<'_>,
    ) -> Poll<Option<Named>> {
        let looking = match &mut self.looking {
            Some(looking) => looking,
            None => {
                let wanted = Wanted {
                    key: &resemblance.key,
                    origin_bytes: resemblance.origin_bytes,
                    length: self.length,
                };
                let sketch = resemblance.sketcher.sketch();
                let found = resemblance.sent.find(&sketch, &wanted);
                // An older version of the same URL is skipped: the child would have offered it.
                let found = found.filter(|object| {
                    object.key != resemblance.key && object.length <= self.named_max
                });
                let Some(object) = found else {
                    return Poll::Ready(None);
                };
                let (cache, sent) = (resemblance.cache.clone(), Arc::clone(&resemblance.sent));
                let origin = resemblance.key[..resemblance.origin_bytes].into();
                let looking = look_up(cache, sent, origin, object);
                let looking = async { timeout(FIND_TIME, looking).await.ok().flatten() };
                self.looking.insert(Box::pin(looking))
            }
        };
        let named = ready!(looking.as_mut().poll(context));
        self.looking = None;
        Poll::Ready(named)
    }
}

/// The object in the store: under the key, or kept when another version replaced it.
async fn look_up(
    cache: Cache,
    sent: Arc<SentTo>,
    origin: Box<[u8]>,
    object: SentObject,
) -> Option<Named> {
    let SentObject { key, digest, .. } = object;
    let content = match StoredContent::find(&cache, &key, digest).await {
        Some(content) => Some(content),
        None => kept(&cache, &origin, digest).await,
    };
    if content.is_none() {
        sent.forget(&key);
    }
    content.map(|content| Named { key, content })
}

/// Content of an origin that was kept when another version replaced it.
pub(super) async fn kept(cache: &Cache, origin: &[u8], digest: Digest) -> Option<StoredContent> {
    let hit = hashcache_store::find(cache, &kept_name(origin, digest)).await?;
    StoredContent::kept(&hit, digest)
}

/// Maximum time of a lookup: a busy disk must not delay the response.
pub(super) const FIND_TIME: Duration = Duration::from_millis(200);
/// Maximum time that a search waits for more content.
const SEARCH_TIME: Duration = Duration::from_millis(200);
