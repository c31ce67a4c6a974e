//! Quotas, bandwidth and request rates: the limits from `[[limit]]`, which `[[access]]` rules name.
//!
//! `permission` in the proxy gets the limits for a request from `limiter`. `request` in the proxy
//! checks them before it contacts an origin, slows the body down with a [`Throttle`], and counts
//! the received bytes; `connect` in the proxy does so for tunnels.
//!
//! Invariants: a request never gets here if its rule names no limits. A hit uses no quota. Nobody
//! gets a new quota within the same period, even if the memory for clients is used up.

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
