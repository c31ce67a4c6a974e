//! Tests for directory updates: the octets, the rejected datagrams, and equality of a copy with the
//! original.

use std::collections::HashMap;

use super::*;
use crate::key::Key;

const FIRST: Position = Position {
    epoch: 0xe0c4_0001,
    serial: 7,
};

fn size() -> Size {
    Size::new(100, 10).unwrap()
}

fn filter() -> Filter {
    Filter::empty(size()).unwrap()
}

fn flip(bit: u32, value: Bit) -> Flip {
    Flip { bit, value }
}

/// The changes of a filter with `size` after `flips` in sequence.
fn changes(size: Size, flips: &[Flip]) -> Changes {
    let values: HashMap<u32, Bit> = flips.iter().map(|it| (it.bit, it.value)).collect();
    Changes::new(size, flips.iter().map(|it| it.bit).collect(), |bit| {
        values[&bit]
    })
}

/// The only datagram with `flips` for a filter with 1,000 bits.
fn datagram(flips: &[Flip]) -> Vec<u8> {
    let mut changes = changes(size(), flips);
    let datagram = changes.datagram(FIRST);
    assert_eq!(changes.left(), 0);
    datagram
}

/// An update with three bits.
fn three_bits() -> Vec<u8> {
    let set = |bit| flip(bit, Bit::Set);
    datagram(&[set(700), flip(999, Bit::Clear), set(5)])
}

/// The error for `three_bits` with other octets at `offset`.
fn refusal(offset: usize, octets: &[u8]) -> Refused {
    let mut datagram = three_bits();
    datagram[offset..offset + octets.len()].copy_from_slice(octets);
    parse(&datagram).expect_err("a wrong update")
}

#[test]
fn an_update_is_octet_for_octet_as_described() {
    let mut expected = b"\x14\x02\x00\x25\x00\x00\x00\x07\xe0\xc4\x00\x01".to_vec();
    expected.extend_from_slice(&[0; 8]);
    expected.extend_from_slice(b"\x00\x04\x00\x20\x00\x00\x03\xe8\x00\x02\x00\x01");
    // 5, 5 + 0x37 + 5 * 128, 0x67 + 7 * 128.
    expected.extend_from_slice(b"\x05\xb7\x05\xe7\x07");
    assert_eq!(three_bits(), expected);

    let update = parse(&expected).unwrap();
    assert_eq!(update.position(), FIRST);
    assert_eq!(update.filter_bits(), 1_000);
    let flips: Vec<Flip> = update.flips().collect();
    let set = |bit| flip(bit, Bit::Set);
    assert_eq!(flips, [set(5), set(700), flip(999, Bit::Clear)]);
}

#[test]
fn an_update_gives_bits_their_values() {
    let mut filter = filter();
    filter.put(999, Bit::Set);
    let octets = three_bits();
    let update = parse(&octets).unwrap();
    assert_eq!(update.apply(&mut filter), Ok(3));
    assert!(filter.is_set(5) && filter.is_set(700) && !filter.is_set(999));
    // Applying an update twice has the same effect as once.
    assert_eq!(update.apply(&mut filter), Ok(0));
}

#[test]
fn the_last_value_of_a_bit_counts() {
    let flips = [flip(5, Bit::Set), flip(6, Bit::Set), flip(5, Bit::Clear)];
    let octets = datagram(&flips);
    let flips: Vec<Flip> = parse(&octets).unwrap().flips().collect();
    assert_eq!(flips, [flip(6, Bit::Set), flip(5, Bit::Clear)]);
}

#[test]
fn an_update_for_another_size_changes_nothing() {
    let mut filter = Filter::empty(Size::new(100, 5).unwrap()).unwrap();
    let octets = three_bits();
    let expected = OtherSize {
        theirs: 1_000,
        ours: 504,
    };
    assert_eq!(parse(&octets).unwrap().apply(&mut filter), Err(expected));
    assert!(!filter.is_set(5));
}

#[test]
fn a_copy_follows_insertions_and_a_filter_that_was_built_anew() {
    let mut original = filter();
    let mut copy = filter();
    let mut flips = vec![];
    for n in 0..80_u32 {
        let new = original.insert(&Key::of_get(&n.to_be_bytes()));
        flips.extend(new.as_slice().iter().map(|bit| flip(*bit, Bit::Set)));
    }
    let send = |flips: &[Flip], copy: &mut Filter| {
        let octets = datagram(flips);
        assert_eq!(parse(&octets).unwrap().apply(copy), Ok(flips.len()));
    };
    send(&flips, &mut copy);
    assert_eq!(copy.octets(), original.octets());

    let mut rebuilt = filter();
    for n in 40..100_u32 {
        rebuilt.insert(&Key::of_get(&n.to_be_bytes()));
    }
    let flips: Vec<Flip> = differences(&original, &rebuilt).unwrap().collect();
    assert!(flips.iter().any(|it| it.value == Bit::Clear));
    send(&flips, &mut copy);
    assert_eq!(copy.octets(), rebuilt.octets());
    assert_eq!(differences(&rebuilt, &copy).unwrap().count(), 0);
}

#[test]
fn filters_of_different_sizes_have_no_differences() {
    let other = Filter::empty(Size::new(101, 10).unwrap()).unwrap();
    assert!(differences(&filter(), &other).is_none());
}

