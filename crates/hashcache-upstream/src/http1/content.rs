//! Response content in HTTP/1.1.
//!
//! Read by `ResponseBody` through `incoming`. The content reads directly from the connection, so
//! nothing is read ahead for a reader that waits.
//!
//! Invariant: content is complete according to the framing, or there is a `Failure`.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hashcache_base::failure::Failure;
use http_body::{Frame, SizeHint};
use tokio::task::coop;

use super::super::framing::Framing;
use super::chunks::Chunks;
use super::{Http1Conn, ReadFor};

/// Response content; `None` after the end.
#[derive(Debug)]
pub(in super::super) struct Http1Content(Option<(Http1Conn, Left)>);

/// The part of the content that was not returned yet.
#[derive(Debug)]
enum Left {
    Bytes(u64),
    Chunks(Chunks),
    UntilClose,
}

impl Http1Content {
    /// Empty content, used until the framing is known.
    pub(in super::super) fn none() -> Self {
        Self(None)
    }

    /// Content on `conn`, behind a head with this framing.
    pub(in super::super) fn new(conn: Http1Conn, framing: Framing) -> Self {
        let left = match framing {
            Framing::Empty | Framing::Length(0) => return Self(None),
            Framing::Length(length) => Left::Bytes(length),
            Framing::Chunked => Left::Chunks(Chunks::default()),
            Framing::UntilClose => Left::UntilClose,
        };
        Self(Some((conn, left)))
    }

    /// Releases the connection.
    pub(in super::super) fn close(&mut self) {
        self.0 = None;
    }

    /// Returns true if all content was returned.
    pub(in super::super) fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    pub(in super::super) fn size_hint(&self) -> SizeHint {
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some((_, Left::Bytes(left))) => SizeHint::with_exact(*left),
            Some((_, Left::Chunks(_) | Left::UntilClose)) => SizeHint::default(),
        }
    }

    /// Polls the next frame.
    pub(in super::super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        // A read may return thousands of chunks; without this a reader would keep the thread for
        // all of them.
        let turn = ready!(coop::poll_proceed(cx));
        while let Some((conn, left)) = &mut self.0 {
            let mut conn = conn.borrow_mut();
            let frame = left.take(&mut conn.read);
            let is_over = left.is_over();
            if is_over || !matches!(frame, Ok(None)) {
                drop(conn);
                if is_over {
                    self.0 = None;
                }
                turn.made_progress();
                return Poll::Ready(frame.transpose());
            }
            let filled = ready!(conn.poll_fill(cx, ReadFor::Content));
            drop(conn);
            match filled {
                Ok(1..) => {}
                Ok(0) if matches!(left, Left::UntilClose) => self.0 = None,
                Ok(0) | Err(_) => return Poll::Ready(Some(Err(Failure::ResponseIncomplete))),
            }
        }
        Poll::Ready(None)
    }
}

impl Left {
    /// Takes the next frame from `read`; `None`: more must be read.
    fn take(&mut self, read: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Failure> {
        let length = match self {
            // Chunked content may still have trailers to return when `read` is empty.
            Self::Chunks(chunks) => {
                let frame = chunks.next(read);
                return frame.map_err(|_| Failure::ResponseMalformed("chunks are damaged"));
            }
            _ if read.is_empty() => return Ok(None),
            Self::UntilClose => read.len(),
            Self::Bytes(left) => {
                let here = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
                *left -= here as u64;
                here
            }
        };
        Ok(Some(Frame::data(read.split_to(length).freeze())))
    }

    /// Returns true if all content was returned.
    fn is_over(&self) -> bool {
        match self {
            Self::Bytes(left) => *left == 0,
            Self::Chunks(chunks) => chunks.is_complete(),
            Self::UntilClose => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_that_arrive_with_the_last_data_are_a_frame_of_their_own() {
        let mut left = Left::Chunks(Chunks::default());
        let read = &mut BytesMut::from("2\r\nab\r\n0\r\nA: b\r\n\r\n");
        assert_eq!(left.take(read).unwrap().unwrap().into_data().unwrap(), "ab");
        assert!(read.is_empty() && !left.is_over());
        let trailers = left.take(read).unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["a"], "b");
        assert!(left.is_over());
    }
}
