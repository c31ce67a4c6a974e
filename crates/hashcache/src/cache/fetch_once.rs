//! One fetch for many callers: the first caller that misses fetches, later callers share the
//! answer.
//!
//! ```text
//! caller ─┬─ the object is hot ──────────────────────▶ answer
//!         ├─ no leader yet ─▶ look up ─▶ fetch ─▶ put ─▶ answer, for all callers
//!         └─ there is a leader ─▶ wait ─┬────────────▶ answer
//!                                       └─ the leader was dropped: start again
//! ```
//!
//! Invariants: a name has at most one leader, with one exception. After a put or remove of the
//! name, or a ban that may match it, later callers do not join a fetch that started before: a
//! removed object must not answer a later request. A leader that is dropped, or panics, leaves no
//! caller waiting. The callers that wait share an error; the error is not kept for later callers.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Cache, Hit, Intent, Lookup, PendingLookup, Put, read};
use crate::completion::{Outcome, Promise, promise};
use crate::error::{PutError, ReadError};
use crate::key::KeyHash;
use crate::object::Version;
use crate::shard::PutToken;
use crate::stripe::Stripe;

/// An object as a fetch returns it.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Metadata and other fields to put with the content.
    pub put: Put,
    /// The whole content. Use a [`super::Writer`] for content that is too large for memory.
    pub content: Bytes,
}

/// The answer of [`Cache::get_or_fetch`].
#[derive(Clone)]
pub enum Answer {
    /// The object was stored.
    Stored(Hit),
    /// The object was fetched, by this caller or by another.
    Fetched {
        /// The fetched object.
        object: Arc<Fetched>,
        /// The version if the object is stored now, otherwise the reason why not.
        stored: Result<Version, PutError>,
    },
}

impl Answer {
    /// The metadata of the object.
    pub fn metadata(&self) -> &Bytes {
        match self {
            Self::Stored(hit) => hit.metadata(),
            Self::Fetched { object, .. } => &object.put.metadata,
        }
    }

    /// The content. Blocks if the content is on disk; to wait otherwise, use [`Hit::reader`].
    ///
    /// # Errors
    /// If stored content has been lost meanwhile. Fetched content is in memory, so it never is.
    pub fn read_to_vec(&self) -> Result<Vec<u8>, ReadError> {
        match self {
            Self::Stored(hit) => hit.reader(0..u64::MAX).read_to_vec(),
            Self::Fetched { object, .. } => Ok(object.content.to_vec()),
        }
    }
}

/// A fetch failed: the same error for all callers that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the object could not be fetched")]
pub struct FetchError(#[source] pub Arc<dyn Error + Send + Sync>);

impl Cache {
    /// Looks up an object; fetches and puts it if it is not stored whole. Only one of the callers
    /// for a name, the leader, looks up and fetches; the others wait for it, so `fetch` may not be
    /// called.
    ///
    /// If the put is refused, the call still succeeds: [`Answer::Fetched`] contains the reason. A
    /// leader that is neither polled nor dropped blocks the other callers. A fetch that requests
    /// its own name waits for itself.
    ///
    /// Takes no extra lock if the object is hot, otherwise twice a lock that all names share. For a
    /// large object each span is looked up in the index.
    pub fn get_or_fetch<F, T, E>(&self, name: &[u8], fetch: F) -> GetOrFetch<F, T>
    where
        F: FnOnce() -> T,
        T: Future<Output = Result<Fetched, E>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        GetOrFetch {
            cache: self.clone(),
            key: self.secret().name(name),
            name: Bytes::copy_from_slice(name),
            fetch: Some(fetch),
            stage: FetchStage::Asked,
        }
    }
}

type SharedAnswer = Option<Result<Answer, FetchError>>;

/// The leader's work in progress, as other callers see it.
struct SharedFetch {
    /// Marked as superseded if the name was put or removed since the fetch started.
    token: Arc<PutToken>,
    /// The stripe of the name when the fetch started.
    stripe: Arc<Stripe>,
    outcome: Outcome<SharedAnswer>,
}

