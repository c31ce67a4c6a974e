//! Tests for signatures: vectors from RFC 2202, and a change in each signed field.

use super::super::{Body, ClrReason, MINOR, Operation, Specifier, datagram, parse};
use super::*;

const NOW: u32 = 1_800_000_000;

fn key() -> Key {
    Key::new(b"site", b"not a good secret").unwrap()
}

fn ends() -> Ends {
    Ends {
        source: "192.0.2.1:4827".parse().unwrap(),
        destination: "192.0.2.2:4827".parse().unwrap(),
    }
}

fn clr() -> Body<'static> {
    Body::Request {
        operation: Operation::Clr {
            reason: ClrReason::Unspecified,
            specifier: Specifier::get(b"http://example.com/", b""),
        },
        wants_response: true,
    }
}

fn signed() -> Vec<u8> {
    let signature = Signature {
        key: &key(),
        ends: ends(),
        time: NOW,
        expiry: NOW + LIFETIME_SECONDS,
    };
    signed_as(&signature)
}

fn signed_as(signature: &Signature<'_>) -> Vec<u8> {
    datagram(MINOR, 7, &clr(), Some(signature)).unwrap()
}

fn check(datagram: &[u8], key: &Key, ends: &Ends, now: u32) -> Result<(), AuthError> {
    parse(datagram).unwrap().check(key, ends, now)
}

#[test]
fn hmac_md5_has_the_vectors_of_rfc_2202() {
    let cases: [(&[u8], &[u8], u128); 4] = [
        (&[0x0b; 16], b"Hi There", 0x9294727a3638bb1c13f48ef8158bfc9d),
        (
            b"Jefe",
            b"what do ya want for nothing?",
            0x750c783e6ab0b503eaa86e310a5db738,
        ),
        (&[0xaa; 16], &[0xdd; 50], 0x56be34521d144c88dbb8c733f0e8b3f6),
        (
            &[0xaa; 80],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            0x6b1ab7fe4bd7bf8f0b62e6ce61b9d0cd,
        ),
    ];
    for (secret, text, expected) in cases {
        assert_eq!(u128::from_be_bytes(hmac(secret, &[text])), expected);
        let (start, end) = text.split_at(3);
        assert_eq!(hmac(secret, &[start, end]), hmac(secret, &[text]));
    }
}

#[test]
fn the_signature_is_over_the_fields_of_the_rfc_in_its_order() {
    let datagram = signed();
    let data = &datagram[4..4 + usize::from(datagram[5])];
    let mut text = vec![192, 0, 2, 1, 0x12, 0xdb, 192, 0, 2, 2, 0x12, 0xdb, 0, 1];
    text.extend_from_slice(&NOW.to_be_bytes());
    text.extend_from_slice(&(NOW + LIFETIME_SECONDS).to_be_bytes());
    text.extend_from_slice(data);
    text.extend_from_slice(b"\x00\x04site");
    let expected = hmac(b"not a good secret", &[&text]);
    assert_eq!(datagram[datagram.len() - 16..], expected);
    // AUTH: its length, two times, the name, the signature.
    let auth = 2 + 8 + 6 + 18;
    assert_eq!(datagram.len(), 4 + data.len() + auth);
}

#[test]
fn a_signed_message_is_believed_until_it_expires() {
    let datagram = signed();
    let at = |now| check(&datagram, &key(), &ends(), now);
    assert_eq!(at(NOW), Ok(()));
    assert_eq!(at(NOW + LIFETIME_SECONDS), Ok(()));
    assert_eq!(at(NOW - CLOCK_AHEAD_SECONDS), Ok(()));
    let outside = |now| AuthError::Time {
        time: NOW,
        expiry: NOW + LIFETIME_SECONDS,
        now,
    };
    for now in [0, NOW - 61, NOW + 61, u32::MAX] {
        assert_eq!(at(now), Err(outside(now)));
    }
    assert_eq!(parse(&datagram).unwrap().body, clr());
}

#[test]
fn a_signature_that_is_to_last_for_days_lasts_five_minutes() {
    let key = key();
    let signature = Signature {
        key: &key,
        ends: ends(),
        time: NOW,
        expiry: NOW + 86_400,
    };
    let datagram = signed_as(&signature);
    let at = |now| check(&datagram, &key, &ends(), now);
    assert_eq!(at(NOW + LIFETIME_SECONDS_MAX), Ok(()));
    assert!(matches!(
        at(NOW + LIFETIME_SECONDS_MAX + 1),
        Err(AuthError::Time { .. })
    ));
}

#[test]
fn every_octet_of_a_signed_message_counts() {
    let datagram = signed();
    for at in 0..datagram.len() {
        for flipped in [1, 0x80] {
            let mut other = datagram.clone();
            other[at] ^= flipped;
            let Ok(message) = parse(&other) else {
                continue;
            };
            let checked = message.check(&key(), &ends(), NOW);
            assert!(checked.is_err(), "octet {at} does not count");
        }
    }
}

#[test]
fn both_ends_count() {
    let datagram = signed();
    let Ends {
        source,
        destination,
    } = ends();
    let other_port = "192.0.2.1:4828".parse().unwrap();
    let wrong = [
        Ends {
            source: destination,
            destination: source,
        },
        Ends {
            source: other_port,
            destination,
        },
        Ends {
            source,
            destination: other_port,
        },
    ];
    for ends in wrong {
        assert_eq!(check(&datagram, &key(), &ends, NOW), Err(AuthError::Wrong));
    }
    // A dual-stack socket shows IPv4 addresses as IPv4-mapped IPv6.
    let mapped = Ends {
        source: "[::ffff:192.0.2.1]:4827".parse().unwrap(),
        destination,
    };
    assert_eq!(check(&datagram, &key(), &mapped, NOW), Ok(()));
}

#[test]
fn other_keys_and_no_signature_are_refused_with_the_code_of_the_rfc() {
    let datagram = signed();
    let with = |name: &[u8], secret: &[u8]| {
        let key = Key::new(name, secret).unwrap();
        check(&datagram, &key, &ends(), NOW).unwrap_err()
    };
    assert_eq!(with(b"side", b"not a good secret"), AuthError::OtherKey);
    let wrong = with(b"site", b"not a good Secret");
    assert_eq!(wrong, AuthError::Wrong);
    assert_eq!(wrong.failure(), Failure::AuthenticationUnsatisfactory);

    let unsigned = super::super::datagram(MINOR, 7, &clr(), None).unwrap();
    let error = check(&unsigned, &key(), &ends(), NOW).unwrap_err();
    assert_eq!(error, AuthError::Unsigned);
    assert_eq!(error.failure(), Failure::AuthenticationRequired);
}

#[test]
fn a_signature_of_another_length_is_wrong() {
    let mut datagram = signed();
    datagram.truncate(datagram.len() - 16);
    let length = datagram.len();
    // The signature, AUTH and the message are 16 octets shorter.
    datagram[length - 1] = 0;
    datagram[1] -= 16;
    let auth = 4 + usize::from(datagram[5]);
    datagram[auth + 1] -= 16;
    assert_eq!(
        check(&datagram, &key(), &ends(), NOW),
        Err(AuthError::Wrong)
    );
}

#[test]
fn a_key_has_a_name_and_a_secret_that_is_not_printed() {
    assert_eq!(Key::new(b"", b"s").unwrap_err(), KeyError::Name);
    assert_eq!(Key::new(&[b'n'; 256], b"s").unwrap_err(), KeyError::Name);
    assert_eq!(Key::new(b"n", b"").unwrap_err(), KeyError::Secret);
    assert_eq!(format!("{:?}", key()), "Key(site)");
}
