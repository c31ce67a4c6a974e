//! Request heads and bodies: the reading does not depend on how the bytes are cut, and what is
//! accepted is read alike by httparse.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The part of `hashcache-wire` that does no I/O, straight from its source.
#[expect(dead_code, reason = "the rest of the crate uses more of it")]
#[path = "../../crates/hashcache-wire/src"]
mod wire {
    mod chunked;
    mod cuts;
    mod head;
    mod inbound;

    pub(crate) fn check_reading(data: &[u8]) {
        cuts::check_reading(data);
    }

    pub(crate) fn check_against_httparse(data: &[u8]) {
        let limits = head::HeadLimits {
            bytes: 4096,
            fields: 32,
            target: 1024,
        };
        let head::Scanned::Complete(place) = head::Scan::default().advance(data, &limits) else {
            return;
        };
        let bytes = &data[place];
        if let Ok(checked) = head::check(bytes, &limits) {
            // httparse takes no other text for a target.
            if std::str::from_utf8(&bytes[checked.target.clone()]).is_err() {
                return;
            }
            // Nor a later minor version, which is read as the latest known one.
            let mut bytes = bytes.to_vec();
            let minor = &mut bytes[checked.target.end + " HTTP/1.".len()];
            *minor = (*minor).min(b'1');
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut fields);
            assert_eq!(
                request.parse(&bytes),
                Ok(httparse::Status::Complete(bytes.len()))
            );
            assert_eq!(request.headers.len(), checked.fields);
            assert_eq!(
                request.method.map(str::as_bytes),
                Some(&bytes[checked.method])
            );
            let target = &bytes[checked.target];
            assert_eq!(request.path.map(str::as_bytes), Some(target));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    wire::check_reading(data);
    wire::check_against_httparse(data);
});
