//! Files of users, logins and time zones of any bytes: they are read or refused, and what is read
//! keeps its promises.

#![no_main]

use hashcache_base::clock::zone::Zone;
use libfuzzer_sys::fuzz_target;

/// The readers, straight from their source.
#[path = "../../crates/hashcache-access/src/users"]
#[allow(dead_code, reason = "the proxy uses the rest")]
mod users {
    pub(crate) mod basic;
    pub(crate) mod htpasswd;
}

use users::basic::Login;
use users::htpasswd::read_entries;

fuzz_target!(|data: &[u8]| {
    if let Some(login) = Login::read(data) {
        assert!(!login.user.is_empty() && !login.user.contains(':'));
        assert!(!login.user.contains(char::is_control) && !login.password.contains(&0));
        assert_eq!(format!("{login:?}"), "Login { .. }");
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let lines = text.lines().count();
        for entry in read_entries(text) {
            match entry {
                Ok(entry) => {
                    assert!(!entry.user.is_empty() && !entry.user.contains([':', '\n']));
                    assert!((4..=14).contains(&entry.cost) && entry.hash.len() == 60);
                }
                Err(bad) => assert!((1..=lines).contains(&bad.line)),
            }
        }
    }
    if let Some(zone) = Zone::read(data) {
        for unix in MOMENTS {
            // Offsets have 32 bits.
            let offset = i128::from(zone.local(unix)) - i128::from(unix);
            assert!(offset.abs() <= 1 << 31, "{unix}: {offset}");
        }
    }
});

/// Moments before, within and behind all that files say.
const MOMENTS: [i64; 8] = [
    i64::MIN,
    -(1 << 40),
    0,
    951_782_400,
    1_795_392_000,
    4_000_000_000,
    1 << 50,
    i64::MAX,
];
