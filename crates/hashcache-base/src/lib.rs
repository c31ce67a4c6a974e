//! What every part of the proxy stands on.
//!
//! Nothing here knows requests, origins' responses or settings files. The crates above use it; it
//! uses the engine (for the memory that clients share) and `hashcache-http`.

// What can go wrong, and for how long to wait.
pub mod failure;
pub mod limits;

// What one client may take.
pub mod fair_permits;
pub mod share;

// Time, and what outlives the process.
pub mod clock;
pub mod state_file;

// Addresses, names and certificates.
pub mod net;
pub mod tls;

// Small tools.
pub mod frame;
pub mod sort;
pub mod task;
