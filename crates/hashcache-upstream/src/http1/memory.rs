//! Memory of a connection for bytes that were read and not passed on yet.
//!
//! Invariant: memory is reserved in the budget before it is used. Memory for a large head counts in
//! the share of the client that made the request, because an origin may stop in the middle of the
//! head.

use hashcache::{Cache, Reservation};
use hashcache_base::share::{self, Share, ShareGuard};
use hashcache_http::Scheme;

use crate::gateway::GATEWAY_BYTES;

/// The read size on a connection, and the memory for reads.
pub(in super::super) struct ReadMemory {
    /// `None` without accounting.
    budget: Option<Budget>,
    /// Maximum bytes per read.
    read_max: usize,
}

struct Budget {
    cache: Cache,
    held: Reservation,
    /// The part of `held` that is for reads larger than the reads of a new connection.
    widened: u64,
    /// The client whose request is being answered.
    client: Option<Share>,
    /// Memory for the heads of the current response, beyond the memory that every connection has
    /// for heads.
    head: Option<Reservation>,
    /// The part of that memory that counts in the client's share.
    taken: Option<ShareGuard>,
    /// Bytes in those heads so far.
    head_bytes: u64,
    /// Size of the read buffer for these heads, if it is larger than the usual buffer.
    head_buffer: u64,
}

impl ReadMemory {
    /// Memory without accounting; reads stay small.
    pub(in super::super) fn uncounted() -> Self {
        Self {
            budget: None,
            read_max: READ_MIN,
        }
    }

    /// Memory for a connection with the smallest reads, opened for `client`; `None` if there is no
    /// memory.
    pub(in super::super) fn narrow(
        cache: &Cache,
        scheme: Scheme,
        client: Option<&Share>,
    ) -> Option<Self> {
        let below = match scheme {
            Scheme::Http => 0,
            Scheme::Https => TLS_BYTES,
            Scheme::Ftp | Scheme::Gopher => GATEWAY_BYTES,
        };
        let bytes = BESIDE_BYTES + below + buffered(READ_MIN);
        let budget = Budget {
            cache: cache.clone(),
            held: share::reserve_for(client, cache, bytes)?,
            widened: 0,
            client: None,
            head: None,
            taken: None,
            head_bytes: 0,
            head_buffer: 0,
        };
        Some(Self {
            budget: Some(budget),
            read_max: READ_MIN,
        })
    }

    /// Maximum bytes per read.
    pub(super) fn read_max(&self) -> usize {
        self.read_max
    }

    /// Memory that is held beyond the memory of a new connection, bytes.
    pub(super) fn extra_bytes(&self) -> u64 {
        let of =
            |budget: &Budget| budget.widened + budget.head.as_ref().map_or(0, Reservation::bytes);
        self.budget.as_ref().map_or(0, of)
    }

    /// Called before the head of the response to a request of `client`. The memory of the last head
    /// is released, because that response is over.
    pub(super) fn begin_head(&mut self, client: Option<&Share>) {
        self.leave_share();
        if let Some(budget) = &mut self.budget {
            budget.client = client.cloned();
            budget.head = None;
            (budget.head_bytes, budget.head_buffer) = (0, 0);
        }
    }

    /// Called when the response is complete: no client can make the connection keep this memory any
    /// more.
    pub(super) fn leave_share(&mut self) {
        if let Some(budget) = &mut self.budget {
            budget.client = None;
            budget.taken = None;
        }
    }

    /// Reserves memory for `bytes` more bytes of a head: they are copied for the fields, and once
    /// more when the response is stored. False if there is no memory.
    pub(super) fn head_grows(&mut self, bytes: usize) -> bool {
        self.budget.as_mut().is_none_or(|budget| {
            budget.head_bytes += bytes as u64;
            budget.hold_head()
        })
    }

    /// Reserves memory for a buffer of `bytes` for the rest of a head. False if there is no memory.
    pub(super) fn head_moves(&mut self, bytes: usize) -> bool {
        self.budget.as_mut().is_none_or(|budget| {
            budget.head_buffer = bytes as u64;
            budget.hold_head()
        })
    }

    /// A connection that fills the reads with content gets larger reads, which need fewer calls for
    /// the same bytes, if memory is not short.
    pub(super) fn widen(&mut self) {
        let wider = (self.read_max * 2).min(READ_MAX);
        let Some(budget) = self.budget.as_mut().filter(|_| wider > self.read_max) else {
            return;
        };
        let more = buffered(wider) - buffered(self.read_max);
        if let Some(more) = budget.cache.reserve_spare(more) {
            budget.widened += more.bytes();
            budget.held.join(more);
            self.read_max = wider;
        }
    }
}

impl Budget {
    /// Returns false if there is no memory for the head.
    fn hold_head(&mut self) -> bool {
        // Every connection has memory for this part.
        let beyond = self.head_bytes.saturating_sub(HEAD_FREE);
        let wanted = (RECEIVED_COPIES * beyond).max(self.head_buffer);
        let wanted = wanted.next_multiple_of(HEAD_GRAIN);
        let held = self.head.as_ref().map_or(0, Reservation::bytes);
        let Some(more) = wanted.checked_sub(held).filter(|more| *more > 0) else {
            return true;
        };
        if let Some(client) = &self.client {
            match (&mut self.taken, client.take(more)) {
                (_, None) => return false,
                (Some(taken), Some(more)) => taken.join(more),
                (taken, more) => *taken = more,
            }
        }
        let cache = &self.cache;
        let more = cache.reserve_bulk(more).or_else(|| cache.reserve(more));
        match (&mut self.head, more) {
            (_, None) => return false,
            (Some(head), Some(more)) => head.join(more),
            (head, more) => *head = more,
        }
        true
    }
}

