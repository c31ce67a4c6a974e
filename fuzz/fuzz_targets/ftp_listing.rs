//! Listings of FTP servers of any bytes, in both forms: a name that is shown can be part of a URL,
//! and is a part of the listing.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The reader of listings, straight from its source.
#[path = "../../crates/hashcache-upstream/src/gateway/listing.rs"]
#[allow(dead_code, reason = "the gateway uses the rest")]
mod listing;

use listing::{ListingForm, NAMES_MAX, read};

fuzz_target!(|data: &[u8]| {
    for form in [ListingForm::Mlsd, ListingForm::List] {
        let listing = read(form, data);
        assert!(listing.entries.len() <= NAMES_MAX);
        let lines = data.split(|&byte| byte == b'\n').count();
        assert!(listing.entries.len() + listing.unread <= lines);
        for entry in &listing.entries {
            assert!(!matches!(entry.name, b"" | b"." | b".."));
            let is_bad = |byte: &u8| byte.is_ascii_control() || *byte == b'/';
            assert!(!entry.name.iter().any(is_bad));
            let within = data.as_ptr_range();
            assert!(within.contains(&entry.name.as_ptr()));
        }
    }
});
