//! HTCP: a datagram is ignored, or its meaning is sent as a datagram of the same meaning.

#![no_main]

use hashcache_peers::htcp::auth::{AuthError, Ends, Key, Signature};
use hashcache_peers::htcp::{DATAGRAM_BYTES_MAX, Unsendable, datagram, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(message) = parse(data) else {
        return;
    };
    let key = Key::new(b"k", b"secret").unwrap();
    let end = "192.0.2.1:4827".parse().unwrap();
    let ends = Ends {
        source: end,
        destination: end,
    };
    // A signature cannot be guessed.
    let refused = message.check(&key, &ends, 0).unwrap_err();
    assert_eq!(refused == AuthError::Unsigned, !message.is_signed());

    let signature = Signature {
        key: &key,
        ends,
        time: 0,
        expiry: 1,
    };
    let sent = match datagram(
        message.minor,
        message.transaction,
        &message.body,
        Some(&signature),
    ) {
        Ok(sent) => sent,
        // There was no room for the signature.
        Err(Unsendable) => {
            assert!(data.len() + 64 > DATAGRAM_BYTES_MAX);
            return;
        }
    };
    let received = parse(&sent).unwrap();
    assert_eq!(received.body, message.body);
    assert_eq!(received.minor, message.minor);
    assert_eq!(received.transaction, message.transaction);
    assert_eq!(received.check(&key, &ends, 1), Ok(()));
});
