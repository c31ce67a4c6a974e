//! Refuses paths that a server could interpret as leaving their directory.
//!
//! Called by `Mirrors::resolve` for each request. Servers differ in which characters they decode,
//! and how often: a front end decodes once, the server behind it a second time (`%252e`); Java
//! servers cut parameters off a segment (`..;x`); servers in C may cut a name at a NUL; others
//! treat `\\` as `/`. A path is refused if any server could read a step upwards in it; no registry
//! has such names.
//!
//! Invariant: an accepted path has no segment `..`, however often it is decoded.
//! Cost: one pass for a path without `%`; at most eight for others.

/// Returns true if a server could read a segment of `path` as a step upwards. apt requests
/// `./Packages`, which is no such step.
pub(super) fn may_lead_upwards(path: &str) -> bool {
    let mut plain = path.as_bytes().to_vec();
    for _ in 0..DECODED_MAX {
        let decoded = decoded(&plain);
        if decoded == plain {
            return is_step(&plain);
        }
        plain = decoded;
    }
    // A path that needs more decodings has no honest purpose.
    true
}

fn is_step(path: &[u8]) -> bool {
    // 0xc0 and 0xc1 start overlong forms of ASCII, which old decoders accepted.
    let is_odd = |byte: &u8| byte.is_ascii_control() || matches!(byte, b'\\' | 0xc0 | 0xc1);
    let mut segments = path.split(|byte| *byte == b'/');
    path.iter().any(is_odd)
        || segments.any(|it| it.split(|byte| *byte == b';').next() == Some(b".."))
}

/// The path with percent-encoding decoded once.
fn decoded(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let byte = match rest {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match byte {
            Some((high, low)) => {
                decoded.push(high << 4 | low);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*first);
                rest = behind;
            }
        }
    }
    decoded
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

/// How often a path is decoded. Servers are known to decode twice.
const DECODED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_upwards_is_seen_however_it_is_written() {
        for path in [
            "..",
            "../a",
            "a/../b",
            "a/..",
            "%2e%2E/a",
            ".%2e/a",
            "a%2f..%2fb",
            "a%2F%2e%2e",
            "..;/a",
            "a/..;x=1/b",
            "..%3b/a",
            "%252e%252e/a",
            "%25252e%25252e%25252fa",
            "..%252f",
            "..%00/a",
            "a/..%00",
            "..\\a",
            "a%5c..%5cb",
            "a%255cb",
            "%c0%ae%c0%ae/a",
            "..%0a/a",
        ] {
            assert!(may_lead_upwards(path), "{path}");
        }
        let often = format!("a%{}2e", "25".repeat(4000));
        assert!(may_lead_upwards(&often));
    }

    #[test]
    fn names_that_registries_have_are_let_through() {
        for path in [
            "",
            "./Packages",
            "a..b/.c",
            "...",
            "@a%2fb",
            "a%25b",
            "%",
            "%2",
            "%zz/%c3%a9",
            "pool/l/lib/lib_1%3a2.0+dfsg~1_amd64.deb",
            "a;b=c/d",
            "a/b-1.0..2.tgz",
        ] {
            assert!(!may_lead_upwards(path), "{path}");
        }
    }
}
