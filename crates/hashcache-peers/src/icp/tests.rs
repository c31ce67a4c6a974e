//! Tests for ICP: datagrams sent by Squid 5.7, and datagrams that are ignored.

use super::*;

const URL: &[u8] = b"http://127.0.0.1:18099/ia.html";

/// A query as Squid 5.7 sends it: 55 octets.
fn squids_query() -> Vec<u8> {
    let mut datagram = b"\x01\x02\x00\x37\x00\x00\x00\x01".to_vec();
    datagram.extend_from_slice(&[0; 16]);
    datagram.extend_from_slice(URL);
    datagram.push(0);
    datagram
}

fn parsed_query(datagram: &[u8]) -> Query<'_> {
    let Ok(Message::Query(query)) = parse(datagram) else {
        panic!("no query: {:?}", parse(datagram));
    };
    query
}

/// `datagram` with a correct length field.
fn sized(mut datagram: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(datagram.len()).unwrap();
    datagram[2..4].copy_from_slice(&length.to_be_bytes());
    datagram
}

#[test]
fn a_query_is_octet_for_octet_as_squid_sends_it() {
    let query = Query::new(1, URL).unwrap();
    assert_eq!(query.to_datagram(), squids_query());
    assert_eq!(parsed_query(&squids_query()), query);
    assert_eq!(query.requester(), Ipv4Addr::UNSPECIFIED);
}

#[test]
fn a_hit_is_octet_for_octet_as_squid_sends_it() {
    let mut hit = b"\x02\x02\x00\x33\x00\x00\x00\x01".to_vec();
    hit.extend_from_slice(&[0; 12]);
    hit.extend_from_slice(URL);
    hit.push(0);
    let query = squids_query();
    let query = parsed_query(&query);
    let reply = query.reply(Answer::Hit);
    assert_eq!(reply.to_datagram(), hit);
    assert_eq!(parse(&hit), Ok(Message::Reply(reply)));
    assert!(reply.answers(&query));
}

#[test]
fn each_answer_has_the_opcode_of_the_rfc() {
    let expected = [
        (Answer::Hit, 2),
        (Answer::Miss, 3),
        (Answer::Err, 4),
        (Answer::MissNoFetch, 21),
        (Answer::Denied, 22),
    ];
    assert_eq!(expected.len(), Answer::ALL.len());
    for (answer, opcode) in expected {
        let datagram = Reply::new(answer, 7, URL).unwrap().to_datagram();
        assert_eq!(datagram[0], opcode);
        let Ok(Message::Reply(reply)) = parse(&datagram) else {
            panic!("no reply");
        };
        assert_eq!(reply.answer(), answer);
    }
}

#[test]
fn a_reply_to_another_number_or_url_answers_nothing() {
    let query = Query::new(5, URL).unwrap();
    let reply = |number, url| Reply::new(Answer::Hit, number, url).unwrap();
    assert!(reply(5, URL).answers(&query));
    assert!(!reply(6, URL).answers(&query));
    assert!(!reply(5, &URL[..URL.len() - 1]).answers(&query));
    assert!(!reply(5, b"http://127.0.0.1:18099/iA.html").answers(&query));
}

#[test]
fn options_and_the_sender_address_change_nothing() {
    let mut datagram = squids_query();
    datagram[8..12].copy_from_slice(&0xc000_0000_u32.to_be_bytes());
    datagram[12..20].copy_from_slice(&[0xff; 8]);
    assert_eq!(parsed_query(&datagram), parsed_query(&squids_query()));
}

#[test]
fn the_requester_address_is_read() {
    let mut datagram = squids_query();
    datagram[20..24].copy_from_slice(&[10, 1, 2, 3]);
    let query = parsed_query(&datagram);
    assert_eq!(query.requester(), Ipv4Addr::new(10, 1, 2, 3));
    assert_eq!(query.to_datagram(), datagram);
}

#[test]
fn other_versions_and_opcodes_are_ignored_with_their_number() {
    for version in (0..=255).filter(|it| *it != 2) {
        let mut datagram = squids_query();
        datagram[1] = version;
        assert_eq!(parse(&datagram), Err(Ignored::Version(version)));
    }
    let spoken = [1, 2, 3, 4, 21, 22];
    for opcode in (0..=255).filter(|it| !spoken.contains(it)) {
        let mut datagram = squids_query();
        datagram[0] = opcode;
        assert_eq!(parse(&datagram), Err(Ignored::Opcode(opcode)));
    }
}

#[test]
fn a_length_field_that_differs_from_the_datagram_is_refused() {
    for length in [0, 54, 56, 0xffff] {
        let mut datagram = squids_query();
        datagram[2..4].copy_from_slice(&u16::to_be_bytes(length));
        assert_eq!(parse(&datagram), Err(Ignored::Length(length)));
    }
}

#[test]
fn every_cut_of_a_query_is_refused() {
    let query = squids_query();
    for length in 0..query.len() {
        let expected = match length {
            0..20 => Ignored::TooShort,
            _ => Ignored::Length(55),
        };
        assert_eq!(parse(&query[..length]), Err(expected), "at {length}");
    }
    for length in 20..24 {
        assert_eq!(
            parse(&sized(query[..length].to_vec())),
            Err(Ignored::TooShort)
        );
    }
}

#[test]
fn a_url_ends_with_the_only_nul() {
    for url in [&b""[..], b"http://a/", b"http://a/\0x", b"http://a/\0\0"] {
        let mut datagram = squids_query();
        datagram.truncate(24);
        datagram.extend_from_slice(url);
        assert_eq!(parse(&sized(datagram)), Err(Ignored::Url), "{url:?}");
    }
}

#[test]
fn a_datagram_has_at_most_16_kib() {
    let longest = vec![b'a'; URL_BYTES_MAX];
    let query = Query::new(1, &longest).unwrap();
    let datagram = query.to_datagram();
    assert_eq!(datagram.len(), DATAGRAM_BYTES_MAX);
    assert_eq!(parsed_query(&datagram), query);

    let longer = vec![b'a'; URL_BYTES_MAX + 1];
    let refused = Err(UnsendableUrl {
        bytes: URL_BYTES_MAX + 1,
    });
    assert_eq!(Query::new(1, &longer), refused);
    let mut received = datagram;
    received.insert(30, b'a');
    assert_eq!(parse(&sized(received)), Err(Ignored::TooLong));
}

#[test]
fn a_reply_is_four_octets_shorter_than_its_query() {
    for bytes in [0, 1, 100, URL_BYTES_MAX] {
        let url = vec![b'a'; bytes];
        let query = Query::new(1, &url).unwrap();
        let reply = query.reply(Answer::MissNoFetch).to_datagram();
        assert_eq!(reply.len() + 4, query.to_datagram().len());
    }
}

#[test]
fn a_url_with_a_nul_is_not_sent() {
    assert!(Query::new(1, b"http://a/\0").is_err());
    assert!(Reply::new(Answer::Err, 1, b"\0").is_err());
}
