//! Scenarios against a running proxy: properties that must hold however it is interrupted, killed
//! or deceived.
//!
//! `cargo campaign never-wrong`, `followers`, `purges` and `smuggling` run them in full, the tests
//! of `hashcache-cli` in short form, against the real binary. A scenario gets a proxy's address and
//! reports its observations; the caller starts and kills the process.
//!
//! Invariant: every check uses this crate's own readers, which share no code with the proxy or with
//! hyper. Every wait has an end, and a missing response is a fault like any other.

pub mod followers;
pub mod hostile;
pub mod never_wrong;
pub mod origin_faults;
pub mod purges;
pub mod range_storm;
pub mod shared_answers;
pub mod smuggling;

use std::fmt;

/// What became of one part of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Which part.
    pub name: String,
    /// What happened, in a few words.
    pub seen: String,
    /// What must not have happened; empty when all is well.
    pub faults: Vec<String>,
    /// Measurements, for comparing runs.
    pub figures: Vec<(&'static str, f64)>,
}

impl Verdict {
    /// A part in which nothing has happened yet.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Whether all is well.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.faults.is_empty()
    }

    /// Notes what was measured.
    pub fn figure(&mut self, name: &'static str, value: f64) {
        self.figures.push((name, value));
    }

    /// Notes a fault.
    pub fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(what.into());
    }

    /// Notes a fault unless `holds`.
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
