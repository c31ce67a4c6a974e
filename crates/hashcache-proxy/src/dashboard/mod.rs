//! The dashboard: shows the proxy's activity and savings on a single page of the admin listener.
//!
//! `admin` checks the client and calls this. `view` and `rates` have the figures, `page` writes
//! them as HTML and `events` sends them again every two seconds; `json` is for `hashcache top`.
//!
//! Invariants: the page loads nothing from other hosts and runs only its own script. Names from the
//! network are escaped. At most [`STREAMS`] streams are open, and each closes within a minute; a
//! browser then opens the next stream.
//! Cost: figures are collected at most once a second, and only while a client reads them.

mod amounts;
mod events;
mod json;
mod page;
mod rates;
mod view;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;
use tokio::time::Instant;

pub(crate) use self::events::Events;
use self::rates::Moment;
use self::view::View;
use crate::history::History;
use crate::metrics::Exposition;

/// Sources for the dashboard.
#[derive(Debug)]
pub(crate) struct Dashboard {
    exposition: Exposition,
    history: Arc<History>,
    buttons: Buttons,
    latest: Mutex<Option<Arc<Moment>>>,
    streams: AtomicUsize,
}

/// The buttons with which the page changes the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buttons {
    Shown,
    /// No token is configured, so every change would be refused.
    Hidden,
}

impl Dashboard {
    pub(crate) fn new(
        exposition: Exposition,
        history: Arc<History>,
        buttons: Buttons,
    ) -> Arc<Self> {
        Arc::new(Self {
            exposition,
            history,
            buttons,
            latest: Mutex::default(),
            streams: AtomicUsize::new(0),
        })
    }

    /// Returns the figures, at most a second old.
    fn moment(&self) -> Arc<Moment> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(moment) = &*latest
            && now - moment.view.taken < FRESH
            && moment.view.live.offline_mode == self.exposition.offline_mode()
        {
            return Arc::clone(moment);
        }
        let view = View {
            taken: now,
            live: self.exposition.live(),
            overview: self.history.overview(),
            buttons: self.buttons,
        };
        let moment = Arc::new(Moment::after(latest.as_deref(), view));
        Arc::clone(latest.insert(moment))
    }

    /// Returns the page.
    pub(crate) fn page(&self) -> Response<Bytes> {
        let html = page::document(&self.moment());
        response("text/html; charset=utf-8", html)
    }

    /// Returns the figures as JSON.
    pub(crate) fn json(&self) -> Value {
        self.moment().to_json()
    }

    /// Opens a stream with figures; `None` if too many are open.
    pub(crate) fn events(self: &Arc<Self>) -> Option<Events> {
        Events::open(self)
    }

    /// Counts a new stream; returns false at the limit.
    fn open_stream(&self) -> bool {
        let more = |open: usize| (open < STREAMS).then_some(open + 1);
        self.streams.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn close_stream(&self) {
        self.streams.fetch_sub(1, Relaxed);
    }
}

/// Returns the page's script.
pub(crate) fn script() -> Response<Bytes> {
    response("text/javascript; charset=utf-8", SCRIPT.to_owned())
}

/// Returns the page's style sheet.
pub(crate) fn style() -> Response<Bytes> {
    response("text/css; charset=utf-8", STYLE.to_owned())
}

/// Adds the fields for a response with a stream of figures.
pub(crate) fn events_head<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    set_fields(response.headers_mut(), "text/event-stream");
    response
}

/// Refuses a stream beyond the limit.
pub(crate) fn too_many() -> Response<Bytes> {
    let text = format!("{STREAMS} pages are open; close one\n");
    let mut response = response("text/plain; charset=utf-8", text);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let retry = HeaderValue::from_static("5");
    response.headers_mut().insert(header::RETRY_AFTER, retry);
    response
}

fn response(kind: &'static str, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    set_fields(response.headers_mut(), kind);
    response
}

fn set_fields(fields: &mut HeaderMap, kind: &'static str) {
    let all = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, a browser hides the Origin of a form even from the same site.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in all {
        fields.insert(name, HeaderValue::from_static(value));
    }
}

const SCRIPT: &str = include_str!("dashboard.js");
const STYLE: &str = include_str!("dashboard.css");
/// Allows script, style and form only from this listener; no image, font or frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const FRESH: Duration = Duration::from_secs(1);
/// Maximum open streams.
const STREAMS: usize = 8;

#[cfg(test)]
pub(crate) use self::tests::dashboard_of_tests;
#[cfg(test)]
mod tests;
