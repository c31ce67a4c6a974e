//! Random bytes: no panic, and never more requests than an independent parser finds.

use std::cell::Cell as Count;

use http::Version;
use proptest::prelude::*;

use super::*;
use crate::cuts::check_reading;
use crate::head::{HeadLimits, Scan, Scanned, check};

/// Requests in `data`, found by splitting text as strictly as possible, without code from the
/// crate.
fn reference_heads(data: &[u8]) -> usize {
    let mut data = data;
    let mut heads = 0;
    loop {
        while let Some(rest) = data.strip_prefix(b"\r\n") {
            data = rest;
        }
        let Some(end) = data.windows(4).position(|four| four == b"\r\n\r\n") else {
            return heads;
        };
        let (head, rest) = (&data[..end], &data[end + 4..]);
        let Some(body) = reference_body(&head.iter().map(|&b| char::from(b)).collect::<String>())
        else {
            return heads;
        };
        heads += 1;
        let after = match body {
            Framing::Length(length) => rest.get(length..),
            Framing::Chunked => after_chunks(rest),
        };
        match after {
            Some(after) => data = after,
            None => return heads,
        }
    }
}

enum Framing {
    Length(usize),
    Chunked,
}

fn reference_body(head: &str) -> Option<Framing> {
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next()?.split(' ').collect();
    let [method, target, version] = words[..] else {
        return None;
    };
    let minor = version.strip_prefix("HTTP/1.")?;
    if minor.len() != 1 || !minor.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    if method.is_empty()
        || target.is_empty()
        || head.replace("\r\n", "").contains(['\r', '\n', '\0'])
    {
        return None;
    }
    let fields: Option<Vec<(String, &str)>> = lines
        .map(|line| {
            line.split_once(':')
                .map(|(name, value)| (name.to_lowercase(), value.trim()))
        })
        .collect();
    let fields = fields?;
    let all = |name: &str| -> Vec<&str> {
        fields
            .iter()
            .filter(|field| field.0 == name)
            .map(|field| field.1)
            .collect()
    };
    let lengths = all("content-length").join(",");
    let mut lengths: Vec<&str> = lengths.split(',').map(str::trim).collect();
    lengths.dedup();
    match (&lengths[..], &all("transfer-encoding")[..]) {
        ([""], []) if all("content-length").is_empty() => Some(Framing::Length(0)),
        ([length], []) => length.parse().ok().map(Framing::Length),
        ([""], [coding])
            if all("content-length").is_empty() && coding.eq_ignore_ascii_case("chunked") =>
        {
            Some(Framing::Chunked)
        }
        _ => None,
    }
}

fn after_chunks(mut data: &[u8]) -> Option<&[u8]> {
    loop {
        let end = data.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&data[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?, 16).ok()?;
        data = &data[end + 2..];
        if size == 0 {
            break;
        }
        data = data.get(size..)?.strip_prefix(b"\r\n")?;
    }
    while !data.starts_with(b"\r\n") {
        let end = data.windows(2).position(|two| two == b"\r\n")?;
        data = &data[end + 2..];
    }
    Some(&data[2..])
}

/// Pieces of requests, good and bad, that often enough combine into whole requests.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => Just(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..]),
        8 => Just(&b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde"[..]),
        8 => Just(&b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"[..]),
        4 => Just(&b"4\r\nGET \r\n"[..]),
        4 => Just(&b"1;a=b\r\nx\r\n"[..]),
        8 => Just(&b"0\r\n\r\n"[..]),
        2 => Just(&b"0\r\nT: u\r\n\r\n"[..]),
        2 => Just(&b"\r\n"[..]),
        2 => Just(&b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n"[..]),
        1 => Just(&b"Content-Length: 3\r\n"[..]),
        2 => Just(&b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\nHost: A\r\n\r\nab"[..]),
        1 => Just(&b"GET /\xe4 HTTP/1.1\r\nHost: a\r\n\r\n"[..]),
        1 => Just(&b"Transfer-Encoding: chunked\r\n"[..]),
        1 => Just(&b"Transfer-Encoding: \x0bchunked\r\n"[..]),
        1 => Just(&b"\n"[..]),
        1 => Just(&b"5 \r\nabcde\r\n"[..]),
        1 => Just(&b"abcde"[..]),
        1 => Just(&b"\0"[..]),
    ];
    (
        prop::collection::vec(piece, 0..12),
        any::<(bool, u16, u8)>(),
    )
        .prop_map(|(pieces, change)| {
            let mut data = pieces.concat();
            let (changes, place, byte) = change;
            if changes && !data.is_empty() {
                let place = usize::from(place) % data.len();
                data[place] = byte;
            }
            data
        })
}

/// Number of accepted requests that the service was called for.
fn requests_served(data: &[u8], step: usize) -> usize {
    let count = Rc::new(Count::new(0));
    let counted = count.clone();
    let service = move |request: Request<ClientBody>, cell: Rc<Cell>| {
        let head = cell.next_head();
        if matches!(head, RequestHead::Accepted(_)) {
            counted.set(counted.get() + 1);
        }
        async move {
            match head {
                // Half of the calls read the body, half ignore it.
                RequestHead::Accepted(_) if request.method() == "POST" => {
                    let _ = request.into_body().collect().await;
                }
                _ => {}
            }
            whole("x")
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime
        .unwrap()
        .block_on(talk(Limits::default(), service, |mut client| async move {
            for part in data.chunks(step) {
                if client.write_all(part).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            rest_of(&mut client).await
        }));
    count.get()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn no_more_requests_are_served_than_there_are(data in pieces(), step in 1_usize..200) {
        let served = requests_served(&data, step);
        let there = reference_heads(&data);
        prop_assert!(served <= there, "{served} of {there}: {:?}", data.escape_ascii().to_string());
    }

    #[test]
    fn any_bytes_are_read_the_same_however_cut(data in prop::collection::vec(any::<u8>(), 0..300)) {
        check_reading(&data);
    }

    #[test]
    fn requests_are_read_the_same_however_cut(data in pieces()) {
        check_reading(&data);
    }

    /// hyper parses with httparse: a head that is accepted here must be complete there, with the
    /// same number of fields, because otherwise the service would not be called for it.
    #[test]
    fn what_is_accepted_httparse_reads_alike(data in pieces()) {
        let limits = HeadLimits { bytes: 4096, fields: 32, target: 1024 };
        let Scanned::Complete(place) = Scan::default().advance(&data, &limits) else {
            return Ok(());
        };
        let head = &data[place];
        if let Ok(checked) = check(head, &limits) {
            // hyper never sees the target.
            let target = checked.target.clone();
            let version: &[u8] = match checked.version {
                Version::HTTP_10 => b" HTTP/1.0",
                _ => b" HTTP/1.1",
            };
            let lines = &head[target.end + version.len()..];
            let head = &[&head[..target.start], b"/", version, lines].concat()[..];
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut fields);
            prop_assert_eq!(request.parse(head), Ok(httparse::Status::Complete(head.len())));
            prop_assert_eq!(request.headers.len(), checked.fields);
            prop_assert_eq!(request.path, Some("/"));
        }
    }
}

#[test]
fn the_reference_finds_whole_requests() {
    let good =
        b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    assert_eq!(reference_heads(&good.repeat(3)), 3);
    assert_eq!(requests_served(&good.repeat(3), 7), 3);
}