/// The fetches in progress: one entry a leader.
#[derive(Default)]
pub(super) struct SharedFetches(Mutex<HashMap<Bytes, Arc<SharedFetch>>>);

impl SharedFetches {
    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Arc<SharedFetch>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// The right, and the duty, to answer for a name.
struct Lead {
    cache: Cache,
    key: KeyHash,
    name: Bytes,
    fetch_entry: Arc<SharedFetch>,
    promise: Option<Promise<SharedAnswer>>,
}

impl Lead {
    /// Joins the leader of `name`, or becomes the leader.
    fn take(cache: &Cache, key: KeyHash, name: &Bytes) -> Result<Self, Outcome<SharedAnswer>> {
        let mut shared_fetches = cache.inner.shared_fetches.lock();
        let stripe = cache.stripe(key);
        if let Some(fetch_entry) = shared_fetches.get(name)
            && !fetch_entry.token.superseded.load(Ordering::Acquire)
            && !fetch_entry.stripe.bans.may_bar(name, fetch_entry.token.version)
            // Once the other devices have taken over from a failed device, a leader on the failed
            // device does not learn of later puts and removes.
            && Arc::ptr_eq(&fetch_entry.stripe, stripe)
        {
            return Err(fetch_entry.outcome.clone());
        }
        let (promise, outcome) = promise();
        let token = stripe.begin(key);
        let fetch_entry = Arc::new(SharedFetch {
            stripe: Arc::clone(stripe),
            token,
            outcome,
        });
        shared_fetches.insert(name.clone(), Arc::clone(&fetch_entry));
        drop(shared_fetches);
        Ok(Self {
            cache: cache.clone(),
            key,
            name: name.clone(),
            fetch_entry,
            promise: Some(promise),
        })
    }

    fn answer(mut self, answer: Result<Answer, FetchError>) -> Result<Answer, FetchError> {
        let promise = self.promise.take();
        // Remove the entry first, so that no caller can join any more; then all joined callers get
        // the answer.
        drop(self);
        if let Some(promise) = promise {
            promise.set(Some(answer.clone()));
        }
        answer
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let mut shared_fetches = self.cache.inner.shared_fetches.lock();
        let own = |fetch_entry: &Arc<SharedFetch>| Arc::ptr_eq(fetch_entry, &self.fetch_entry);
        if shared_fetches.get(&self.name).is_some_and(own) {
            shared_fetches.remove(&self.name);
        }
        drop(shared_fetches);
        self.fetch_entry
            .stripe
            .end_put(self.key, &self.fetch_entry.token);
    }
}

enum FetchStage<T> {
    Asked,
    Waiting(Outcome<SharedAnswer>),
    Looking(Lead, PendingLookup),
    Fetching(Lead, Result<Intent, PutError>, Pin<Box<T>>),
    Answered,
}

/// A lookup or fetch in progress, see [`Cache::get_or_fetch`].
#[must_use = "nothing is looked for before it is waited for"]
pub struct GetOrFetch<F, T> {
    cache: Cache,
    key: KeyHash,
    name: Bytes,
    fetch: Option<F>,
    stage: FetchStage<T>,
}

/// The fetch itself is pinned in a box.
impl<F, T> Unpin for GetOrFetch<F, T> {}

impl<F, T, E> GetOrFetch<F, T>
where
    F: FnOnce() -> T,
    T: Future<Output = Result<Fetched, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    /// Blocks until the answer is available.
    ///
    /// # Errors
    /// The fetch failed: the fetch by this caller, or the fetch by the leader.
    pub fn wait(mut self) -> Result<Answer, FetchError> {
        read::wait(|context| Pin::new(&mut self).poll(context))
    }

