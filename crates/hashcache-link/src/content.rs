//! Request content on the way from a core to the thread that drives the link.
//!
//! `linked` in `hashcache-upstream` sends frames into a [`LinkContent`], which hyper polls on the
//! other thread.
//!
//! Invariant: if the sender is dropped before the end, the content is an error, never a short body
//! that looks complete. Cost: one frame waits in the channel.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::{mpsc, oneshot};

/// An error in a client's content.
pub(crate) type ContentError = Box<dyn Error + Send + Sync>;

/// A message from the content sender.
#[derive(Debug)]
pub enum Piece {
    /// Content, or trailers.
    Frame(Frame<Bytes>),
    /// The client's content broke off.
    Failed(ContentError),
    /// The content is complete.
    End,
}

/// The request content that hyper polls.
#[derive(Debug, Default)]
pub struct LinkContent(Option<Streamed>);

#[derive(Debug)]
struct Streamed {
    pieces: mpsc::Receiver<Piece>,
    /// Resolves when hyper wants the first frame.
    wanted: Option<oneshot::Sender<()>>,
    ended: bool,
}

/// The sending side of a [`LinkContent`].
#[derive(Debug)]
pub struct ContentSender {
    /// For the content pieces.
    pub pieces: mpsc::Sender<Piece>,
    /// An error means that no frame will be wanted.
    pub wanted: oneshot::Receiver<()>,
}

impl LinkContent {
    /// Creates content that arrives while it is polled, and the sender for it.
    pub fn streamed() -> (Self, ContentSender) {
        let (sender, pieces) = mpsc::channel(1);
        let (want, wanted) = oneshot::channel();
        let streamed = Streamed {
            pieces,
            wanted: Some(want),
            ended: false,
        };
        let sender = ContentSender {
            pieces: sender,
            wanted,
        };
        (Self(Some(streamed)), sender)
    }
}

impl Body for LinkContent {
    type Data = Bytes;
    type Error = ContentError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        let Some(streamed) = &mut self.get_mut().0 else {
            return Poll::Ready(None);
        };
        if streamed.ended {
            return Poll::Ready(None);
        }
        if let Some(wanted) = streamed.wanted.take() {
            // An error means that the sender was dropped, which the channel shows too.
            let _ = wanted.send(());
        }
        let piece = ready!(streamed.pieces.poll_recv(cx));
        streamed.ended = !matches!(piece, Some(Piece::Frame(_)));
        Poll::Ready(match piece {
            Some(Piece::Frame(frame)) => Some(Ok(frame)),
            Some(Piece::Failed(error)) => Some(Err(error)),
            Some(Piece::End) => None,
            None => Some(Err("the request was given up".into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|streamed| streamed.ended)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn content_is_whole_only_if_its_sender_says_so() {
        let data = || Piece::Frame(Frame::data(Bytes::from_static(b"half")));
        let (content, sender) = LinkContent::streamed();
        let sending = async {
            sender.wanted.await.unwrap();
            sender.pieces.send(data()).await.unwrap();
            sender.pieces.send(Piece::End).await.unwrap();
        };
        let (all, ()) = tokio::join!(content.collect(), sending);
        assert_eq!(all.unwrap().to_bytes(), "half");
        let (content, sender) = LinkContent::streamed();
        let sending = async move { sender.pieces.send(data()).await.unwrap() };
        let (all, ()) = tokio::join!(content.collect(), sending);
        assert!(all.is_err());
        assert!(LinkContent::default().is_end_stream());
    }

    #[tokio::test]
    async fn a_sender_hears_that_its_content_is_not_wanted() {
        let (content, sender) = LinkContent::streamed();
        drop(content);
        assert!(sender.wanted.await.is_err());
    }
}
