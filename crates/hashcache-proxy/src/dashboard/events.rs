//! A stream of server-sent events with the parts of the page.
//!
//! Made by `Dashboard::events`, read by the HTTP server as the body of a response: while the client
//! does not read, nothing is computed.
//!
//! Invariant: a stream ends after [`EVENTS`], and gives its place back when it is dropped.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Dashboard, page};

/// The body of a response to an EventSource.
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
        // JSON has no line break, which would end the field.
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
/// A stream of these takes less time than a connection may.
const EVENTS: usize = 25;
