//! What a fetch and the answer to its client share: a byte count, and the trailers.
//!
//! Written by `fetch` and `upstream` bodies, read by `request` when its log entry is due. Both live
//! on one core, so neither needs a lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::HeaderMap;

/// Bytes received from upstream on behalf of a request, counted while they arrive.
pub(crate) type ByteCount = Rc<Cell<u64>>;

/// The trailers of a response that is being stored, once its content has ended.
pub(crate) type Trailers = Rc<RefCell<Option<HeaderMap>>>;
