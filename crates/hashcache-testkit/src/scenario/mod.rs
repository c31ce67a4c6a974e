//! Scenarios against a running proxy: properties that must hold even if the proxy is interrupted,
//! killed or receives false data.
//!
//! `cargo campaign never-wrong`, `followers`, `purges` and `smuggling` run them in full, the tests
//! of `hashcache-cli` in short form, against the real binary. A scenario gets the address of a
//! proxy and reports observations; the caller starts and kills the process.
//!
//! Invariant: every check uses the readers of this crate, which share no code with the proxy or
//! with hyper. Every wait has a time limit, and a missing response is a fault like any other.

pub mod followers;
pub mod hostile;
pub mod never_wrong;
pub mod origin_faults;
pub mod purges;
pub mod range_storm;
pub mod shared_answers;
pub mod smuggling;

use std::fmt;

/// Result for one part of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Part name.
    pub name: String,
    /// Summarized observations.
    pub seen: String,
    /// Violated expectations; empty if the part has passed.
    pub faults: Vec<String>,
    /// Measurements, for comparing runs.
    pub figures: Vec<(&'static str, f64)>,
}

impl Verdict {
    /// Returns a verdict without observations and faults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Returns true if there is no fault.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.faults.is_empty()
    }

    /// Records a measurement.
    pub fn figure(&mut self, name: &'static str, value: f64) {
        self.figures.push((name, value));
    }

    /// Records a fault.
    pub fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(what.into());
    }

    /// Records a fault unless `holds`.
    pub fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(otherwise());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name, seen, faults, ..
        } = self;
        write!(f, "{name}: {seen}")?;
        for fault in faults {
            write!(f, "\n    {fault}")?;
        }
        Ok(())
    }
}
