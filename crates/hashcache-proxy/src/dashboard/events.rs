//! Streams the page's parts as server-sent events.
//!
//! Made by `Dashboard::events`; the HTTP server reads it as the content of a response, so nothing
//! is computed while the client does not read.
//!
//! Invariant: a stream closes after [`EVENTS`] events, and releases its slot in the limit when it
//! is dropped.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Dashboard, page};

/// Response content for an EventSource.
#[derive(Debug)]
pub(crate) struct Events {
    dashboard: Arc<Dashboard>,
    interval: Interval,
    left: usize,
}

impl Events {
    pub(super) fn open(dashboard: &Arc<Dashboard>) -> Option<Self> {
        if !dashboard.open_stream() {
            return None;
        }
        let mut interval = interval(EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Self {
            dashboard: Arc::clone(dashboard),
            interval,
            left: EVENTS,
        })
    }

    fn event(&self) -> String {
        let parts = page::parts(&self.dashboard.moment()).into_iter();
        let parts: serde_json::Map<_, _> = parts
            .map(|(id, html)| (id.to_owned(), html.into()))
            .collect();
        // JSON has no line break, which would terminate the field.
        format!("retry: 500\ndata: {}\n\n", serde_json::Value::Object(parts))
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.interval.poll_tick(context));
        self.left -= 1;
        let event = self.event();
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.dashboard.close_stream();
    }
}

const EVERY: Duration = Duration::from_secs(2);
/// A stream with this length closes before a connection's time limit.
const EVENTS: usize = 25;
