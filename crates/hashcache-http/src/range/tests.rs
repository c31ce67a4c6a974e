//! Tests: ranges, resolved and refused.

use super::*;

use http::header::{DATE, HeaderName, LAST_MODIFIED};

use crate::date::Seconds;
use crate::freshness::{Lifetime, LifetimeSource};
use crate::stored_facts::FactFlags;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn fields(lines: &[(HeaderName, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(name.clone(), value.parse().unwrap());
    }
    fields
}

fn parse(value: &str) -> Option<Vec<RangeSpec>> {
    parse_range(&fields(&[(RANGE, value)]))
}

fn between(first: u64, last: u64) -> RangeSpec {
    RangeSpec::Between(ByteRange { first, last })
}

fn facts() -> StoredFacts {
    StoredFacts {
        status: StatusCode::OK,
        lifetime: Lifetime {
            seconds: Seconds::DAY,
            source: LifetimeSource::MaxAge,
        },
        initial_age: Seconds::ZERO,
        response_time: NOW,
        date: NOW,
        last_modified: Some(UnixTime(784_111_777)),
        stale_while_revalidate: Seconds::ZERO,
        stale_if_error: Seconds::ZERO,
        flags: FactFlags::default(),
        asked_with: None,
    }
}

fn stored() -> HeaderMap {
    fields(&[
        (ETAG, "\"a\""),
        (LAST_MODIFIED, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (DATE, "Fri, 15 Jan 2027 08:00:00 GMT"),
    ])
}

fn answer(range: &str, length: u64) -> RangeAnswer {
    answer_range(&fields(&[(RANGE, range)]), &facts(), &stored(), length, NOW)
}

#[test]
fn ranges_are_read_in_all_three_forms() {
    assert_eq!(parse("bytes=0-4"), Some(vec![between(0, 4)]));
    assert_eq!(parse("Bytes=5-"), Some(vec![RangeSpec::From(5)]));
    assert_eq!(parse("bytes=-5"), Some(vec![RangeSpec::Last(5)]));
    let three = vec![between(0, 0), RangeSpec::From(9), RangeSpec::Last(1)];
    assert_eq!(parse("bytes= 0-0, 9- ,,-1"), Some(three));
}

#[test]
fn what_is_no_range_of_bytes_is_ignored() {
    for value in [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=4-0",
        "bytes=a-b",
        "bytes=0-4x",
        "bytes=+1-2",
        "items=0-4",
        "bytes=0-4,x",
        "bytes 0-4",
        "bytes=0--4",
        "bytes =0-4",
    ] {
        assert_eq!(parse(value), None, "{value:?}");
    }
    assert_eq!(parse_range(&HeaderMap::new()), None);
    assert_eq!(
        parse_range(&fields(&[(RANGE, "bytes=0-1"), (RANGE, "bytes=2-3")])),
        None
    );
}

#[test]
fn more_ranges_than_the_bound_are_ignored() {
    let ranges = |count| format!("bytes={}", vec!["0-0"; count].join(","));
    assert_eq!(
        parse(&ranges(RANGES_MAX)).map(|specs| specs.len()),
        Some(RANGES_MAX)
    );
    assert_eq!(parse(&ranges(RANGES_MAX + 1)), None);
}

#[test]
fn ranges_are_cut_to_the_content() {
    let part = |first, last| RangeAnswer::Part(ByteRange { first, last });
    assert_eq!(answer("bytes=0-4", 10), part(0, 4));
    assert_eq!(answer("bytes=5-", 10), part(5, 9));
    assert_eq!(answer("bytes=-3", 10), part(7, 9));
    assert_eq!(answer("bytes=-30", 10), part(0, 9));
    assert_eq!(answer("bytes=2-99999999999999999999999", 10), part(2, 9));
    assert_eq!(answer("bytes=9-9,10-", 10), part(9, 9));
}

#[test]
fn ranges_outside_the_content_are_not_satisfiable() {
    for (range, length) in [
        ("bytes=10-", 10),
        ("bytes=10-12, 20-", 10),
        ("bytes=-0", 10),
        ("bytes=0-", 0),
        ("bytes=99999999999999999999999-", u64::MAX),
    ] {
        assert_eq!(
            answer(range, length),
            RangeAnswer::NotSatisfiable,
            "{range}"
        );
    }
    assert_eq!(answer("bytes=-5", 0), RangeAnswer::Whole);
}

#[test]
fn several_ranges_are_listed() {
    let parts = vec![
        ByteRange { first: 0, last: 1 },
        ByteRange { first: 8, last: 9 },
    ];
    assert_eq!(answer("bytes=0-1,-2", 10), RangeAnswer::Parts(parts));
}

#[test]
fn only_a_stored_200_is_cut() {
    let facts = StoredFacts {
        status: StatusCode::NOT_FOUND,
        ..facts()
    };
    let request = fields(&[(RANGE, "bytes=0-1")]);
    assert_eq!(
        answer_range(&request, &facts, &stored(), 10, NOW),
        RangeAnswer::Whole
    );
}

#[test]
fn if_range_takes_only_strong_validators_that_match() {
    let holds = |value: &str, stored: &HeaderMap| {
        if_range_holds(&fields(&[(IF_RANGE, value)]), &facts(), stored, NOW)
    };
    assert!(if_range_holds(&HeaderMap::new(), &facts(), &stored(), NOW));
    assert!(holds("\"a\"", &stored()));
    assert!(!holds("\"b\"", &stored()));
    assert!(!holds("W/\"a\"", &stored()));
    assert!(!holds("\"a\"", &fields(&[(ETAG, "W/\"a\"")])));
    assert!(!holds("\"a\"", &HeaderMap::new()));
    assert!(!holds("a", &fields(&[(ETAG, "a")])));
    assert!(holds("Sun, 06 Nov 1994 08:49:37 GMT", &stored()));
    assert!(!holds("Sun, 06 Nov 1994 08:49:38 GMT", &stored()));
    assert!(!holds("nonsense", &stored()));
}

#[test]
fn if_range_by_a_date_of_the_same_second_does_not_hold() {
    let changing = StoredFacts {
        date: UnixTime(784_111_777),
        ..facts()
    };
    let request = fields(&[(IF_RANGE, "Sun, 06 Nov 1994 08:49:37 GMT")]);
    assert!(!if_range_holds(&request, &changing, &stored(), NOW));
    let undated = StoredFacts {
        last_modified: None,
        ..facts()
    };
    let request = fields(&[(IF_RANGE, "nonsense")]);
    assert!(!if_range_holds(&request, &undated, &stored(), NOW));
}

#[test]
fn content_range_is_read_or_refused() {
    let parse = |value: &str| parse_content_range(&fields(&[(CONTENT_RANGE, value)]));
    let range = ByteRange { first: 0, last: 4 };
    assert_eq!(parse("bytes 0-4/10"), Some(ContentRange::new(range, 10)));
    let unknown = ContentRange {
        range: Some(range),
        complete: None,
    };
    assert_eq!(parse("Bytes  0-4/*"), Some(unknown));
    assert_eq!(parse("bytes */10"), Some(ContentRange::unsatisfied(10)));
    for value in [
        "",
        "bytes",
        "bytes 0-4",
        "bytes 0-4/4",
        "bytes 4-0/10",
        "bytes */*",
        "items 0-4/10",
        "bytes=0-4/10",
        "bytes 0-4/10x",
        "bytes -4/10",
        "bytes 0-99999999999999999999/*",
    ] {
        assert_eq!(parse(value), None, "{value:?}");
    }
}

/// The If-Range value for a response with these fields, stored at the time `date`.
fn validator(lines: &[(HeaderName, &str)], strong: bool, date: UnixTime) -> Option<HeaderValue> {
    let mut facts = StoredFacts { date, ..facts() };
    if strong {
        facts.flags = FactFlags::STRONG_ETAG;
    }
    if !lines.iter().any(|(name, _)| name == LAST_MODIFIED) {
        facts.last_modified = None;
    }
    if_range_value(&facts, &fields(lines))
}

const CHANGED: (HeaderName, &str) = (LAST_MODIFIED, "Sun, 06 Nov 1994 08:49:37 GMT");
const CHANGED_AT: u64 = 784_111_777;

#[test]
fn more_of_a_response_is_asked_for_by_its_strong_tag_alone() {
    let tag = (ETAG, "\"a\"");
    assert_eq!(validator(&[tag, CHANGED], true, NOW).unwrap(), "\"a\"");
    let weak = (ETAG, "W/\"a\"");
    // If there is a weak tag, the date is not used instead.
    assert_eq!(validator(&[weak, CHANGED], false, NOW), None);
    assert_eq!(validator(&[], false, NOW), None);
}

#[test]
fn a_date_names_a_response_only_when_it_is_a_minute_old() {
    let settled = |later| validator(&[CHANGED], false, UnixTime(CHANGED_AT + later));
    assert_eq!(settled(0), None);
    assert_eq!(settled(59), None);
    assert_eq!(settled(60).unwrap(), CHANGED.1);
    let before = validator(&[CHANGED], false, UnixTime(CHANGED_AT - 100));
    assert_eq!(before, None);
}

#[test]
fn a_part_continues_only_the_response_of_which_it_repeats_the_validator() {
    let stored = fields(&[(ETAG, "\"a\""), CHANGED]);
    let continues = |lines: &[_]| continues_stored(&stored, &fields(lines));
    assert!(continues(&[(ETAG, "\"a\"")]));
    assert!(!continues(&[(ETAG, "\"b\"")]));
    assert!(!continues(&[(ETAG, "W/\"a\"")]));
    assert!(!continues(&[CHANGED]));
    assert!(!continues(&[]));
    let dated = fields(&[CHANGED]);
    assert!(continues_stored(&dated, &fields(&[CHANGED])));
    assert!(!continues_stored(&dated, &fields(&[])));
    let other = (LAST_MODIFIED, "Sun, 06 Nov 1994 08:49:38 GMT");
    assert!(!continues_stored(&dated, &fields(&[other])));
    assert!(!continues_stored(&fields(&[]), &fields(&[])));
}

#[test]
fn a_part_in_another_coding_or_type_is_of_another_response() {
    let tag = (ETAG, "\"a\"");
    let stored = fields(&[tag.clone(), (CONTENT_TYPE, "text/plain")]);
    let continues = |more| continues_stored(&stored, &fields(&[tag.clone(), more]));
    assert!(continues((CONTENT_TYPE, "text/plain")));
    assert!(!continues((CONTENT_TYPE, "multipart/byteranges")));
    assert!(!continues((CONTENT_ENCODING, "gzip")));
    assert!(!continues((CONTENT_LANGUAGE, "de")), "the stored has none");
    let coded = fields(&[tag.clone(), (CONTENT_ENCODING, "gzip")]);
    let continues = |more: &[_]| {
        let tagged = [&[tag.clone()][..], more].concat();
        continues_stored(&coded, &fields(&tagged))
    };
    assert!(continues(&[(CONTENT_ENCODING, "gzip")]));
    assert!(!continues(&[(CONTENT_ENCODING, "br")]));
    // Without the field the part may belong to the identity form.
    assert!(!continues(&[]));
    let digest = |value| (HeaderName::from_static("repr-digest"), value);
    let digested = fields(&[tag.clone(), digest("sha-256=:AA==:")]);
    let continues = |value| continues_stored(&digested, &fields(&[tag.clone(), digest(value)]));
    assert!(continues("sha-256=:AA==:"));
    assert!(!continues("sha-256=:AB==:"));
}

#[test]
fn a_part_is_requested_in_the_coding_of_the_stored_response() {
    let accepted = |stored: &[_]| {
        let mut request = fields(&[(ACCEPT_ENCODING, "gzip, br")]);
        accept_stored_coding(&mut request, &fields(stored));
        let values = request.get_all(ACCEPT_ENCODING).iter();
        values.cloned().collect::<Vec<_>>()
    };
    assert_eq!(accepted(&[]), ["identity"]);
    assert_eq!(accepted(&[(CONTENT_ENCODING, "br")]), ["br"]);
    let two = [(CONTENT_ENCODING, "gzip"), (CONTENT_ENCODING, "br")];
    assert_eq!(accepted(&two), ["gzip", "br"]);
}

#[test]
fn only_a_range_from_the_first_byte_to_the_last_is_the_whole() {
    let whole = |value: &str| {
        let range = parse_content_range(&fields(&[(CONTENT_RANGE, value)]));
        range.and_then(|range| covers_whole(&range))
    };
    assert_eq!(whole("bytes 0-9/10"), Some(10));
    for part in ["bytes 0-8/10", "bytes 1-9/10", "bytes 0-9/*", "bytes */10"] {
        assert_eq!(whole(part), None, "{part}");
    }
}
