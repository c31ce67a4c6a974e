//! Writes content from upstream into the store.
//!
//! Called by `pump` and `range_fetch`. Invariant: a fetch waits for memory or the disk no longer
//! than the readers would.

use std::time::Duration;

use hashcache::{PutError, Writer};
use hashcache_store::follow::IsEnd;
use hashcache_store::put::{ContentWriter, PageWriter};
use tokio::time::{Instant, timeout};

use crate::worker::Worker;

/// Time that a fetch waits for the disk before the object bypasses the store.
const STORE_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that a fetch that bypasses the store may run ahead of the slowest reader.
pub(super) const BYPASS_AHEAD: u64 = 256 << 10;
/// A fetch without readers runs to completion if at most this much remains.
pub(super) const NEARLY_DONE: u64 = 1 << 20;

/// Writes `data`, in the form in which the content is stored; false if the fetch must stop.
pub(super) async fn take_content(
    worker: &Worker,
    writer: &mut ContentWriter,
    mut data: &[u8],
) -> bool {
    let pages = match writer {
        ContentWriter::Plain(writer) => return take(worker, writer, data).await,
        ContentWriter::Pages(pages) => pages,
    };
    while !data.is_empty() {
        data = &data[pages.fill(data)..];
        if !take_page(worker, pages, IsEnd::No).await {
            return false;
        }
    }
    true
}

/// Writes the rest after the last content byte; false if the fetch must stop.
pub(super) async fn take_end(worker: &Worker, writer: &mut ContentWriter) -> bool {
    match writer {
        ContentWriter::Plain(_) => true,
        ContentWriter::Pages(pages) => take_page(worker, pages, IsEnd::Yes).await,
    }
}

async fn take_page(worker: &Worker, pages: &mut PageWriter, end: IsEnd) -> bool {
    let packed = match worker.packer.borrow_mut().as_mut() {
        Some((packer, _)) => pages.pack(packer, end),
        None => Err("there is no packer"),
    };
    match packed {
        Ok(false) => true,
        Ok(true) => {
            let (writer, stored) = pages.parts();
            let is_taken = take(worker, writer, stored).await;
            if is_taken {
                pages.note_stored();
            }
            is_taken
        }
        Err(reason) => {
            tracing::debug!(reason, "a page could not be packed");
            false
        }
    }
}

/// Writes `data`; false if the fetch must stop.
pub(super) async fn take(worker: &Worker, writer: &mut Writer, data: &[u8]) -> bool {
    let since = Instant::now();
    loop {
        match writer.write(data) {
            Ok(()) => return true,
            Err(PutError::Full) => {}
            Err(_) => return false,
        }
        let waited = since.elapsed();
        if waited >= STORE_PATIENCE && writer.is_stored() {
            writer.bypass();
            continue;
        }
        // Many large transfers at once may leave this transfer without memory for a long time. It
        // holds almost nothing meanwhile, so it may wait as long as a reader waits for it.
        let nobody = writer.stream().followers() == 0;
        if waited >= worker.limits.progress_time * if nobody { 1 } else { 10 } {
            return false;
        }
        let patience = if writer.is_stored() {
            STORE_PATIENCE.saturating_sub(waited)
        } else {
            // A new wait keeps the place in the queue; the timeout only serves to notice that the
            // readers have left.
            Duration::from_secs(5)
        };
        let _ = timeout(patience, writer.released()).await;
    }
}