    fn asked(&mut self) -> Step<T> {
        let hot = self.cache.stripe(self.key).hot_head(self.key, &self.name);
        if let Some(hit) = hot.map(|head| Hit::new(self.cache.of_this_thread(), head))
            && is_whole(&hit)
        {
            return Step::Done(Ok(Answer::Stored(hit)));
        }
        Step::Go(match Lead::take(&self.cache, self.key, &self.name) {
            Err(outcome) => FetchStage::Waiting(outcome),
            // Look up only as the leader, so that the object that the last leader has put is found.
            Ok(lead) => match self.cache.get(&self.name) {
                Lookup::Pending(pending) => FetchStage::Looking(lead, pending),
                Lookup::Hit(hit) => return self.found(lead, Some(hit)),
                Lookup::Miss => return self.found(lead, None),
            },
        })
    }

    fn found(&mut self, lead: Lead, hit: Option<Hit>) -> Step<T> {
        if let Some(hit) = hit.filter(is_whole) {
            return Step::Done(lead.answer(Ok(Answer::Stored(hit))));
        }
        let fetch = self.fetch.take().expect("a caller leads to the end, once");
        // Before the fetch: an object that is put or removed after this is newer than the fetched
        // object.
        let intent = self.cache.intend(&self.name);
        Step::Go(FetchStage::Fetching(lead, intent, Box::pin(fetch())))
    }

    fn step(&mut self, stage: FetchStage<T>, context: &mut Context<'_>) -> Step<T> {
        match stage {
            FetchStage::Asked => self.asked(),
            FetchStage::Waiting(mut outcome) => match Pin::new(&mut outcome).poll(context) {
                Poll::Ready(Some(answer)) => Step::Done(answer),
                Poll::Ready(None) => Step::Go(FetchStage::Asked),
                Poll::Pending => Step::Wait(FetchStage::Waiting(outcome)),
            },
            FetchStage::Looking(lead, mut pending) => match Pin::new(&mut pending).poll(context) {
                Poll::Ready(hit) => self.found(lead, hit),
                Poll::Pending => Step::Wait(FetchStage::Looking(lead, pending)),
            },
            FetchStage::Fetching(lead, intent, mut fetch) => match fetch.as_mut().poll(context) {
                Poll::Ready(Ok(fetched)) => Step::Done(lead.answer(Ok(put(intent, fetched)))),
                Poll::Ready(Err(error)) => {
                    let error = FetchError(Arc::from(error.into()));
                    Step::Done(lead.answer(Err(error)))
                }
                Poll::Pending => Step::Wait(FetchStage::Fetching(lead, intent, fetch)),
            },
            FetchStage::Answered => panic!("polled after it had answered"),
        }
    }
}

enum Step<T> {
    Go(FetchStage<T>),
    Wait(FetchStage<T>),
    Done(Result<Answer, FetchError>),
}

impl<F, T, E> Future for GetOrFetch<F, T>
where
    F: FnOnce() -> T,
    T: Future<Output = Result<Fetched, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = Result<Answer, FetchError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // Taken out during the step: if the fetch panics, the lead is dropped with it.
        let mut stage = std::mem::replace(&mut this.stage, FetchStage::Answered);
        loop {
            match this.step(stage, context) {
                Step::Go(next) => stage = next,
                Step::Wait(next) => {
                    this.stage = next;
                    return Poll::Pending;
                }
                Step::Done(answer) => return Poll::Ready(answer),
            }
        }
    }
}

/// Returns true if all content is stored, as far as memory knows.
fn is_whole(hit: &Hit) -> bool {
    hit.is_complete() && hit.holes(0..u64::MAX).is_empty()
}

fn put(intent: Result<Intent, PutError>, fetched: Fetched) -> Answer {
    let store = || {
        let length = Some(fetched.content.len() as u64);
        let put = fetched.put.clone();
        let mut writer = intent?.writer(Put { length, ..put })?;
        writer.write(&fetched.content)?;
        writer.commit()
    };
    let stored = store();
    let object = Arc::new(fetched);
    Answer::Fetched { object, stored }
}
