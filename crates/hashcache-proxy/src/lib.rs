//! A caching web proxy on the HashCache engine.
//!
//! The modules are listed in the order in which a request passes them; `request` answers hits.

// Settings.
mod settings;

// From the socket to a request.
mod server;
mod worker;

// From a request to its response.
mod client_access;
mod connect;
mod connection;
mod fetch;
mod log_entry;
mod permission;
mod request;
mod reuse;

// Connections to origins and peers.
mod members;
mod peers;
mod queries;
mod route;

// Pages, metrics and logs for operators.
mod access_log;
mod admin;
mod dashboard;
mod explain;
mod history;
mod inventory;
mod metrics;
mod page;

pub use hashcache_access::lists::ListError;
pub use hashcache_access::quota::{LimitPer, LimitSettings, Quota, QuotaEnd, QuotaPeriod, Rate};
pub use hashcache_access::users::{FileUsers, UsersError, users_of};
pub use hashcache_access::{
    AccessAction, AccessConditions, AccessRule, AccessRuleError, AccessRuleFault, AccessRules,
    AccessSettings, Destination, ListFormat, ListSettings, RuleClients, WeekSpan,
};
pub use hashcache_base::frame::Escaped;
pub use hashcache_base::limits::Limits;
pub use hashcache_base::net::address::ConnectPort;
pub use hashcache_base::net::nat64::{Nat64, Nat64Error};
pub use hashcache_base::net::own_domain::{AllowedDestination, AllowedDestinationError, OwnDomain};
pub use hashcache_base::net::prefix::{Prefix, PrefixError};
pub use hashcache_base::tls::identity::{CertificateFiles, IdentityError};
pub use hashcache_intercept::Intercept;
pub use hashcache_intercept::authority::{
    AuthorityError, CertificateAuthority, Fingerprint, MakeOptions,
};
pub use hashcache_intercept::hosts::{HostList, HostOptions, HostPattern, HostPatternError, Hosts};
pub use hashcache_link::forward::{LinkForward, LinkForwardError};
pub use hashcache_link::identity::{LinkIdentity, LinkIdentityError};
pub use hashcache_link::pin::{Pin, PinError};
pub use hashcache_site::balance::Balance;
pub use hashcache_site::encode::Coding;
pub use hashcache_site::header_rules::{
    Change as HeaderChange, HeaderRuleError, HeaderRules, Message,
};
pub use hashcache_site::key_rules::{KeyRuleError, KeyRules, KeyRulesSpec};
pub use hashcache_site::mirror::{Mirror, MirrorError, MirrorKind, Setup};
pub use hashcache_site::spec::{Grace, HealthCheck, SentHost, Site, SiteError, SiteOrigin, Sites};
pub use hashcache_store::collapse::CollapseWait;
pub use hashcache_store::page_groups::GroupBy;
pub use hashcache_upstream::offline::Offline;
pub use hashcache_upstream::peer::{
    Credentials, CredentialsError, HtcpPeer, PeerHttps, PeerKind, PeerMisses, PeerSettings,
    PeerSummary,
};
pub use hashcache_upstream::tls::AuthoritiesError;
pub use history::counts::{By, Counts, Kind, KindCounts, Table, Totals};
pub use history::file::{Read as HistoryRead, read as read_history};
pub use history::name::Name as HistoryName;
pub use history::record::{Hour, HourRecord, Lines, NAMES as HISTORY_NAMES};
pub use route::{Direct, PeerChoice, RouteHost, RouteSettings};
pub use server::{Listening, RunError, Supervisor, Warning, preflight, run, warnings};
pub use settings::{
    AccessLog, Diversion, Fail, Listen, LogFormat, Mode, Reloadable, ReloadedSettings, Settings,
    Speaks, Startup, StateFiles,
};
