//! Configurations of Squid of any bytes: their lines, addresses and times are read or refused, and
//! what is written of them is what was read.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The readers, straight from their source.
#[path = "../../crates/hashcache-import/src"]
#[allow(dead_code, reason = "the command uses the rest")]
mod import {
    pub(crate) mod address;
    pub(crate) mod condition;
    pub(crate) mod lines;
    pub(crate) mod ranges;
    pub(crate) mod values;
    pub(crate) mod week;
    pub(crate) mod work;
}

use import::address::Addresses;
use import::{address, lines, values, week};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let count = text.lines().count();
    for line in lines::lines("squid.conf", text) {
        assert!((1..=count).contains(&line.place.line));
        let shown = line.shown();
        assert!(!shown.contains(char::is_control) && shown.len() < 4096);
        let words: Vec<&str> = line.args.iter().map(|word| &*word.text).collect();
        if let Some(minutes) = week::read(&words) {
            assert!(!week::written(&minutes).is_empty());
        }
        let _ = (values::size(&line.args), values::time(&line.args));
        for set in words.iter().filter_map(|word| address::parse(word)) {
            assert_eq!(set.complement().complement(), set);
            assert!(set.intersection(&set.complement()).is_empty());
            if let Some(networks) = set.networks() {
                let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
                let again = Addresses::of_networks(&networks);
                // Addresses of IPv4 that are written as IPv6 are left out.
                assert_eq!(again.v4, set.v4);
                assert_eq!(again.v6.intersection(&set.v6), again.v6);
            }
        }
    }
});
