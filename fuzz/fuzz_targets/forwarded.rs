//! Forwarded and X-Forwarded-For, -Proto and -Host of any bytes: only trusted networks are
//! believed, and what is sent on means the same to the next proxy.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The reader of these fields, straight from its source.
#[path = "../../crates/hashcache-site/src"]
mod site {
    #[allow(dead_code, reason = "the proxy uses the rest")]
    mod forwarded;
    mod forwarded_check;

    pub(crate) fn check_reading(data: &[u8]) {
        forwarded_check::check_reading(data);
    }
}

fuzz_target!(|data: &[u8]| site::check_reading(data));
