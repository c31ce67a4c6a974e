//! Tests of directory updates: the octets, what is refused, and that a copy follows its original.

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

/// An update of two bits in a filter of 1,000.
fn two_bits() -> Vec<u8> {
    let flips = [flip(5, Bit::Set), flip(999, Bit::Clear)];
    datagram(FIRST, size(), &flips).unwrap()
}

/// The refusal of `two_bits` with other octets at `offset`.
fn refusal(offset: usize, octets: &[u8]) -> Refused {
    let mut datagram = two_bits();
    datagram[offset..offset + octets.len()].copy_from_slice(octets);
    parse(&datagram).expect_err("a wrong update")
}

#[test]
fn an_update_is_octet_for_octet_the_papers() {
    let mut expected = b"\x14\x02\x00\x28\x00\x00\x00\x07\xe0\xc4\x00\x01".to_vec();
    expected.extend_from_slice(&[0; 8]);
    expected.extend_from_slice(b"\x00\x04\x00\x20\x00\x00\x03\xe8\x00\x00\x00\x02");
    expected.extend_from_slice(b"\x80\x00\x00\x05\x00\x00\x03\xe7");
    assert_eq!(two_bits(), expected);

    let update = parse(&expected).unwrap();
    assert_eq!(update.position(), FIRST);
    assert_eq!(update.filter_bits(), 1_000);
    let flips: Vec<Flip> = update.flips().collect();
    assert_eq!(flips, [flip(5, Bit::Set), flip(999, Bit::Clear)]);
}

#[test]
fn an_update_gives_bits_their_values() {
    let mut filter = filter();
    filter.put(999, Bit::Set);
    let octets = two_bits();
    let update = parse(&octets).unwrap();
    assert_eq!(update.apply(&mut filter), Ok(2));
    assert!(filter.is_set(5) && !filter.is_set(999));
    // Twice is as good as once.
    assert_eq!(update.apply(&mut filter), Ok(0));
}

#[test]
fn the_last_value_of_a_bit_counts() {
    let flips = [flip(5, Bit::Set), flip(5, Bit::Clear)];
    let octets = datagram(FIRST, size(), &flips).unwrap();
    let mut filter = filter();
    parse(&octets).unwrap().apply(&mut filter).unwrap();
    assert!(!filter.is_set(5));
}

#[test]
fn an_update_for_another_size_changes_nothing() {
    let mut filter = Filter::empty(Size::new(100, 5).unwrap()).unwrap();
    let octets = two_bits();
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
        for part in flips.chunks(FLIPS_MAX) {
            let octets = datagram(FIRST, size(), part).unwrap();
            assert_eq!(parse(&octets).unwrap().apply(copy), Ok(part.len()));
        }
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
fn a_datagram_has_at_most_342_bits_and_fits_an_ethernet_frame() {
    let flips = [flip(3, Bit::Set); FLIPS_MAX + 1];
    let full = datagram(FIRST, size(), &flips[..FLIPS_MAX]).unwrap();
    assert_eq!(full.len(), 1_400);
    assert_eq!(parse(&full).unwrap().flips().len(), FLIPS_MAX);
    let refused = Err(Refused::Words(343));
    assert_eq!(datagram(FIRST, size(), &flips), refused);

    let mut longer = full;
    longer.extend_from_slice(&[0; 4]);
    longer[2..4].copy_from_slice(&1_404_u16.to_be_bytes());
    longer[28..32].copy_from_slice(&343_u32.to_be_bytes());
    assert_eq!(parse(&longer), Err(Refused::Words(343)));
}

#[test]
fn a_bit_outside_the_filter_is_refused_by_both_sides() {
    let refused = Refused::Bit {
        bit: 1_000,
        filter_bits: 1_000,
    };
    let flips = [flip(1_000, Bit::Set)];
    assert_eq!(datagram(FIRST, size(), &flips), Err(refused));
    assert_eq!(refusal(36, &1_000_u32.to_be_bytes()), refused);
    assert_eq!(
        refusal(24, &[0; 4]),
        Refused::Bit {
            bit: 5,
            filter_bits: 0
        }
    );
}

#[test]
fn other_hash_functions_and_wrong_counts_are_refused() {
    let functions = |count, bits| Refused::Functions { count, bits };
    assert_eq!(refusal(20, &[0, 5]), functions(5, 32));
    assert_eq!(refusal(22, &[0, 16]), functions(4, 16));
    for words in [0, 1, 3, u32::MAX] {
        assert_eq!(refusal(28, &words.to_be_bytes()), Refused::Words(words));
    }
}

#[test]
fn every_cut_and_every_other_message_of_icp_is_refused() {
    let octets = two_bits();
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
