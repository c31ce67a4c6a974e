//! Foundation for the proxy's crates: failures, time limits, shares of clients, the clock,
//! addresses, certificates.
//!
//! This crate does not know requests, origins' responses or settings files. The crates above use
//! it; it uses the engine (for the memory that clients share) and `hashcache-http`.

// Failures, and limits on time and number.
pub mod failure;
pub mod limits;

// Fair shares of clients.
pub mod fair_permits;
pub mod fair_table;
pub mod share;

// The clock, and files that outlive the process.
pub mod clock;
pub mod state_file;

// Addresses, names and certificates.
pub mod net;
pub mod tls;

// Small tools.
pub mod frame;
pub mod sort;
pub mod task;
