//! Framing for tunnel bytes in a link stream: pieces with a length before each piece, and an end
//! mark for each direction.
//!
//! Used on both sides, above hyper: by `http2/tunnel` in `hashcache-wire` on the parent and
//! `channel` in `hashcache-upstream` on the child. hyper closes a tunnel's stream in the same way
//! if the owner has finished and if the owner was dropped, and treats a reset by the other side
//! (CANCEL) as the end. Therefore the stream's end is no proof that all bytes were received.
//!
//! | bytes | meaning |
//! |---|---|
//! | 2 | piece length, most significant byte first; 0: end mark |
//! | 1 to 65,535 | the piece |
//!
//! Invariant: a direction is cleanly closed only if the mark was received; without the mark,
//! reading fails with `ConnectionReset`. Cost: a copy of all sent bytes, two bytes per piece.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A byte stream inside of `S` with a separate end mark. If it is dropped before the shutdown, the
/// other side sees a broken stream.
#[derive(Debug)]
pub struct Pieces<S> {
    stream: S,
    incoming: Incoming,
    /// Bytes that must be sent before all others, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// The mark is in `unsent`, or was sent.
    is_marked: bool,
}

#[derive(Debug)]
enum Incoming {
    /// Bytes of a length, and how many of them have arrived.
    Length([u8; LENGTH_BYTES], usize),
    /// Missing bytes in a piece.
    Piece(usize),
    Ended,
}

impl<S> Pieces<S> {
    /// Reads pieces from `stream`.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            incoming: Incoming::Length([0; LENGTH_BYTES], 0),
            unsent: Vec::new(),
            sent: 0,
            is_marked: false,
        }
    }
}

impl<S: AsyncWrite + Unpin> Pieces<S> {
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|it| !it.is_empty()) {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        if self.sent > 0 {
            // A silent tunnel holds no buffer.
            self.unsent = Vec::new();
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pieces<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.incoming {
                Incoming::Ended => return Poll::Ready(Ok(())),
                Incoming::Length(length, have) => {
                    let mut missing = ReadBuf::new(&mut length[*have..]);
                    ready!(Pin::new(&mut this.stream).poll_read(cx, &mut missing))?;
                    let read = missing.filled().len();
                    if read == 0 {
                        return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                    }
                    *have += read;
                    if *have == LENGTH_BYTES {
                        this.incoming = match u16::from_be_bytes(*length) {
                            0 => Incoming::Ended,
                            length => Incoming::Piece(length.into()),
                        };
                    }
                }
                Incoming::Piece(missing) => {
                    let room = buffer.remaining().min(*missing);
                    if room == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(room));
                    ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
                    let read = piece.filled().len();
                    if read == 0 {
                        return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                    }
                    buffer.advance(read);
                    *missing -= read;
                    if *missing == 0 {
                        this.incoming = Incoming::Length([0; LENGTH_BYTES], 0);
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pieces<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_marked {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_unsent(cx))?;
        let bytes = &bytes[..bytes.len().min(PIECE_BYTES)];
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let length = u16::try_from(bytes.len()).expect("a piece is shorter than 64 KiB");
        let mut piece = Vec::with_capacity(LENGTH_BYTES + bytes.len());
        piece.extend(length.to_be_bytes());
        piece.extend_from_slice(bytes);
        let sent = ready!(Pin::new(&mut this.stream).poll_write(cx, &piece))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        if sent < piece.len() {
            (this.unsent, this.sent) = (piece, sent);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_unsent(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_unsent(cx))?;
        if !this.is_marked {
            this.is_marked = true;
            this.unsent = vec![0; LENGTH_BYTES];
            ready!(this.poll_unsent(cx))?;
        }
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

const LENGTH_BYTES: usize = 2;
/// The longest piece that is sent. hyper holds up to three pieces for a tunnel, besides the bytes
/// in h2.
pub(crate) const PIECE_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn every_byte_arrives_however_it_is_cut_and_the_end_after_them() {
        for room in [1, 2, 3, 100, 64 << 10] {
            let (near, far) = duplex(room);
            let (mut near, mut far) = (Pieces::new(near), Pieces::new(far));
            let sent: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
            let sending = async {
                near.write_all(&sent).await.unwrap();
                near.shutdown().await.unwrap();
            };
            let mut received = Vec::new();
            let (read, ()) = tokio::join!(far.read_to_end(&mut received), sending);
            read.unwrap();
            assert!(received == sent, "room for {room}");
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
            // The other direction is open.
            let sending = async {
                far.write_all(b"x").await.unwrap();
                far.flush().await.unwrap();
            };
            let (byte, ()) = tokio::join!(near.read_u8(), sending);
            assert_eq!(byte.unwrap(), b'x');
        }
    }

    #[tokio::test]
    async fn an_end_without_its_mark_is_a_reset_wherever_it_comes() {
        for sent in [
            &[][..],
            &[0],
            &[0, 5],
            &[0, 5, b'h', b'a', b'l'],
            &[0, 1, b'x'],
        ] {
            let (mut near, far) = duplex(64);
            near.write_all(sent).await.unwrap();
            drop(near);
            let mut received = Vec::new();
            let read = Pieces::new(far).read_to_end(&mut received).await;
            let kind = read.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::ConnectionReset, "{sent:?}");
        }
        let (near, far) = duplex(64);
        drop(Pieces::new(near));
        let read = Pieces::new(far).read(&mut [0]).await;
        assert!(read.is_err(), "dropped without a shutdown");
    }
}
