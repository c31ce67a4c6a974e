//! One line of each format with what it says, and lines that say nothing.

use std::io::Write as _;

use super::*;

fn read(text: &[u8], format: Option<Format>) -> Result<Trace, TraceError> {
    Trace::open(Box::new(Cursor::new(text.to_vec())), format)
}

/// What each line says: client, name, bytes, group, whether it may be stored.
fn said(text: &[u8]) -> (Format, Vec<String>) {
    let mut trace = read(text, None).unwrap();
    let mut all = vec![];
    while let Some(step) = trace.next().unwrap() {
        all.push(match step {
            Ok(request) => {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                format!(
                    "{} {} {} {:?} {} {}",
                    request.time_us,
                    text(request.client),
                    text(request.name),
                    request.bytes,
                    text(request.group),
                    request.may_be_stored
                )
            }
            Err(damage) => damage.to_string(),
        });
    }
    (trace.format(), all)
}

#[test]
fn a_line_of_squids_log_is_a_request() {
    let (format, said) = said(
        b"1286536309.586    9 10.0.0.8 TCP_MISS/200 507 GET http://a.test/x - DIRECT/::1 text/css\n\
          1286536310.000 1 10.0.0.1 TCP_IMS_HIT/304 250 GET http://a.test/x - HIER_NONE/- -\r\n\
          1286536311.000 1 10.0.0.1 TCP_MISS/200 250 POST http://a.test/y bob DIRECT/::1 text/css\n\
          1286536311.000 1 10.0.0.1 TCP_MISS/2 250 GET http://a.test/y - HIER_DIRECT/::1 -\n\
          1286536311.000 1 10.0.0.1 TCP_MISS/200 250 GET http://a.te",
    );
    assert_eq!(format, Format::Squid);
    assert_eq!(
        said,
        [
            "1286536309586000 10.0.0.8 http://a.test/x Some(507)  true",
            "1286536310000000 10.0.0.1 http://a.test/x None  true",
            "1286536311000000 10.0.0.1 http://a.test/y Some(250)  false",
            "4: the status cannot be read",
            "5: it does not have the 10 fields of the format",
        ]
    );
}

#[test]
fn a_line_of_our_log_as_json_is_a_request() {
    let (format, said) = said(
        concat!(
            r#"{"@timestamp":"1970-01-02T00:00:01.500Z","event.duration":1,"#,
            r#""client.ip":"10.0.0.8","http.request.method":"GET","url.scheme":"http","#,
            r#""url.authority":"a.test","url.original":"/x\"y","#,
            r#""http.response.status_code":200,"hashcache.outcome":"hit","#,
            r#""http.response.bytes":507,"http.request.referrer":"http://p/"}"#,
            "\n",
            r#"{"@timestamp":"1970-01-02T00:00:02.000Z","http.request.method":"POST","#,
            r#""url.scheme":"http","url.authority":"a.test","url.original":"/y","#,
            r#""http.response.status_code":304,"http.response.bytes":90}"#,
            "\n",
            r#"{"@timestamp":"1970-01-02T00:00:02.0"#,
        )
        .as_bytes(),
    );
    assert_eq!(format, Format::Json);
    assert_eq!(
        said,
        [
            "86401500000 10.0.0.8 http://a.test/x\"y Some(507) http://p/ true",
            "86402000000  http://a.test/y None  false",
            "3: it is no JSON object with the keys of the format",
        ]
    );
}

#[test]
fn a_line_of_a_servers_log_is_a_request() {
    let (format, said) = said(
        br#"1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /a b HTTP/1.1" 200 10 "http://t/" "\"B\""
1.2.3.4 - joe smith [17/May/2015:10:05:03 -0100] "GET /c HTTP/1.1" 304 - "-" "A"
1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /d HTTP/1.0" 200 -
1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET /e\"f HTTP/1.0" 404 7
1.2.3.4 - - [17/May/2015:10:05:03 +0000] "-" 400 0 "-" "-"
1.2.3.4 - - [17/May/2015:10:05 +0000] "GET / HTTP/1.0" 200 1
1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "http://x/"y" "A"
1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "http://x/" "A
"#,
    );
    assert_eq!(format, Format::Combined);
    assert_eq!(
        said,
        [
            "1431857103000000 1.2.3.4 /a b Some(10) http://t/ true",
            "1431860703000000 1.2.3.4 /c None  true",
            "1431857103000000 1.2.3.4 /d Some(0)  true",
            "1431857103000000 1.2.3.4 /e\"f Some(7)  true",
            "5: the request line has no method and URL",
            "6: the time cannot be read",
            "7: a quote is not closed, or not followed by a separator",
            "8: a quote is not closed, or not followed by a separator",
        ]
    );
}