/// Memory for reads of this size: the buffer that is being filled, and a buffer that the reader of
/// the content still has.
pub(in super::super) const fn buffered(read: usize) -> u64 {
    2 * read as u64
}

/// Size of the reads of a new connection, bytes: 8 KiB of content and the head.
pub(super) const READ_MIN: usize = 12 << 10;
/// Maximum read size.
pub(in super::super) const READ_MAX: usize = 64 << 10;
/// Other memory of a connection: the state, the response head.
const BESIDE_BYTES: u64 = 8 << 10;
/// The part of a head for which every connection has memory.
const HEAD_FREE: u64 = 8 << 10;
/// Memory of a head from upstream, as a multiple of the size: the bytes read, the fields, the
/// metadata and the buffer of the response each may be twice as large, and growing buffers leave
/// holes in the heap. With 2,500 clients and `--memory 64MiB`, resident memory peaked at 93 MiB
/// with 8 copies, at 75 to 88 with 10, and at 76 to 85 with 13.
const RECEIVED_COPIES: u64 = 13;
/// The step in which memory for heads grows.
const HEAD_GRAIN: u64 = 16 << 10;
/// Memory of TLS: the state, a received record and a record to send.
const TLS_BYTES: u64 = 40 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hashcache::Config;
    use hashcache::device::MemoryDevice;
    use hashcache_base::share::Shares;

    use super::*;

    fn cache() -> Cache {
        let config = Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
        };
        Cache::open(config).unwrap()
    }

    /// The read size after `reads` full ones.
    fn widened(memory: Option<ReadMemory>) -> usize {
        let mut memory = memory.unwrap_or_else(ReadMemory::uncounted);
        for _ in 0..10 {
            memory.widen();
        }
        let extra = buffered(memory.read_max()) - buffered(READ_MIN);
        assert_eq!(memory.extra_bytes(), extra);
        memory.read_max()
    }

    #[test]
    fn reads_grow_only_with_memory_that_is_set_aside_and_comes_back() {
        let cache = cache();
        let before = cache.stats().memory_used_bytes;
        let narrow = || ReadMemory::narrow(&cache, Scheme::Http, None);
        assert_eq!(widened(narrow()), READ_MAX);
        assert_eq!(cache.stats().memory_used_bytes, before);
        let limit = cache.stats().memory_limit_bytes;
        let _held = cache.reserve(limit / 8 * 5).unwrap();
        assert_eq!(widened(narrow()), READ_MIN);
        assert_eq!(widened(None), READ_MIN);
    }

    #[test]
    fn without_memory_there_is_no_connection() {
        let cache = cache();
        let mut held = Vec::new();
        while let Some(reservation) = cache.reserve(16 << 10) {
            held.push(reservation);
        }
        assert!(ReadMemory::narrow(&cache, Scheme::Http, None).is_none());
        drop(held);
        assert!(ReadMemory::narrow(&cache, Scheme::Http, None).is_some());
    }

    #[test]
    fn a_large_head_is_on_the_books_until_the_next_request() {
        let cache = cache();
        let mut memory = ReadMemory::narrow(&cache, Scheme::Http, None).unwrap();
        let before = cache.stats().memory_used_bytes;
        assert!(memory.head_grows(6 << 10));
        assert_eq!(memory.extra_bytes(), 0, "every connection has that much");
        assert!(memory.head_moves(76 << 10));
        assert!(
            memory.extra_bytes() >= 76 << 10,
            "the server may stop in its head"
        );
        assert!(memory.head_grows(51 << 10));
        assert!(memory.extra_bytes() >= RECEIVED_COPIES * (49 << 10));
        memory.begin_head(None);
        assert_eq!(
            (memory.extra_bytes(), cache.stats().memory_used_bytes),
            (0, before)
        );
        let mut held = Vec::new();
        while let Some(reservation) = cache.reserve(16 << 10) {
            held.push(reservation);
        }
        assert!(!memory.head_moves(76 << 10));
        memory.begin_head(None);
        assert!(!memory.head_grows(57 << 10));
    }

    #[test]
    fn large_heads_take_no_more_than_the_share_of_the_client_whose_requests_they_answer() {
        let cache = cache();
        let shares = Shares::new(16 << 20, 25);
        let [one, other] = [1, 2].map(|n| shares.of([192, 0, 2, n].into()));
        let mut stuck = Vec::new();
        let mut answered = |client: &Share| {
            let mut memory = ReadMemory::narrow(&cache, Scheme::Http, None).unwrap();
            memory.begin_head(Some(client));
            let has_room = memory.head_moves(76 << 10);
            stuck.push(memory);
            has_room
        };
        let had_room = (0..100).filter(|_| answered(&one)).count();
        assert_eq!(had_room, (4 << 20) / (80 << 10));
        assert!(answered(&other));
        // Memory that is kept when the response is over belongs to the pool.
        stuck[0].leave_share();
        assert!(stuck[0].extra_bytes() > 0);
        let mut memory = ReadMemory::narrow(&cache, Scheme::Http, None).unwrap();
        memory.begin_head(Some(&one));
        assert!(memory.head_moves(76 << 10));
    }
}
