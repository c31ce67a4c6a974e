//! A message that was built is parsed as the same message, and no datagram makes a parser panic.

use std::collections::HashMap;
use std::net::SocketAddr;

use fastrand::Rng;
use hashcache_peers::filter::{Bit, Size};
use hashcache_peers::htcp::auth::{Ends, Key, Signature};
use hashcache_peers::htcp::{
    Body, Cleared, ClrReason, Detail, Failure, Operation, Response, Specifier,
};
use hashcache_peers::{htcp, icp, update};

use crate::support::{for_each_seed, mend_length, mutate, text};

const ANSWERS: [icp::Answer; 5] = [
    icp::Answer::Hit,
    icp::Answer::Miss,
    icp::Answer::Err,
    icp::Answer::Denied,
    icp::Answer::MissNoFetch,
];

fn icp_datagram(rng: &mut Rng, url: &[u8]) -> Vec<u8> {
    let query = icp::Query::new(rng.u32(..), url).unwrap();
    if rng.bool() {
        query.to_datagram()
    } else {
        query.reply(*rng.choice(&ANSWERS).unwrap()).to_datagram()
    }
}

#[test]
fn icp_messages_survive_their_way_over_the_wire() {
    for_each_seed(2_000, |rng| {
        let url = text(rng, 300);
        let query = icp::Query::new(rng.u32(..), &url).unwrap();
        let received = query.to_datagram();
        assert_eq!(icp::parse(&received), Ok(icp::Message::Query(query)));
        for answer in ANSWERS {
            let reply = query.reply(answer);
            let received = reply.to_datagram();
            assert_eq!(icp::parse(&received), Ok(icp::Message::Reply(reply)));
        }
    });
}

#[test]
fn a_mutated_icp_datagram_is_refused_or_means_what_would_be_sent_for_it() {
    for_each_seed(20_000, |rng| {
        let url = text(rng, 40);
        let mut datagram = icp_datagram(rng, &url);
        mutate(rng, &mut datagram);
        if rng.bool() {
            mend_length(&mut datagram, 2);
        }
        let rebuilt = match icp::parse(&datagram) {
            Ok(icp::Message::Query(query)) => query.to_datagram(),
            Ok(icp::Message::Reply(reply)) => reply.to_datagram(),
            Err(_) => return,
        };
        // Options, option data and the sender's address are not read.
        datagram[8..icp::HEADER_BYTES].fill(0);
        assert_eq!(rebuilt, datagram);
    });
}

fn update_datagram(rng: &mut Rng) -> (update::Position, Vec<update::Flip>, Vec<u8>) {
    let size = Size::new(rng.u32(1..100_000), rng.u8(1..=20)).unwrap();
    let position = update::Position {
        epoch: rng.u32(..),
        serial: rng.u32(..),
    };
    let flip = |rng: &mut Rng| update::Flip {
        bit: rng.u32(..size.bits()),
        value: *rng.choice(&[Bit::Set, Bit::Clear]).unwrap(),
    };
    let flips: Vec<update::Flip> = (0..rng.usize(..=10)).map(|_| flip(rng)).collect();
    let datagram = changes(size, &flips).datagram(position);
    (position, flips, datagram)
}

/// The changes of a filter of `size` in which `flips` happened one after the other.
fn changes(size: Size, flips: &[update::Flip]) -> update::Changes {
    let values: HashMap<u32, Bit> = flips.iter().map(|it| (it.bit, it.value)).collect();
    let bits = flips.iter().map(|it| it.bit).collect();
    update::Changes::new(size, bits, |bit| values[&bit])
}

#[test]
fn updates_survive_their_way_over_the_wire() {
    for_each_seed(2_000, |rng| {
        let (position, flips, datagram) = update_datagram(rng);
        let update = update::parse(&datagram).unwrap();
        assert_eq!(update.position(), position);
        let last = |bits: Vec<update::Flip>| -> HashMap<u32, Bit> {
            bits.into_iter().map(|it| (it.bit, it.value)).collect()
        };
        assert_eq!(last(update.flips().collect()), last(flips));
    });
}

