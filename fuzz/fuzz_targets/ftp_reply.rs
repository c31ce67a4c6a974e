//! Replies of FTP servers of any bytes: a reply has a code of its first line, and what is read of
//! it is within its limits.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The reader of replies, straight from its source.
#[path = "../../crates/hashcache-upstream/src/gateway/ftp_reply.rs"]
#[allow(dead_code, reason = "the gateway uses the rest")]
mod ftp_reply;

use ftp_reply::ReplyReader;

fuzz_target!(|data: &[u8]| {
    let mut reader = ReplyReader::default();
    for line in data.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match reader.take(line) {
            Err(_) => return,
            Ok(None) => continue,
            Ok(Some(reply)) => {
                assert!((100..600).contains(&reply.code));
                assert!(
                    data.starts_with(reply.code.to_string().as_bytes()) || data.contains(&b'\n')
                );
                assert!(reply.text.len() <= line.len());
                assert_ne!(reply.port(), Some(0));
                assert_ne!(reply.extended_port(), Some(0));
                assert!(reply.size().is_none_or(|size| size < 1 << 60));
                assert!(reply.modified().is_none_or(|time| time.0 < 1 << 38));
                reader = ReplyReader::default();
            }
        }
    }
});
