//! Heads and chunks of an origin in HTTP/1.1: the reading does not depend on how the bytes are cut,
//! and the end of a head is where httparse finds it, which parses it afterwards.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

/// The part of `upstream::http1` that does no I/O, straight from its source.
#[path = "../../crates/hashcache-upstream/src/http1"]
mod http1 {
    pub(super) mod chunks;
    pub(super) mod repair;

    /// The repaired bytes, and where each head ends.
    pub(super) fn repaired(data: &[u8], step: usize) -> (Vec<u8>, Vec<usize>) {
        let mut repair = repair::HeadRepair::default();
        let (mut read, mut ends) = (data.to_vec(), Vec::new());
        let mut at = 0;
        for part in read.chunks_mut(step) {
            let of_heads = repair.repair(part);
            at += part.len();
            while repair.take_ended() {
                ends.push(at.min(at - part.len() + of_heads));
            }
        }
        (read, ends)
    }

    /// The content, the trailers and the rest of chunks; `None` if they are damaged.
    pub(super) fn decoded(data: &[u8], step: usize) -> Option<(Vec<u8>, String, usize)> {
        let mut chunks = chunks::Chunks::default();
        let mut read = super::BytesMut::new();
        let (mut content, mut trailers) = (Vec::new(), String::new());
        let mut left = data.len();
        for part in data.chunks(step) {
            read.extend_from_slice(part);
            while let Some(frame) = chunks.next(&mut read).ok()? {
                match frame.into_data() {
                    Ok(data) => content.extend_from_slice(&data),
                    Err(frame) => trailers = format!("{:?}", frame.into_trailers().ok()),
                }
            }
            left -= part.len();
            if chunks.is_complete() {
                return Some((content, trailers, read.len() + left));
            }
        }
        Some((content, trailers, usize::MAX))
    }
}

fuzz_target!(|data: &[u8]| {
    let (read, ends) = http1::repaired(data, 1);
    for step in [2, 7, data.len().max(1)] {
        let (again, found) = http1::repaired(data, step);
        assert_eq!(
            (&again, found.len()),
            (&read, ends.len()),
            "cut every {step} bytes"
        );
    }
    if let Some(&end) = ends.first() {
        let mut fields = vec![httparse::EMPTY_HEADER; data.len()];
        let mut response = httparse::Response::new(&mut fields);
        let mut config = httparse::ParserConfig::default();
        config
            .allow_obsolete_multiline_headers_in_responses(true)
            .allow_spaces_after_header_name_in_responses(true)
            .ignore_invalid_headers_in_responses(true);
        // Neither more nor less, unless it is refused.
        if let Ok(parsed) = config.parse_response(&mut response, &read) {
            assert_eq!(parsed, httparse::Status::Complete(end));
        }
    }
    let whole = http1::decoded(data, data.len().max(1));
    for step in [1, 3] {
        assert_eq!(http1::decoded(data, step), whole, "cut every {step} bytes");
    }
});
