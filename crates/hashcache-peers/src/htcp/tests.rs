//! Tests for HTCP: datagrams sent by Squid 5.7, and datagrams that are ignored.

use super::*;

const URL: &[u8] = b"http://127.0.0.1:18099/ha.html";

/// TST as Squid 5.7 sends it.
fn squids_tst() -> Vec<u8> {
    [
        b"\x00\x3a\x00\x01\x00\x34\x10\x02\x00\x00\x00\x01\x00\x03GET\x00\x1e",
        URL,
        b"\x00\x031/1\x00\x00\x00\x02",
    ]
    .concat()
}

fn tst() -> Body<'static> {
    Body::Request {
        operation: Operation::Tst(Specifier {
            method: b"GET",
            uri: URL,
            version: b"1/1",
            request_fields: b"",
        }),
        wants_response: true,
    }
}

/// Encodes `body` as a datagram and parses it.
fn survives(body: Body<'_>) {
    for minor in [0, 1] {
        let datagram = datagram(minor, 0x0102_0304, &body, None).unwrap();
        let message = parse(&datagram).unwrap();
        assert_eq!(message.body, body);
        assert_eq!((message.minor, message.transaction), (minor, 0x0102_0304));
        assert!(!message.is_signed());
    }
}

#[test]
fn a_tst_is_octet_for_octet_squids() {
    assert_eq!(datagram(MINOR, 1, &tst(), None).unwrap(), squids_tst());
    assert_eq!(parse(&squids_tst()).unwrap().body, tst());
}

#[test]
fn squids_answers_are_understood() {
    let mut hit = b"\x00\x2e\x00\x01\x00\x28\x10\x01\x00\x00\x00\x01".to_vec();
    hit.extend_from_slice(b"\x00\x08Age: 0\r\n\x00\x03E\r\n\x00\x0fCache-to-Ori: 0\x00\x02");
    let detail = Detail {
        response_fields: b"Age: 0\r\n",
        entity_fields: b"E\r\n",
        cache_fields: b"Cache-to-Ori: 0",
    };
    let present = Body::Response(Response::Present(detail));
    assert_eq!(parse(&hit).unwrap().body, present);
    assert_eq!(datagram(MINOR, 1, &present, None).unwrap(), hit);

    // Three empty strings instead of one.
    let miss = b"\x00\x14\x00\x01\x00\x0e\x11\x01\x00\x00\x00\x03\0\0\0\0\0\0\x00\x02";
    let absent = Response::Absent { cache_fields: b"" };
    assert_eq!(parse(miss).unwrap().body, Body::Response(absent));
    assert_eq!(
        datagram(MINOR, 3, &Body::Response(absent), None).unwrap(),
        miss
    );
    // As the RFC defines it.
    let one = b"\x00\x10\x00\x01\x00\x0a\x11\x01\x00\x00\x00\x03\0\0\x00\x02";
    assert_eq!(parse(one).unwrap().body, Body::Response(absent));

    let cleared = b"\x00\x0e\x00\x01\x00\x08\x40\x01\x00\x00\x00\x06\x00\x02";
    let gone = Body::Response(Response::Clr(Cleared::Gone));
    assert_eq!(parse(cleared).unwrap().body, gone);
    assert_eq!(datagram(MINOR, 6, &gone, None).unwrap(), cleared);
    let mut not_held = *cleared;
    not_held[6] = 0x42;
    let absent = Body::Response(Response::Clr(Cleared::Absent));
    assert_eq!(parse(&not_held).unwrap().body, absent);
}

#[test]
fn every_message_survives_its_way_over_the_wire() {
    let specifier = Specifier::get(URL, b"Accept: text/html\r\n");
    let operations = [
        Operation::Nop,
        Operation::Tst(specifier),
        Operation::Clr {
            reason: ClrReason::Unspecified,
            specifier,
        },
        Operation::Clr {
            reason: ClrReason::DoesNotExist,
            specifier,
        },
        Operation::Other(2),
    ];
    for operation in operations {
        for wants_response in [false, true] {
            survives(Body::Request {
                operation,
                wants_response,
            });
        }
    }
    let cache_fields = b"Cache-Vary: Accept\r\n";
    let responses = [
        Response::Nop,
        Response::Present(Detail::default()),
        Response::Absent { cache_fields },
        Response::Clr(Cleared::Gone),
        Response::Clr(Cleared::Kept),
        Response::Clr(Cleared::Absent),
    ];
    for response in responses {
        survives(Body::Response(response));
    }
    for (failure, code) in Failure::ALL.into_iter().zip(0..) {
        assert_eq!(failure.code(), code);
        let refused = Response::Refused { opcode: 3, failure };
        survives(Body::Response(refused));
    }
}

