//! Quotas, bandwidth and request rates: the limits of `[[limit]]`, which `[[access]]` rules name.
//!
//! `permission` of the proxy gets the limits of a request from `limiter`. Its `request` asks them
//! before it asks an origin, slows its body down with a [`Throttle`], and counts what came; so does
//! its `connect` for tunnels.
//!
//! Invariants: a request whose rule names no limits never gets here. A hit costs nothing of a
//! quota. Nobody gets a quota anew within its period, also when the memory for clients is used up.

mod bucket;
mod limiter;
mod period;
mod request_limits;
mod settings;
mod throttle;
mod usage;

pub use limiter::{LimitFigures, Limiter, LimiterFigures, Sender, Standing};
pub use request_limits::{ContentFrom, LimitPlan, RequestLimits};
pub use settings::{LimitPer, LimitSettings, Quota, QuotaEnd, QuotaPeriod, Rate};
pub use throttle::Throttle;