#[test]
fn more_changes_than_fit_an_ethernet_frame_take_several_datagrams() {
    let size = Size::new(100_000, 10).unwrap();
    let flips = |step: usize| -> Vec<Flip> {
        let bits = (0..1_000_000).step_by(step);
        bits.map(|bit| flip(bit, Bit::Set)).collect()
    };
    // Distances with one octet, and with two.
    for (step, datagrams) in [(100, 10_000 / 1_364 + 1), (1_000, 1_000 / 682 + 1)] {
        let mut changes = changes(size, &flips(step));
        let mut all = vec![];
        for n in 1.. {
            let octets = changes.datagram(FIRST);
            assert!(octets.len() <= DATAGRAM_BYTES_MAX);
            all.extend(parse(&octets).unwrap().flips());
            if changes.left() == 0 {
                assert_eq!(n, datagrams);
                break;
            }
            assert!(octets.len() > DATAGRAM_BYTES_MAX - CODED_BYTES_MAX);
        }
        assert_eq!(all, flips(step));
    }
}

#[test]
fn the_largest_filter_has_its_last_bit() {
    let size = Size::new(1 << 31, 1).unwrap();
    let last = flip((1 << 31) - 1, Bit::Clear);
    let octets = changes(size, &[last]).datagram(FIRST);
    assert_eq!(octets[32..], [0xff, 0xff, 0xff, 0xff, 0x07]);
    assert!(parse(&octets).unwrap().flips().eq([last]));
}

#[test]
fn a_bit_outside_the_filter_is_not_sent_and_is_refused() {
    let refused = |bit, filter_bits| Refused::Bit { bit, filter_bits };
    assert_eq!(
        datagram(&[flip(1_000, Bit::Set), flip(5, Bit::Set)]),
        datagram(&[flip(5, Bit::Set)])
    );
    // 999 and another.
    assert_eq!(refusal(35, &[0xe8]), refused(1_000, 1_000));
    assert_eq!(refusal(24, &[0; 4]), refused(5, 0));
}

#[test]
fn other_hash_functions_wrong_counts_and_other_codes_are_refused() {
    let functions = |count, bits| Refused::Functions { count, bits };
    assert_eq!(refusal(20, &[0, 5]), functions(5, 32));
    assert_eq!(refusal(22, &[0, 16]), functions(4, 16));
    let coding = |set, clear| Refused::Coding { set, clear };
    for (set, clear) in [(0_u16, 0_u16), (1, 1), (2, 0), (2, 2), (2, u16::MAX)] {
        let counts = [set.to_be_bytes(), clear.to_be_bytes()].concat();
        assert_eq!(refusal(28, &counts), coding(set, clear));
    }
    // A second 5 for the same bit; the number 5 coded in two octets; a code without a last octet.
    assert_eq!(refusal(32, &[0x85, 0x00, 0x05]), coding(2, 1));
    assert_eq!(refusal(33, &[0x00, 0x05]), coding(2, 1));
    assert_eq!(refusal(36, &[0x87]), coding(2, 1));
    assert_eq!(refusal(32, &[0xff; 5]), coding(2, 1));
    // More than 32 bits; distances with a sum above 32 bits.
    let cut = |from: &[u8]| {
        let mut datagram = three_bits()[..32].to_vec();
        datagram[24..28].fill(0xff);
        datagram.extend_from_slice(from);
        let length = u16::try_from(datagram.len()).unwrap();
        datagram[2..4].copy_from_slice(&length.to_be_bytes());
        parse(&datagram).expect_err("a wrong update")
    };
    assert_eq!(cut(&[0x80, 0x80, 0x80, 0x80, 0x10, 1, 1]), coding(2, 1));
    let most = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let bit = u32::MAX;
    let outside = Refused::Bit {
        bit,
        filter_bits: bit,
    };
    assert_eq!(cut(&[&most[..], &[1, 1]].concat()), outside);
    let nearly = [0xfe, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(cut(&[&nearly[..], &nearly, &[1]].concat()), coding(2, 1));
    // As in the paper: two words, one of bit 5 and one of bit 7.
    let words = [0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 7];
    let mut papers = three_bits()[..28].to_vec();
    papers.extend_from_slice(&words);
    papers[2..4].copy_from_slice(&40_u16.to_be_bytes());
    assert_eq!(parse(&papers), Err(coding(0, 2)));
}

#[test]
fn an_update_that_no_sender_makes_is_too_long() {
    let mut octets = vec![0; DATAGRAM_BYTES_MAX + 1];
    let head = three_bits();
    octets[..32].copy_from_slice(&head[..32]);
    octets[2..4].copy_from_slice(&1_401_u16.to_be_bytes());
    assert_eq!(parse(&octets), Err(Refused::TooLong));
}

#[test]
fn every_cut_and_every_other_message_of_icp_is_refused() {
    let octets = three_bits();
    for length in 0..octets.len() {
        let mut cut = octets[..length].to_vec();
        assert!(parse(&cut).is_err());
        if length >= 20 {
            cut[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
            assert!(parse(&cut).is_err(), "at {length}");
        }
    }
    assert_eq!(refusal(0, &[1]), Refused::Icp(Ignored::Opcode(1)));
    assert_eq!(refusal(1, &[3]), Refused::Icp(Ignored::Version(3)));
    assert_eq!(crate::icp::parse(&octets), Err(Ignored::Opcode(OPCODE)));
}

#[test]
fn a_position_knows_what_is_next_old_or_missing() {
    let at = |epoch, serial| Position { epoch, serial };
    let step = |serial| at(1, 10).step_to(at(1, serial));
    assert_eq!(step(11), Step::Next);
    assert_eq!(step(10), Step::Old);
    assert_eq!(step(3), Step::Old);
    assert_eq!(step(12), Step::Gap);
    assert_eq!(at(1, 10).step_to(at(2, 11)), Step::Gap);
    assert_eq!(at(1, 10).step_to(at(2, 9)), Step::Gap);
    assert_eq!(at(1, u32::MAX).step_to(at(1, 0)), Step::Next);
    assert_eq!(at(1, 0).step_to(at(1, u32::MAX)), Step::Old);
}
