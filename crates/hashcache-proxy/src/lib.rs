//! A caching web proxy on the HashCache engine.
//!
//! Modules stand in the order in which a request meets them; `request` is where a hit is answered.

// What was asked for, and what can go wrong.
mod failure;
mod settings;
mod share;

// From the socket to a request.
mod server;
mod wire;
mod worker;

// The life of a request.
mod collapse;
mod fetch;
mod intercept;
mod mirror;
mod pieces;
mod purge;
mod related;
mod request;
mod store;

// Where answers come from.
mod tunnel;
mod upstream;

// What operators see.
mod access_log;
mod admin;
mod clock;
mod kept_file;
mod metrics;
mod page;

pub use intercept::Intercept;
pub use intercept::authority::{Authority, AuthorityError, Fingerprint, MakeOptions};
pub use intercept::hosts::{HostList, HostOptions, HostPattern, HostPatternError, Hosts};
pub use mirror::{Mirror, MirrorError, MirrorKind, Setup};
pub use server::{IdentityError, RunError, refusals, run};
pub use settings::{
    AccessLog, CertificateFiles, CollapseWait, Fail, GroupBy, Limits, Listen, LogFormat, Mode,
    Settings, Speaks, StateFiles,
};
pub use upstream::address::{ConnectPort, Prefix, PrefixError};
pub use upstream::nat64::{Nat64, Nat64Error};
pub use upstream::tls::AuthoritiesError;