#[test]
fn a_mutated_update_is_refused_or_names_bits_that_exist() {
    for_each_seed(20_000, |rng| {
        let (_, _, mut datagram) = update_datagram(rng);
        mutate(rng, &mut datagram);
        if rng.bool() {
            mend_length(&mut datagram, 2);
        }
        if let Ok(update) = update::parse(&datagram) {
            let size = Size::new(update.filter_bits() / 8, 8);
            if let Ok(size) = size
                && size.bits() == update.filter_bits()
            {
                let flips: Vec<update::Flip> = update.flips().collect();
                let mut changes = changes(size, &flips);
                let is_once = changes.left() == flips.len();
                let rebuilt = changes.datagram(update.position());
                // Option data and the sender's address are not read.
                assert!(!is_once || rebuilt[20..] == datagram[20..]);
            }
            assert!(update.flips().all(|it| it.bit < update.filter_bits()));
        }
    });
}

fn htcp_body<'a>(rng: &mut Rng, strings: &'a [Vec<u8>; 4]) -> Body<'a> {
    let [method, uri, version, request_fields] = strings;
    let specifier = Specifier {
        method,
        uri,
        version,
        request_fields,
    };
    let clr = |reason| Operation::Clr { reason, specifier };
    let operations = [
        Operation::Nop,
        Operation::Tst(specifier),
        clr(ClrReason::Unspecified),
        clr(ClrReason::DoesNotExist),
        Operation::Other(3),
    ];
    let detail = Detail {
        response_fields: method,
        entity_fields: uri,
        cache_fields: version,
    };
    let failure = Failure::NotImplemented;
    let responses = [
        Response::Nop,
        Response::Present(detail),
        Response::Absent { cache_fields: uri },
        Response::Clr(Cleared::Kept),
        Response::Refused { opcode: 3, failure },
    ];
    if rng.bool() {
        Body::Request {
            operation: *rng.choice(&operations).unwrap(),
            wants_response: rng.bool(),
        }
    } else {
        Body::Response(*rng.choice(&responses).unwrap())
    }
}

fn strings(rng: &mut Rng, longest: usize) -> [Vec<u8>; 4] {
    std::array::from_fn(|_| text(rng, longest))
}

#[test]
fn htcp_messages_survive_their_way_over_the_wire_and_are_believed_by_their_key_alone() {
    let (key, other) = (Key::new(b"k", b"s").unwrap(), Key::new(b"k", b"t").unwrap());
    for_each_seed(2_000, |rng| {
        let end = |rng: &mut Rng| SocketAddr::from((rng.u32(..).to_be_bytes(), rng.u16(..)));
        let ends = Ends {
            source: end(rng),
            destination: end(rng),
        };
        let strings = strings(rng, 300);
        let body = htcp_body(rng, &strings);
        let (transaction, time) = (rng.u32(..), rng.u32(..u32::MAX - 100));
        let signature = Signature {
            key: &key,
            ends,
            time,
            expiry: time + 100,
        };
        let signature = rng.bool().then_some(&signature);
        let datagram = htcp::datagram(rng.u8(..=1), transaction, &body, signature).unwrap();
        let message = htcp::parse(&datagram).unwrap();
        assert_eq!(message.body, body);
        assert_eq!(message.transaction, transaction);
        let checked = message.check(&key, &ends, time + 50);
        assert_eq!(checked.is_ok(), signature.is_some());
        assert!(message.check(&other, &ends, time + 50).is_err());
    });
}

#[test]
fn a_mutated_htcp_datagram_is_refused_or_survives_being_sent_again() {
    for_each_seed(20_000, |rng| {
        let strings = strings(rng, 20);
        let body = htcp_body(rng, &strings);
        let mut datagram = htcp::datagram(1, rng.u32(..), &body, None).unwrap();
        mutate(rng, &mut datagram);
        if rng.bool() {
            mend_length(&mut datagram, 0);
        }
        let Ok(message) = htcp::parse(&datagram) else {
            return;
        };
        let again = htcp::datagram(message.minor, message.transaction, &message.body, None);
        let again = again.unwrap();
        let again = htcp::parse(&again).unwrap();
        assert_eq!(again.body, message.body);
        assert_eq!(again.transaction, message.transaction);
    });
}
