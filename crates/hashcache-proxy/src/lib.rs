//! A caching web proxy on the HashCache engine.
//!
//! Modules stand in the order in which a request meets them; `request` is where a hit is answered.

// What was asked for, and what can go wrong.
mod failure;
mod limits;
mod settings;
mod share;

// From the socket to a request.
mod server;
mod wire;
mod worker;

// The life of a request.
mod collapse;
mod connect;
mod connection;
mod fetch;
mod in_flight_ranges;
mod intercept;
mod log_entry;
mod mirror;
mod page_groups;
mod purge;
mod request;
mod store;

// Where answers come from.
mod tls;
mod upstream;

// What operators see.
mod access_log;
mod admin;
mod clock;
mod metrics;
mod page;
mod state_file;

pub use intercept::Intercept;
pub use intercept::authority::{AuthorityError, CertificateAuthority, Fingerprint, MakeOptions};
pub use intercept::hosts::{HostList, HostOptions, HostPattern, HostPatternError, Hosts};
pub use limits::Limits;
pub use mirror::{Mirror, MirrorError, MirrorKind, Setup};
pub use server::{RunError, preflight, run};
pub use settings::{
    AccessLog, CollapseWait, Fail, GroupBy, Listen, LogFormat, Mode, Settings, Speaks, StateFiles,
};
pub use tls::identity::{CertificateFiles, IdentityError};
pub use upstream::address::ConnectPort;
pub use upstream::nat64::{Nat64, Nat64Error};
pub use upstream::prefix::{Prefix, PrefixError};
pub use upstream::tls::AuthoritiesError;
