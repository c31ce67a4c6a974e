//! An origin with objects in editions, and the objects that each kind of purge names.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::{BodyEnd, Response};
use crate::origin::{Origin, RawRequest};
use crate::script::{Gate, Script};

/// Purge selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Url,
    Prefix,
    Group,
    Label,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Url, Self::Prefix, Self::Group, Self::Label];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Url => "URL",
            Self::Prefix => "prefix",
            Self::Group => "cache group",
            Self::Label => "label",
        }
    }
}

#[derive(Default)]
struct State {
    edition: AtomicU64,
    /// Number in each path, group and label; a new number separates the objects in a part from the
    /// objects in earlier parts.
    shelf: AtomicU64,
    asked: AtomicUsize,
    sent: AtomicUsize,
    /// The next response opens the first of these gates and waits for the second.
    held: Mutex<Option<(Gate, Gate)>>,
}

/// The origin; see the module head.
pub(super) struct Site {
    origin: Origin,
    state: Arc<State>,
}

/// The object that a purge by URL names.
const ONE: usize = 3;

impl Site {
    pub(super) async fn start() -> io::Result<Self> {
        let state = Arc::new(State::default());
        let answering = Arc::clone(&state);
        let origin = Origin::start(move |request: &RawRequest| answer(&answering, request)).await?;
        Ok(Self { origin, state })
    }

    /// Returns the current edition.
    pub(super) fn edition(&self) -> u64 {
        self.state.edition.load(Ordering::SeqCst)
    }

    /// Replaces all objects by a new edition.
    pub(super) fn bring_out(&self) {
        self.state.edition.fetch_add(1, Ordering::SeqCst);
    }

    /// Moves to new objects: URLs, groups and labels made after this call have a new shelf number.
    pub(super) fn another_shelf(&self) {
        self.state.shelf.fetch_add(1, Ordering::SeqCst);
    }

    fn shelf(&self) -> u64 {
        self.state.shelf.load(Ordering::SeqCst)
    }

    /// GET requests received.
    pub(super) fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// Objects sent in full, that is, without the 304 responses.
    pub(super) fn sent(&self) -> usize {
        self.state.sent.load(Ordering::SeqCst)
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        self.origin.complaints()
    }

    /// Holds back the next response: it has the edition that is current at the time of the request,
    /// opens `arrived` when the request has arrived, and waits for `leave`.
    pub(super) fn hold(&self, arrived: &Gate, leave: &Gate) {
        let held = (arrived.clone(), leave.clone());
        *lock(&self.state.held) = Some(held);
    }

    pub(super) fn url(&self, n: usize) -> String {
        let street = if n.is_multiple_of(2) { "even" } else { "odd" };
        self.origin.url(&format!("/{}/{street}/{n}", self.shelf()))
    }

    /// Target of a POST; the response invalidates the group that a purge by group names.
    pub(super) fn form(&self) -> String {
        self.origin.url(&format!("/{}/form/0", self.shelf()))
    }

    /// Returns the first object that this kind of purge names.
    pub(super) fn named(&self, kind: Kind) -> usize {
        (0..)
            .find(|n| self.is_named(kind, *n))
            .expect("each names some")
    }

    /// Returns true if a purge of this kind names object `n`.
    pub(super) fn is_named(&self, kind: Kind, n: usize) -> bool {
        match kind {
            Kind::Url => n == ONE,
            Kind::Prefix => n.is_multiple_of(2),
            Kind::Group => n % 3 == 1,
            Kind::Label => n % 4 == 2,
        }
    }

    /// URL and fields for the PURGE request.
    pub(super) fn purge(&self, kind: Kind) -> (String, Vec<(&'static str, String)>) {
        let shelf = self.shelf();
        match kind {
            Kind::Url => (self.url(ONE), vec![]),
            Kind::Prefix => (self.origin.url(&format!("/{shelf}/even/*")), vec![]),
            Kind::Group => {
                let group = format!("\"{shelf} group 1\"");
                (self.origin.url("/"), vec![("Cache-Groups", group)])
            }
            Kind::Label => {
                let label = format!("none label-{shelf}-2");
                (self.origin.url("/"), vec![("Surrogate-Key", label)])
            }
        }
    }

    /// Returns the edition in a response if it is a complete response with object `n`.
    pub(super) fn edition_in(&self, n: usize, response: &Response) -> Option<u64> {
        if response.status != 200 || response.end != BodyEnd::Complete {
            return None;
        }
        let text = std::str::from_utf8(&response.body).ok()?;
        let (edition, rest) = text.split_once(' ')?;
        let edition = edition.parse().ok()?;
        (rest == rest_of(self.shelf(), n)).then_some(edition)
    }
}

fn rest_of(shelf: u64, n: usize) -> String {
    format!("{shelf} {n} {}", "x".repeat(500 + n * 37 % 3_000))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(state: &State, request: &RawRequest) -> Script {
    let mut parts = request.target().split('/').skip(1);
    let shelf = parts.next().and_then(|it| it.parse::<u64>().ok());
    let n = parts.nth(1).and_then(|it| it.parse::<usize>().ok());
    let Some((shelf, n)) = shelf.zip(n) else {
        return Script::response(404, &[], "");
    };
    if request.method() != "GET" {
        let group = format!("\"none\", \"{shelf} group 1\"");
        let fields = [("Cache-Group-Invalidation", &*group)];
        return Script::response(200, &fields, "done");
    }
    state.asked.fetch_add(1, Ordering::SeqCst);
    let edition = state.edition.load(Ordering::SeqCst);
    let (tag, group, label) = (
        format!("\"{edition}\""),
        format!("\"{shelf} group {}\", \"all\"", n % 3),
        format!("label-{shelf}-{} all", n % 4),
    );
    let fields = [
        ("Cache-Control", "max-age=86400"),
        ("ETag", &*tag),
        ("Cache-Groups", &*group),
        ("Surrogate-Key", &*label),
    ];
    let response = if request.field("If-None-Match") == Some(&tag) {
        Script::new().head(304, &fields)
    } else {
        state.sent.fetch_add(1, Ordering::SeqCst);
        let body = format!("{edition} {}", rest_of(shelf, n));
        Script::response(200, &fields, body)
    };
    match lock(&state.held).take() {
        Some((arrived, leave)) => Script::new().open(&arrived).wait(&leave).then(response),
        None => response,
    }
}
