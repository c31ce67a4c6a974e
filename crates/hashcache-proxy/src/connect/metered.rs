//! The upstream side of a tunnel. If the client has limits, bytes from the upstream are counted and
//! slowed down.
//!
//! Made by `connect` for each tunnel; without limits it adds a comparison to each read.
//!
//! Invariant: nothing is read that may not be sent, so a slow tunnel holds no more memory than any
//! other. When a quota is used up, the tunnel fails like a tunnel with a broken upstream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hashcache_access::quota::{ContentFrom, RequestLimits, Throttle};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::tunnel::Side;

/// An upstream connection with the client's limits.
pub(crate) struct Metered<U> {
    upstream: U,
    /// Boxed, because most tunnels have no limits.
    meter: Option<Box<Meter>>,
}

struct Meter {
    limits: RequestLimits,
    throttle: Option<Throttle>,
}

impl<U> Metered<U> {
    pub(super) fn new(upstream: U, limits: Option<RequestLimits>) -> Self {
        let meter = |limits: RequestLimits| {
            let throttle = Throttle::new(&limits, ContentFrom::Origin);
            Box::new(Meter { limits, throttle })
        };
        let meter = limits.map(meter);
        Self { upstream, meter }
    }
}

impl Meter {
    /// Reads as much as the limits allow now.
    fn poll_read(
        &mut self,
        upstream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = match &mut self.throttle {
            Some(throttle) => ready!(throttle.poll_room(context)).map_err(io::Error::other)?,
            None => usize::MAX,
        };
        let room = room.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(upstream.poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        if let Some(throttle) = &mut self.throttle {
            throttle.spend(read);
        }
        self.limits.charge(u64::try_from(read).unwrap_or(u64::MAX));
        Poll::Ready(Ok(()))
    }
}

impl<U: AsyncRead + Unpin> AsyncRead for Metered<U> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let upstream = Pin::new(&mut this.upstream);
        match &mut this.meter {
            Some(meter) => meter.poll_read(upstream, context, buffer),
            None => upstream.poll_read(context, buffer),
        }
    }
}

impl<U: AsyncWrite + Unpin> AsyncWrite for Metered<U> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().upstream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().upstream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().upstream).poll_shutdown(context)
    }
}

impl<U: Side> Side for Metered<U> {
    fn reset(self) {
        self.upstream.reset();
    }
}
