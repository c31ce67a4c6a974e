//! Quotas, bandwidth and request rates: the limits of `[[limit]]`, which `[[access]]` rules name.
//!
//! `permission` gets the limits of a request from `limiter`. `request` asks them before it asks an
//! origin, slows its body down with a [`Throttle`], and counts what came; so does `connect` for
//! tunnels.
//!
//! Invariant: a request whose rule names no limits never gets here. A hit costs nothing of a quota.

mod bucket;
mod limiter;
mod period;
mod request_limits;
mod settings;
mod throttle;
mod usage;

pub(crate) use limiter::{Limiter, Sender, Standing};
pub(crate) use request_limits::{ContentFrom, LimitPlan, RequestLimits};
pub use settings::{LimitPer, LimitSettings, Quota, QuotaEnd, QuotaPeriod, Rate};
pub(crate) use throttle::Throttle;
