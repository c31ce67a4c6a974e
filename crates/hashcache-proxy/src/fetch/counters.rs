//! Values that a fetch shares with the response to its client: a byte count, and the trailers.
//!
//! Written by `fetch` and by the bodies of `upstream`, read by `request` for the log entry. Both
//! run on one core, so neither needs a lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::HeaderMap;

/// Bytes received from upstream for a request, counted as they arrive.
pub(crate) type ByteCount = Rc<Cell<u64>>;

/// The trailers of a response that is being stored, available when its content has ended.
pub(crate) type Trailers = Rc<RefCell<Option<HeaderMap>>>;
