//! ICP: a datagram is ignored, or its meaning is sent as the same datagram.

#![no_main]

use hashcache_peers::icp::{self, Answer, HEADER_BYTES, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let rebuilt = match icp::parse(data) {
        Ok(Message::Query(query)) => {
            assert!(query.reply(Answer::Hit).answers(&query));
            assert_eq!(
                query.reply(Answer::Denied).to_datagram().len() + 4,
                data.len()
            );
            query.to_datagram()
        }
        Ok(Message::Reply(reply)) => reply.to_datagram(),
        Err(_) => return,
    };
    assert_eq!(rebuilt.len(), data.len());
    // Options, option data and the sender's address are not read.
    assert_eq!(rebuilt[..8], data[..8]);
    assert_eq!(rebuilt[HEADER_BYTES..], data[HEADER_BYTES..]);
});
