//! Health of a device: recovering, in service or out of service.
//!
//! Shared by all code that reads or writes the device. `stripe` and `members` read the state; code
//! that meets a fatal device error takes the device out of service.
//!
//! Invariant: a device that is out of service stays out until the store is opened again.
//! Cost: a single load to read the state.

use std::io;
use std::path::PathBuf;

use crate::stats::Health;
use crate::sync::atomic::{AtomicU8, Ordering};

const RECOVERING: u8 = 0;
const IN_SERVICE: u8 = 1;
const OUT_OF_SERVICE: u8 = 2;

/// See the module head.
pub(crate) struct DeviceHealth {
    state: AtomicU8,
    /// Device path, for log messages.
    path: PathBuf,
    /// Called once, when the device fails, to wake the writer thread.
    on_failure: Box<dyn Fn() + Send + Sync>,
}

impl DeviceHealth {
    /// A device with an index that is not recovered yet.
    pub(crate) fn recovering(path: PathBuf, on_failure: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            state: AtomicU8::new(RECOVERING),
            path,
            on_failure: Box::new(on_failure),
        }
    }

    pub(crate) fn get(&self) -> Health {
        match self.state.load(Ordering::Acquire) {
            RECOVERING => Health::Recovering,
            IN_SERVICE => Health::InService,
            _ => Health::OutOfService,
        }
    }

    /// Puts the device in service, because the index is complete. No effect if the device has
    /// failed in the meantime.
    pub(crate) fn recovered(&self) {
        let from = RECOVERING;
        let _ = self
            .state
            .compare_exchange(from, IN_SERVICE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes the device out of service. Objects in memory are still served.
    pub(crate) fn fail(&self, what: &'static str, error: &io::Error) {
        if self.state.swap(OUT_OF_SERVICE, Ordering::AcqRel) != OUT_OF_SERVICE {
            let device = self.path.display();
            tracing::error!(%error, what, %device, "device taken out of service");
            (self.on_failure)();
        }
    }

    /// Takes the device out of service without a log message, when the writer thread stops.
    pub(crate) fn end(&self) {
        self.state.store(OUT_OF_SERVICE, Ordering::Release);
    }
}
