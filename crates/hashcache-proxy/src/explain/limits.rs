//! Describes in words how much a limit still allows.
//!
//! Called by `access` for the limits of the rule that decides. Requests per second are not
//! evaluated, because they change from one moment to the next.

use hashcache_access::quota::{Quota, QuotaEnd, Standing};
use hashcache_base::frame::Size;

/// Returns true if a request that needs a next hop is refused.
pub(super) fn is_refusing(standing: &Standing) -> bool {
    let refuses = |quota: Quota| quota.end == QuotaEnd::Refuse;
    is_used_up(standing) && standing.limit.quota.is_some_and(refuses)
}

fn is_used_up(Standing { limit, used }: &Standing) -> bool {
    let quota = limit.quota.zip(used.as_ref());
    quota.is_some_and(|(quota, (used, _))| *used >= quota.bytes)
}

/// Describes the refusal.
pub(super) fn refused(standing: &Standing) -> String {
    format!("refused with 429 (quota-used): {}", left(standing))
}

/// Describes the remaining quota, and the allowed rates for requests and content.
pub(super) fn left(standing: &Standing) -> String {
    let limit = &standing.limit;
    let mut parts = Vec::new();
    if let Some((quota, (used, ends))) = limit.quota.zip(standing.used.as_ref()) {
        let (size, period) = (Size(quota.bytes), quota.period.as_str());
        parts.push(match (is_used_up(standing), quota.end) {
            (true, QuotaEnd::Refuse) => format!(
                "its {size} per {period} are used up until {ends}; stored responses are still \
                 served"
            ),
            (true, QuotaEnd::Slow(per_second)) => format!(
                "its {size} per {period} are used up until {ends}; content from origins comes \
                 with {} per second",
                Size(per_second)
            ),
            (false, _) => {
                let left = Size(quota.bytes.saturating_sub(*used));
                format!("{left} of {size} per {period} are left until {ends}")
            }
        });
    }
    if let Some(rate) = limit.bandwidth {
        parts.push(format!("{} per second", Size(rate.per_second)));
    }
    if let Some(rate) = limit.requests {
        let number = rate.per_second;
        parts.push(format!(
            "{number} requests per second, more are refused with 429"
        ));
    }
    format!("`{}`: {}", limit.name, parts.join("; "))
}
