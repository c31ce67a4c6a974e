//! Tells operators in time that the authority ends: devices have to be visited before that.
//!
//! `server` runs it from the start to the end of the process.
//! Invariant: a line at the start, after it one a day, from thirty days before the end.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use crate::worker::Common;

/// Looks once a day.
pub(crate) async fn warn_before_expiry(common: Arc<Common>) {
    loop {
        // One that a reload has put in place is looked at within a day, too.
        let interceptor = common.live().intercept.clone();
        if let Some(interceptor) = interceptor {
            let end = interceptor.authority.not_after_seconds();
            match days_left(end, common.now().0) {
                None => error!("the certificate authority has expired: nothing is intercepted"),
                Some(days) if days < WARN_DAYS => {
                    warn!(
                        days,
                        "the certificate authority expires soon: make a new one"
                    );
                }
                Some(_) => {}
            }
        }
        tokio::time::sleep(DAY).await;
    }
}

/// Whole days until `end`; `None` when it is over. Both are seconds since 1970.
fn days_left(end: u64, now: u64) -> Option<u64> {
    let left = end.checked_sub(now).filter(|left| *left > 0)?;
    Some(left / DAY.as_secs())
}

const DAY: Duration = Duration::from_secs(86_400);
/// How long before the end it is said.
const WARN_DAYS: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_down_to_the_end() {
        let day = DAY.as_secs();
        assert_eq!(days_left(100 * day, 70 * day), Some(30));
        assert_eq!(days_left(100 * day, 70 * day + 1), Some(29));
        assert_eq!(days_left(100 * day, 100 * day - 1), Some(0));
        assert_eq!(days_left(100 * day, 100 * day), None);
        assert_eq!(days_left(0, u64::MAX), None);
    }
}