#[test]
fn mon_set_and_unknown_opcodes_are_recognised_to_be_refused() {
    for opcode in [2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
        let mut request = squids_tst();
        request[6] = opcode << 4;
        let Body::Request {
            operation,
            wants_response: true,
        } = parse(&request).unwrap().body
        else {
            panic!("a request");
        };
        assert_eq!(operation, Operation::Other(opcode));
        assert_eq!(operation.opcode(), opcode);
    }
}

#[test]
fn no_operation_is_sent_as_another_one() {
    for opcode in [0, 1, 4, 16, 17, 20, 255] {
        let body = Body::Request {
            operation: Operation::Other(opcode),
            wants_response: true,
        };
        assert_eq!(datagram(MINOR, 1, &body, None), Err(Unsendable));
    }
}

#[test]
fn the_response_code_of_a_request_and_reserved_bits_are_not_read() {
    let mut request = squids_tst();
    request[6] |= 0x0f;
    request[7] |= 0xfc;
    assert_eq!(parse(&request).unwrap().body, tst());
}

#[test]
fn padding_of_each_part_is_not_read() {
    let mut padded = squids_tst();
    // AUTH, then DATA, then the message.
    padded.extend_from_slice(&[0; 3]);
    let auth = padded.len() - 5;
    padded.splice(auth..auth, [9, 9]);
    padded[5] += 2;
    padded[1] += 5;
    let message = parse(&padded).unwrap();
    assert_eq!(message.body, tst());
    assert!(!message.is_signed());
}

#[test]
fn other_versions_are_ignored_with_their_number() {
    for (major, minor) in [(1, 0), (0, 2), (0, 255), (255, 1)] {
        let mut request = squids_tst();
        request[2..4].copy_from_slice(&[major, minor]);
        assert_eq!(parse(&request), Err(Ignored::Version { major, minor }));
    }
}

#[test]
fn lengths_that_do_not_fit_the_datagram_are_refused() {
    let refusal = |offset: usize, length: u16| {
        let mut request = squids_tst();
        request[offset..offset + 2].copy_from_slice(&length.to_be_bytes());
        parse(&request).unwrap_err()
    };
    for length in [0, 57, 59, u16::MAX] {
        assert_eq!(refusal(0, length), Ignored::Length(length));
    }
    // DATA: shorter than its own field, longer than the datagram, shorter than its header.
    assert_eq!(refusal(4, 1), Ignored::Length(1));
    assert_eq!(refusal(4, 55), Ignored::Length(55));
    assert!(matches!(
        refusal(4, 7),
        Ignored::TooShort | Ignored::Length(_)
    ));
    // A string of DATA must not reach into AUTH.
    assert_eq!(refusal(54, 1), Ignored::TooShort);
    assert_eq!(refusal(17, u16::MAX), Ignored::TooShort);
    // AUTH.
    assert_eq!(refusal(56, 0), Ignored::Length(0));
    assert_eq!(refusal(56, 3), Ignored::Length(3));
}

#[test]
fn every_cut_is_refused() {
    let request = squids_tst();
    for length in 0..request.len() {
        let mut cut = request[..length].to_vec();
        assert!(parse(&cut).is_err());
        if let Some(field) = cut.get_mut(..2) {
            field.copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        }
        assert!(parse(&cut).is_err(), "at {length}");
    }
}

#[test]
fn response_codes_without_a_meaning_are_ignored() {
    let codes = [
        (0, 1, 1),
        (1, 2, 1),
        (4, 3, 1),
        (2, 0, 1),
        (1, 6, 3),
        (1, 15, 3),
    ];
    for (opcode, code, flags) in codes {
        let mut response = squids_tst();
        response[6] = opcode << 4 | code;
        response[7] = flags;
        assert_eq!(parse(&response), Err(Ignored::Response { opcode, code }));
    }
}

#[test]
fn a_datagram_has_at_most_16_kib() {
    let with_fields = |fields: &[u8]| {
        let body = Body::Request {
            operation: Operation::Tst(Specifier::get(URL, fields)),
            wants_response: true,
        };
        datagram(MINOR, 1, &body, None)
    };
    let empty = with_fields(b"").unwrap().len();
    let mut fields = vec![b'a'; DATAGRAM_BYTES_MAX - empty];
    let mut largest = with_fields(&fields).unwrap();
    assert_eq!(largest.len(), DATAGRAM_BYTES_MAX);
    assert!(parse(&largest).is_ok());
    largest.push(0);
    assert_eq!(parse(&largest), Err(Ignored::TooLong));
    fields.push(b'a');
    assert_eq!(with_fields(&fields), Err(Unsendable));
    fields.resize(1 << 17, b'a');
    assert_eq!(with_fields(&fields), Err(Unsendable));
}
