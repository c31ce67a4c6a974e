//! Traces of any bytes, in a format that the first byte chooses: each line is a request or damage,
//! lines are numbered in their order, and what is written as CSV is read back as it was.

#![no_main]

use std::io::Cursor;

use hashcache_sim::trace::{Format, LINE_BYTES_MAX, Request, Trace, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let format = Format::ALL.get(usize::from(*first)).copied();
    let open = || Trace::open(Box::new(Cursor::new(text.to_vec())), format);
    let Ok(mut trace) = open() else {
        return;
    };
    let mut writer = Writer::new(Vec::new()).expect("a vector takes all");
    let mut line = 0;
    // Unpacked, a short text may be very long.
    for _ in 0..LINES_MAX {
        // Reading fails where a packed text is damaged.
        let Ok(Some(step)) = trace.next() else {
            break;
        };
        match step {
            Ok(request) => {
                assert!(!request.name.is_empty());
                if fits(&request) {
                    writer.write(&request).expect("a vector takes all");
                }
            }
            Err(damage) => {
                assert!(damage.line > line);
                line = damage.line;
            }
        }
    }
    let text = writer.finish().expect("a vector takes all");
    let mut written = Trace::open(Box::new(Cursor::new(text)), Some(Format::Csv)).expect("columns");
    let mut trace = open().expect("it was opened before");
    for _ in 0..LINES_MAX {
        let Ok(Some(step)) = trace.next() else {
            break;
        };
        let Some(request) = step.ok().filter(fits) else {
            continue;
        };
        let read = written
            .next()
            .expect("readable")
            .expect("as many as were written");
        let read = read.expect("a request");
        assert_eq!(read.name, spaced(request.name));
        assert_eq!(read.client, spaced(request.client));
        assert_eq!(read.group, spaced(request.group));
        assert_eq!(
            (read.time_us, read.bytes, read.may_be_stored),
            (request.time_us, request.bytes, request.may_be_stored)
        );
    }
    assert_eq!(written.next().expect("readable"), None);
});

/// Whether a request fits a line: quotes are doubled.
fn fits(request: &Request<'_>) -> bool {
    let fields = [request.name, request.client, request.group];
    fields.map(<[u8]>::len).iter().sum::<usize>() < LINE_BYTES_MAX / 4
}

/// A line feed, which no line can have, is written as a space.
fn spaced(text: &[u8]) -> Vec<u8> {
    text.iter()
        .map(|byte| if *byte == b'\n' { b' ' } else { *byte })
        .collect()
}

const LINES_MAX: usize = 10_000;
