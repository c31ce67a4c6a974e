//! A device for unit tests: runs actions before chosen calls, or shows all calls to a watcher.

#![cfg(not(loom))]

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{Device, MemoryDevice};

/// A call, before it is passed to the inner device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Offset and length.
    Read(u64, usize),
    /// Offset and length.
    Write(u64, usize),
    Sync,
}

impl Call {
    /// Returns true if the call writes any byte in `range`.
    pub(crate) fn writes_to(self, range: &Range<u64>) -> bool {
        matches!(self, Self::Write(at, length) if meets(range, at, length))
    }

    /// Returns true if the call reads any byte in `range`.
    pub(crate) fn reads_from(self, range: &Range<u64>) -> bool {
        matches!(self, Self::Read(at, length) if meets(range, at, length))
    }
}

fn meets(range: &Range<u64>, at: u64, length: usize) -> bool {
    at < range.end && range.start < at + length as u64
}

type IsIt = Box<dyn Fn(Call) -> bool + Send>;
type Act = Box<dyn FnOnce() + Send>;
type Watcher = Arc<dyn Fn(Call) + Send + Sync>;

/// See the module's head.
pub(crate) struct Hooked {
    pub(crate) inner: MemoryDevice,
    hooks: Mutex<Vec<(IsIt, Act)>>,
    watcher: Mutex<Option<Watcher>>,
}

impl Hooked {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::from_bytes(bytes),
            hooks: Mutex::default(),
            watcher: Mutex::default(),
        })
    }

    /// Runs `act` once, before the first call that matches `is_it`, on the thread that makes the
    /// call.
    pub(crate) fn before(
        &self,
        is_it: impl Fn(Call) -> bool + Send + 'static,
        act: impl FnOnce() + Send + 'static,
    ) {
        let hook: (IsIt, Act) = (Box::new(is_it), Box::new(act));
        self.hooks.lock().unwrap().push(hook);
    }

    /// Actions that have not run yet.
    pub(crate) fn hooks_left(&self) -> usize {
        self.hooks.lock().unwrap().len()
    }

    /// Shows each call to `watcher` before it is passed to the inner device.
    pub(crate) fn watch(&self, watcher: impl Fn(Call) + Send + Sync + 'static) {
        *self.watcher.lock().unwrap() = Some(Arc::new(watcher));
    }

    /// Removes the watcher.
    pub(crate) fn watch_no_more(&self) {
        *self.watcher.lock().unwrap() = None;
    }

    fn comes(&self, call: Call) {
        let watcher = self.watcher.lock().unwrap().clone();
        if let Some(watcher) = watcher {
            watcher(call);
        }
        let due = {
            let mut hooks = self.hooks.lock().unwrap();
            let due = hooks.iter().position(|(is_it, _)| is_it(call));
            due.map(|n| hooks.remove(n))
        };
        if let Some((_, act)) = due {
            act();
        }
    }
}

impl Device for Hooked {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.comes(Call::Read(offset, buffer.len()));
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.comes(Call::Write(offset, buffer.len()));
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.comes(Call::Sync);
        self.inner.sync()
    }
}
