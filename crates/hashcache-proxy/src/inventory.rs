//! Lists the stored responses for operators: a few at a time, at a pace that leaves the disk to
//! requests.
//!
//! `admin` calls it for `GET /-/list`, and `hashcache list` prints the answers. Each answer has the
//! responses from a part of a walk through the store ([`hashcache::Walk`]), and the position for
//! the next question. So a client that stops sending questions has stopped the walk, and no state
//! is kept between two questions.
//!
//! Invariants: an answer takes at most about [`ANSWER_TIME`], and has at most [`OBJECTS_MAX`]
//! responses plus the responses of the last steps. At most one walk runs at a time; it reads at
//! most a quarter of the time. The store is read without a trace.
//! Cost: see `hashcache::Walk`. Reads block, so they run on a separate thread.

use std::sync::Arc;
use std::time::Duration;

use hashcache::{Cache, Walk, WalkedObject};
use hashcache_http::{Space, Target, UnixTime, target_of_key};
use hashcache_store::StoredResponse;
use hashcache_upstream::gateway::decode;
use http::header::{CONTENT_TYPE, ETAG, HeaderName};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::worker::Common;

/// Lists the stored responses.
pub(crate) struct Inventory {
    common: Arc<Common>,
    cache: Cache,
    turn: Semaphore,
}

/// Parameters of a list request.
#[derive(Clone, Debug, Default)]
pub(crate) struct InventoryQuestion {
    /// Only URLs that start with this URL.
    prefix: Option<Target>,
    /// Position at which an earlier answer has stopped.
    from: Option<String>,
}

impl InventoryQuestion {
    /// Parses `prefix=URL&from=POSITION`, percent-encoded.
    ///
    /// # Errors
    /// Describes the mistake in words.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut question = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = String::from_utf8(decode(value));
            let value = value.map_err(|_| format!("`{name}` is not UTF-8"))?;
            match name {
                "prefix" => {
                    let target = Target::parse_url(&value);
                    question.prefix = Some(target.map_err(|error| format!("`{value}`: {error}"))?);
                }
                "from" => question.from = Some(value),
                other => return Err(format!("`{other}` is not one of prefix, from")),
            }
        }
        Ok(question)
    }

    fn takes(&self, target: &Target) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| {
            prefix.scheme == target.scheme
                && prefix.authority == target.authority
                && target.path_and_query.starts_with(&*prefix.path_and_query)
        })
    }
}

impl Inventory {
    pub(crate) fn new(common: Arc<Common>, cache: Cache) -> Self {
        Self {
            common,
            cache,
            turn: Semaphore::new(1),
        }
    }

    /// Returns the next part of the list, as JSON: `objects`, the number of `examined` objects, the
    /// share of the store that the walk has covered (`done_permille`), and `next`, the position for
    /// the next question, or null at the end.
    ///
    /// # Errors
    /// Describes the mistake in the question.
    pub(crate) async fn answer(&self, question: &InventoryQuestion) -> Result<Value, String> {
        let walk = match &question.from {
            None => Some(self.cache.walk()),
            Some(from) => self.cache.walk_from(from),
        };
        let mut walk = walk.ok_or("`from` is no position in this store")?;
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        let begun = Instant::now();
        let (mut objects, mut examined) = (Vec::new(), 0_u64);
        let mut is_over = false;
        while !is_over && objects.len() < OBJECTS_MAX && begun.elapsed() < ANSWER_TIME {
            let reading = Instant::now();
            let some = spawn_blocking(move || steps(walk)).await;
            let (walked, found) = some.map_err(|_| "the walk has ended early".to_owned())?;
            (walk, is_over) = (walked, found.is_over);
            examined += found.objects.len() as u64;
            let now = self.common.now();
            let shown = found
                .objects
                .iter()
                .filter_map(|it| show(question, it, now));
            objects.extend(shown);
            if !is_over {
                sleep((reading.elapsed() * PAUSES_PER_READ).clamp(PAUSE_MIN, PAUSE_MAX)).await;
            }
        }
        let next = (!is_over).then(|| walk.position());
        Ok(json!({
            "objects": objects,
            "examined": examined,
            "done_permille": walk.done_permille(),
            "next": next,
        }))
    }
}

/// Objects that some steps of a walk have found.
struct Found {
    objects: Vec<WalkedObject>,
    is_over: bool,
}

/// Takes up to [`STEPS`] steps.
fn steps(mut walk: Walk) -> (Walk, Found) {
    let mut objects = Vec::new();
    for _ in 0..STEPS {
        let Some(step) = walk.next() else {
            let is_over = true;
            return (walk, Found { objects, is_over });
        };
        objects.extend(step.objects);
    }
    let is_over = false;
    (walk, Found { objects, is_over })
}

/// Returns a stored response for the list; `None` if it does not match the question or is not a
/// response.
fn show(question: &InventoryQuestion, object: &WalkedObject, now: UnixTime) -> Option<Value> {
    let (space, target) = target_of_key(&object.name)?;
    if !question.takes(&target) {
        return None;
    }
    let stored = StoredResponse::decode(&object.metadata)?;
    let facts = &stored.facts;
    let length = match &stored.pages {
        Some(pages) => Some(pages.content_len()),
        None => object.content_len,
    };
    let field = |name: HeaderName| {
        let value: Option<&http::HeaderValue> = stored.fields.get(name);
        // An origin may send fields of 64 KiB.
        let begin = |bytes: &[u8]| bytes[..bytes.len().min(FIELD_MAX)].to_vec();
        value.map(|value| String::from_utf8_lossy(&begin(value.as_bytes())).into_owned())
    };
    Some(json!({
        "url": target.to_string(),
        "space": match space {
            Space::Own => "proxy",
            Space::Site(_) => "site",
            Space::Mirror(_) => "mirror",
        },
        "status": facts.status.as_u16(),
        "content_bytes": length,
        "complete": object.is_complete,
        "received": facts.response_time.0,
        "age": facts.age(now).get(),
        "ttl": facts.ttl(now),
        "fresh": facts.is_fresh(now) && !object.is_made_stale,
        "varies": stored.row.is_some() || stored.table.is_some(),
        "content_type": field(CONTENT_TYPE),
        "etag": field(ETAG),
        "device": object.device,
    }))
}

/// Maximum shown bytes of a field, because an answer has to fit in memory.
const FIELD_MAX: usize = 256;
/// Steps in a row: as many reads, seldom more.
const STEPS: usize = 16;
/// Pauses are this many times as long as the reads before them.
const PAUSES_PER_READ: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of responses in an answer; a few more, if the last steps find several.
const OBJECTS_MAX: usize = 500;
const ANSWER_TIME: Duration = Duration::from_secs(2);