#[test]
fn a_line_of_the_bu_trace_is_a_request_and_0_octets_are_no_size() {
    let (format, said) = said(
        b"785433179.434793\tcs17\t8\t785433174\thttp://a.test/\t1934\t0.532466\n\
          785433180.0\tcs17\t8\t785433174\thttp://a.test/b\r c\xff\t0\t0.0\n\
          785433180.0\tcs17\t8\n",
    );
    assert_eq!(format, Format::Bu);
    assert_eq!(
        said,
        [
            "785433179434793 8 http://a.test/ Some(1934)  true",
            "785433180000000 8 http://a.test/b\r c\u{fffd} None  true",
            "3: it does not have the 7 fields of the format",
        ]
    );
}

#[test]
fn columns_of_a_csv_file_may_have_any_order() {
    let (format, said) = said(
        b"\xef\xbb\xbfsize,other,URL,client,cacheable\n\
          10,x,\"http://a.test/?a=1,2&b=\"\"c\"\"\",me,1\n\
          ,,/b,,\n\
          7,,/c,,0\n\
          7,,/c,,x\n\
          -7,,/c,,\n\
          7,,\"/c,,\n\
          7,,\"/c\"d,,\n\
          7,,,,\n\
          7,/c\n",
    );
    assert_eq!(format, Format::Csv);
    assert_eq!(
        said,
        [
            "0 me http://a.test/?a=1,2&b=\"c\" Some(10)  true",
            "0  /b None  true",
            "0  /c Some(7)  false",
            "5: the column `cacheable` is neither 0 nor 1",
            "6: the size cannot be read",
            "7: a quote is not closed, or not followed by a separator",
            "8: a quote is not closed, or not followed by a separator",
            "9: the name is empty",
            "10: it does not have the 5 fields of the format",
        ]
    );
}

#[test]
fn what_is_written_as_csv_reads_back() {
    let requests = [
        Request {
            time_us: 1_500_000,
            client: b"c",
            name: b"http://a.test/?\"x\",y",
            bytes: Some(9),
            group: b"g",
            may_be_stored: true,
        },
        Request {
            time_us: u64::MAX,
            client: b"",
            name: b"\xff\r",
            bytes: None,
            group: b"",
            may_be_stored: false,
        },
    ];
    let mut writer = Writer::new(vec![]).unwrap();
    for request in &requests {
        writer.write(request).unwrap();
    }
    let text = writer.finish().unwrap();
    let mut trace = read(&text, None).unwrap();
    for request in requests {
        assert_eq!(trace.next().unwrap(), Some(Ok(request)));
    }
    assert_eq!(trace.next().unwrap(), None);
}

#[test]
fn a_record_of_libcachesim_is_a_request() {
    let record = |time: u32, object: u64, bytes: u32, next: i64| {
        let mut record = time.to_le_bytes().to_vec();
        record.extend(object.to_le_bytes());
        record.extend(bytes.to_le_bytes());
        record.extend(next.to_le_bytes());
        record
    };
    let mut file = record(1, 0x1234_5678_9abc_def0, 4096, 7);
    file.extend(record(3, 5, 1, -1));
    let (format, whole) = said(&file);
    assert_eq!(format, Format::Oracle);
    let wanted = [
        "1000000  1311768467463790320 Some(4096)  true",
        "3000000  5 Some(1)  true",
    ];
    assert_eq!(whole, wanted);
    file.extend([0; 5]);
    let mut cut = read(&file, Some(Format::Oracle)).unwrap();
    assert!(cut.next().unwrap().unwrap().is_ok() && cut.next().unwrap().unwrap().is_ok());
    let damage = cut.next().unwrap().unwrap().unwrap_err();
    assert_eq!(damage.to_string(), "3: the file ends within a record");
}

#[test]
fn an_entry_of_a_har_file_is_a_request() {
    let (format, said) = said(
        br#"{"log": {"version": "1.2", "entries": [
            {"startedDateTime": "2016-05-29T16:43:56.384Z",
             "request": {"method": "GET", "url": "https://a.test/",
                         "headers": [{"name": "referer", "value": "https://b.test/"}]},
             "response": {"status": 200, "bodySize": -1, "content": {"size": 12}}},
            {"request": {"method": "GET", "url": "https://a.test/2"},
             "response": {"status": 200, "bodySize": 3, "content": {},
                          "headers": [{"name": "Cache-Control", "value": "private"}]}},
            {"request": {}, "response": {}}]}}"#,
    );
    assert_eq!(format, Format::Har);
    assert_eq!(
        said,
        [
            "1464540236384000  https://a.test/ Some(12) https://b.test/ true",
            "0  https://a.test/2 Some(3)  false",
            "3: the name is empty",
        ]
    );
}

