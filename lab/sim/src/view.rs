//! Which requests of a trace count, and how large their objects are.
//!
//! A trace does not have the sizes of all requests: where the browser's own cache has answered, its
//! log has no size, and a response 304 has no content. The authors of the traces use two views, and
//! so do `stats` and `replay`.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::source::{Source, SourceError, object_of};
use crate::trace::Request;

/// See the module's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// Requests whose size is in the trace, each with that size: the requests that a proxy gets
    #[default]
    Proxy,
    /// All requests, each with the last size in the trace for its URL: the requests that a proxy
    /// would get from clients without caches of their own. Reads the trace twice
    Big,
}

impl View {
    /// Its one spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Big => "big",
        }
    }
}

/// A request that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is requested.
    pub object: u64,
    /// How large it is, bytes.
    pub bytes: u64,
}

/// Turns requests of one view into accesses.
pub struct Sizes {
    /// The last size of each object; `None`: that of the request counts.
    last: Option<HashMap<u64, u64>>,
}

impl Sizes {
    /// Reads the trace as often as the view needs before it can be used: never or once.
    ///
    /// # Errors
    /// Those of the source.
    pub fn new(view: View, source: &mut dyn Source) -> Result<Self, SourceError> {
        if view == View::Proxy {
            return Ok(Self { last: None });
        }
        let mut last = HashMap::new();
        source.read(&mut |request| {
            if let Some(bytes) = request.bytes {
                last.insert(object_of(request.name), bytes);
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self { last: Some(last) })
    }

    /// The access; `None` if the request does not count, because no size is known.
    pub fn access(&self, request: &Request<'_>) -> Option<Access> {
        let object = object_of(request.name);
        let bytes = match &self.last {
            Some(last) => last.get(&object).copied(),
            None => request.bytes,
        };
        bytes.map(|bytes| Access { object, bytes })
    }
}
