//! Warns operators before the certificate authority expires, because every device needs the new
//! authority by then.
//!
//! Task of `server`, from the start to the stop of the process.
//! Invariant: one log line at the start, then one a day, from thirty days before the expiry.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, warn};

use crate::worker::Common;

/// Checks once a day.
pub(crate) async fn warn_before_expiry(common: Arc<Common>) {
    loop {
        // Loaded anew each day, because a reload may have replaced the authority.
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

/// Whole days until `end`; `None` after it. Both are seconds since 1970.
fn days_left(end: u64, now: u64) -> Option<u64> {
    let left = end.checked_sub(now).filter(|left| *left > 0)?;
    Some(left / DAY.as_secs())
}

const DAY: Duration = Duration::from_secs(86_400);
/// Days before the expiry at which the warnings start.
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