#[test]
fn a_line_that_is_too_long_is_damage_and_the_next_one_is_read() {
    let mut text = b"url\n/a\n".to_vec();
    text.extend(vec![b'x'; 3 * LINE_BYTES_MAX]);
    text.extend(b"\n\n/b\n");
    let (_, said) = said(&text);
    let long = format!("3: longer than {LINE_BYTES_MAX} bytes");
    assert_eq!(said, ["0  /a None  true", &*long, "0  /b None  true"]);
}

#[test]
fn packed_traces_are_unpacked() {
    let plain = b"url\n/a\n";
    let mut zstd = vec![0; 100];
    let length = zstd_safe::compress(&mut zstd[..], plain, 3).unwrap();
    zstd.truncate(length);
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gzip.write_all(plain).unwrap();
    let gzip = gzip.finish().unwrap();
    for packed in [&zstd, &gzip] {
        assert_eq!(said(packed).1, ["0  /a None  true"]);
        // Frames and members follow each other in files that were appended to.
        let mut twice = packed.clone();
        twice.extend(packed);
        assert_eq!(
            said(&twice).1,
            ["0  /a None  true", "0  url None  true", "0  /a None  true"]
        );
        let cut = &packed[..packed.len() - 3];
        let error = read(cut, None).map(|_| ()).unwrap_err();
        assert!(matches!(error, TraceError::Io(_)), "{error}");
    }
}

#[test]
fn skippable_frames_of_zstd_are_skipped_wherever_they_are() {
    let mut packed = vec![0; 100];
    let length = zstd_safe::compress(&mut packed[..], b"url\n/a\n", 3).unwrap();
    packed.truncate(length);
    let skippable = [b"\x5a\x2a\x4d\x18\x05\0\0\0".as_slice(), b"notes"].concat();
    for parts in [
        [&skippable, &packed, &skippable],
        [&skippable, &skippable, &packed],
    ] {
        assert_eq!(
            said(&parts.map(|part| &part[..]).concat()).1,
            ["0  /a None  true"]
        );
    }
    assert!(matches!(
        read(&skippable, None).map(|_| ()),
        Err(TraceError::Empty)
    ));
    let cut = read(&skippable[..10], None).map(|_| ()).unwrap_err();
    assert!(matches!(cut, TraceError::Io(_)), "{cut}");
}

#[test]
fn a_byte_order_mark_does_not_hide_a_har_file() {
    let (format, said) = said(
        "\u{feff} {\"log\":{\"entries\":[{\"request\":{\"url\":\"u\"},\"response\":{}}]}}"
            .as_bytes(),
    );
    assert_eq!(
        (format, said),
        (Format::Har, vec!["0  u None  false".to_owned()])
    );
}

#[test]
fn a_file_of_no_known_format_is_refused() {
    for text in [&b"hello\nworld\n"[..], b"{}", b"{\"log\": 1}", b"\x00\x01"] {
        assert!(read(text, None).is_err(), "{text:?}");
    }
    assert!(matches!(
        read(b"a,b\n", Some(Format::Csv)),
        Err(TraceError::Columns)
    ));
    for format in [None, Some(Format::Csv), Some(Format::Har)] {
        assert!(matches!(read(b"", format), Err(TraceError::Empty)));
    }
}

/// What `fuzz/fuzz_targets/trace.rs` looks for at length.
#[test]
fn lines_with_any_damage_are_requests_or_named_by_their_number() {
    let samples: [(Format, &[u8]); 6] = [
        (
            Format::Squid,
            b"1.5 1 c TCP_HIT/200 5 GET http://a/ - NONE/- -\n",
        ),
        (
            Format::Combined,
            b"c - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 5 \"r\" \"a\"\n",
        ),
        (Format::Bu, b"1.5\tm\t1\t1\thttp://a/\t5\t0.1\n"),
        (Format::Csv, b"url,bytes\n\"a\"\"b\",5\n"),
        (Format::Oracle, &[1; 24]),
        (
            Format::Har,
            br#"{"log":{"entries":[{"request":{"url":"u"},"response":{"status":200}}]}}"#,
        ),
    ];
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..20_000 {
        let (format, sample) = samples[n % samples.len()];
        let mut text = sample.repeat(random.usize(1..4));
        for _ in 0..random.usize(0..6) {
            let at = random.usize(..text.len());
            match random.u8(..4) {
                0 => text[at] = random.u8(..),
                1 => text[at] = *random.choice(b" \"\\,\n\r\t-[]{}:/0").unwrap(),
                2 => text.insert(at, random.u8(..)),
                _ => text.truncate(at.max(1)),
            }
        }
        let Ok(mut trace) = read(&text, Some(format)) else {
            continue;
        };
        let mut line = 0;
        while let Some(step) = trace.next().unwrap() {
            match step {
                Ok(request) => assert!(!request.name.is_empty(), "{text:?}"),
                Err(damage) => {
                    assert!(damage.line > line, "{text:?}");
                    line = damage.line;
                }
            }
        }
    }
}
