//! Whether a device is in service.
//!
//! Shared by everything that reads or writes the device. `stripe` and `members` ask; the code that
//! meets an error which the device does not get over takes it out.
//!
//! Invariant: a device that is out of service stays out until the store is opened again.
//! Cost: one load to ask.

use std::io;
use std::path::PathBuf;

use crate::stats::Health;
use crate::sync::atomic::{AtomicU8, Ordering};

const RECOVERING: u8 = 0;
const IN_SERVICE: u8 = 1;
const OUT_OF_SERVICE: u8 = 2;

/// See the module's head.
pub(crate) struct DeviceHealth {
    state: AtomicU8,
    /// What the device is called in the log.
    path: PathBuf,
    /// Called once, when the device fails: its writing thread must look again.
    on_failure: Box<dyn Fn() + Send + Sync>,
}

impl DeviceHealth {
    /// Of a device whose index is not known yet.
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

    /// The index is known. No effect on a device that has failed meanwhile.
    pub(crate) fn recovered(&self) {
        let from = RECOVERING;
        let _ = self
            .state
            .compare_exchange(from, IN_SERVICE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes the device out; what is in memory is still served.
    pub(crate) fn fail(&self, what: &'static str, error: &io::Error) {
        if self.state.swap(OUT_OF_SERVICE, Ordering::AcqRel) != OUT_OF_SERVICE {
            let device = self.path.display();
            tracing::error!(%error, what, %device, "device taken out of service");
            (self.on_failure)();
        }
    }

    /// The device is not used any more.
    pub(crate) fn end(&self) {
        self.state.store(OUT_OF_SERVICE, Ordering::Release);
    }
}
