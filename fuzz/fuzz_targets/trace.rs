//! Traces of any bytes, in a format that the first byte chooses: each line is a request or damage,
//! lines are numbered in their order, and what is written as CSV reads back.

#![no_main]

use std::io::Cursor;

use hashcache_sim::trace::{Format, LINE_BYTES_MAX, Trace, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let format = Format::ALL.get(usize::from(*first)).copied();
    let Ok(mut trace) = Trace::open(Box::new(Cursor::new(text.to_vec())), format) else {
        return;
    };
    let mut writer = Writer::new(Vec::new()).expect("a vector takes all");
    let (mut requests, mut line) = (0, 0);
    // Unpacked, a short text may be very long.
    for _ in 0..LINES_MAX {
        // Reading fails where a packed text is damaged.
        let Ok(Some(step)) = trace.next() else {
            break;
        };
        match step {
            Ok(request) => {
                assert!(!request.name.is_empty());
                let fields = [request.name, request.client, request.group];
                // Quotes are doubled, and must still fit a line.
                if fields.map(<[u8]>::len).iter().sum::<usize>() < LINE_BYTES_MAX / 4 {
                    writer.write(&request).expect("a vector takes all");
                    requests += 1;
                }
            }
            Err(damage) => {
                assert!(damage.line > line);
                line = damage.line;
            }
        }
    }
    let text = writer.finish().expect("a vector takes all");
    let mut again = Trace::open(Box::new(Cursor::new(text)), Some(Format::Csv)).expect("columns");
    for _ in 0..requests {
        let request = again.next().expect("readable").expect("as many as were written");
        // Line ends within a name do not survive; nothing else may change.
        assert!(request.is_ok(), "{request:?}");
    }
    assert_eq!(again.next().expect("readable"), None);
});

const LINES_MAX: usize = 10_000;
