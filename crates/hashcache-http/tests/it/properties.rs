//! Properties for every input: no panic, no negative times, and printed values can be parsed back.

use hashcache_http::*;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;

/// Fields that the rules read.
const NAMES: [&str; 25] = [
    "accept-encoding",
    "accept-language",
    "age",
    "authorization",
    "cache-control",
    "cache-groups",
    "cdn-cache-control",
    "connection",
    "content-encoding",
    "content-range",
    "date",
    "etag",
    "expires",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "last-modified",
    "location",
    "pragma",
    "range",
    "repr-digest",
    "set-cookie",
    "te",
    "vary",
    "via",
];

/// Pieces for values, so that they are almost meaningful.
const PIECES: [&str; 40] = [
    "max-age",
    "s-maxage",
    "no-cache",
    "no-store",
    "private",
    "public",
    "must-revalidate",
    "immutable",
    "stale-while-revalidate",
    "stale-if-error",
    "max-stale",
    "min-fresh",
    "=",
    "=60",
    "=0",
    "=99999999999999999999",
    "\"",
    "\\",
    ",",
    ", ",
    ";",
    "q=0.5",
    "*",
    "bytes",
    "0-4",
    "-5",
    "/10",
    "W/",
    "\"a\"",
    "gzip",
    "br",
    "en",
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Fri, 15 Jan 2027 08:00:00 GMT",
    "foo",
    "a/../b",
    "http://h",
    "1.1 hashcache",
    "\u{e4}",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    let pieces = vec(prop::sample::select(&PIECES[..]), 0..8);
    let near = pieces.prop_map(|pieces| pieces.concat().into_bytes());
    prop_oneof![4 => near, 1 => vec(any::<u8>(), 0..40)]
}

fn some_fields() -> impl Strategy<Value = HeaderMap> {
    vec((prop::sample::select(&NAMES[..]), value()), 0..10).prop_map(|lines| {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                fields.append(name, value);
            }
        }
        fields
    })
}

fn some_host() -> impl Strategy<Value = Host> {
    prop_oneof![
        "[a-z0-9_-]{1,9}(\\.[a-z][a-z0-9]{0,4}){0,2}"
            .prop_filter_map("a number", |name| Host::parse(&name).ok()),
        any::<[u8; 4]>().prop_map(|octets| Host::V4(octets.into())),
        any::<[u8; 16]>().prop_map(|octets| Host::V6(octets.into())),
    ]
}

fn some_target() -> impl Strategy<Value = Target> {
    let scheme = prop_oneof![Just(Scheme::Http), Just(Scheme::Https)];
    (scheme, some_host(), 1_u16.., "[/?a-c%.\u{e4}]{0,6}").prop_map(|(scheme, host, port, path)| {
        let authority = Authority { host, port };
        Target::new(scheme, authority, &format!("/{path}")).unwrap()
    })
}

fn some_space() -> impl Strategy<Value = Space> {
    prop_oneof![
        Just(Space::Own),
        any::<u16>().prop_map(Space::Site),
        any::<u16>().prop_map(Space::Mirror),
    ]
}

/// Reads a key as its documentation says. That this gives back what was put in shows that no two
/// targets share a key.
fn read_key(key: &[u8]) -> (Space, Target) {
    let number = |at: usize| u16::from_le_bytes([key[at], key[at + 1]]);
    let (space, rest) = match key[1] {
        0 => (Space::Own, &key[2..]),
        1 => (Space::Site(number(2)), &key[4..]),
        _ => (Space::Mirror(number(2)), &key[4..]),
    };
    let mut parts = rest.splitn(3, |&b| b == 0);
    let mut text = || std::str::from_utf8(parts.next().unwrap()).unwrap();
    let (scheme, host) = (text(), text());
    let tail = parts.next().unwrap();
    let port = u16::from_le_bytes([tail[0], tail[1]]);
    let path = std::str::from_utf8(&tail[2..]).unwrap();
    let url = format!("{scheme}://{host}:{port}{path}");
    (space, Target::parse_url(&url).unwrap())
}

proptest! {
    #[test]
    fn any_fields_are_judged_without_panic_or_negative_numbers(
        request in some_fields(),
        response in some_fields(),
        status in 100_u16..600,
        times in any::<[u64; 3]>(),
    ) {
        let target = Target::parse_url("http://h/pool/a.deb").unwrap();
        let [request_time, response_time, now] = times.map(UnixTime);
        let status = StatusCode::from_u16(status).unwrap();
        let method = &Method::GET;
        let exchange = Exchange {
            target: &target,
            method,
            request: &request,
            exempt: Exempt::default(),
            status,
            response: &response,
            request_time,
            response_time,
        };
        let options = StoreOptions {
            targets: vec![CDN_CACHE_CONTROL],
            ..StoreOptions::default()
        };
        cache_groups(&response);
        if let Some(mut digest) = ContentDigest::promised(&response) {
            digest.update(b"x");
            digest.holds();
        }
        if let Storable::Whole { facts, row } | Storable::Partial { facts, row, .. } =
            storable(&exchange, &options)
        {
            prop_assert_eq!(StoredFacts::from_bytes(&facts.to_bytes()), Some(facts));
            prop_assert!(facts.age(now) >= facts.initial_age);
            let directives = ResponseDirectives::for_targets(&response, &options.targets);
            prop_assert!(directives.must_understand || !directives.no_store);
            prop_assert!(!directives.private.is_response());
            if let Some(row) = row {
                prop_assert!(row.matches(&request));
                prop_assert_eq!(VaryRow::from_bytes(row.as_bytes()), Some(row));
            }
            let wanted = RequestFacts::new(method, &request);
            match reuse(&wanted, &facts, now, &ReuseOptions::default()) {
                Reuse::Fresh { ttl, .. } => prop_assert!(ttl > 0),
                Reuse::Stale { ttl, .. } => {
                    prop_assert!(ttl <= 0 && !directives.forbids_stale());
                }
                _ => {}
            }
            evaluate_conditions(&request, &facts, &response, now);
            let length = times[0];
            match answer_range(&request, &facts, &response, length, now) {
                RangeAnswer::Part(range) => {
                    prop_assert!(range.first <= range.last && range.last < length);
                }
                RangeAnswer::Parts(ranges) => {
                    prop_assert!(ranges.iter().all(|range| range.last < length));
                }
                RangeAnswer::Whole | RangeAnswer::NotSatisfiable => {}
            }
            let mut question = request.clone();
            set_validators(&mut question, &facts, &response);
        }
    }

    #[test]
    fn any_fields_are_stripped_freshened_and_followed_without_panic(
        mut request in some_fields(),
        mut response in some_fields(),
        time in any::<u64>(),
    ) {
        let target = Target::parse_url("http://h/a/b?c").unwrap();
        for named in invalidated(&Method::POST, &target, StatusCode::OK, &response) {
            prop_assert!(named.same_origin(&target));
        }
        let us = Pseudonym::new("hashcache").unwrap();
        us.append_via(&mut request, http::Version::HTTP_11);
        prop_assert!(us.is_in_via(&request));
        if strip_request(&mut request, Upgrading::No).is_ok() {
            prop_assert!(!request.contains_key("proxy-connection"));
        }
        not_modified_confirms(&response, &request);
        freshen(&mut response, &request, UnixTime(time));
        not_modified_fields(&response);
        if strip_response(&mut response, Upgrading::No).is_ok() {
            prop_assert!(!response.contains_key("connection"));
        }
    }

    #[test]
    fn keys_read_back_so_no_two_targets_share_one(space in some_space(), target in some_target()) {
        let key = cache_key(space, &target).unwrap();
        prop_assert_eq!(read_key(&key), (space, target));
    }

    #[test]
    fn targets_print_as_urls_that_read_back(target in some_target()) {
        prop_assert_eq!(Target::parse_url(&target.to_string()), Ok(target));
    }

    #[test]
    fn any_target_and_host_are_read_or_refused(target in ".{0,30}", host in ".{0,20}") {
        for method in [Method::GET, Method::CONNECT, Method::OPTIONS] {
            let read = parse_target(&method, &target, Some(&host), Scheme::Http);
            if let Ok(RequestTarget::Resource(target)) = read {
                prop_assert_eq!(Target::parse_url(&target.to_string()), Ok(target));
            }
        }
    }

    #[test]
    fn resolved_references_are_targets(reference in "[a-z:/.?#@%\\[\\]]{0,20}") {
        let base = Target::parse_url("http://h/a/b?c").unwrap();
        if let Some(target) = resolve(&base, &reference) {
            prop_assert_eq!(Target::parse_url(&target.to_string()), Ok(target));
        }
    }

    #[test]
    fn dates_print_and_read_back(seconds in 0_u64..253_402_300_800) {
        let text = http_date(UnixTime(seconds));
        let read = parse_http_date(text.as_bytes(), UnixTime(0));
        prop_assert_eq!(read, Some(UnixTime(seconds)));
    }

    #[test]
    fn any_bytes_are_a_date_or_none(bytes in vec(any::<u8>(), 0..40), now in any::<u64>()) {
        parse_http_date(&bytes, UnixTime(now));
    }

    #[test]
    fn a_date_with_one_byte_changed_never_panics(
        which in 0_usize..3,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let dates = [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ];
        let mut bytes = dates[which].as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(time) = parse_http_date(&bytes, UnixTime(1_800_000_000)) {
            let again = http_date(time);
            prop_assert_eq!(parse_http_date(again.as_bytes(), UnixTime(0)), Some(time));
        }
    }

    #[test]
    fn content_ranges_print_and_read_back(
        first in 0..u64::MAX / 2,
        length in 0..u64::MAX / 4,
        rest in proptest::option::of(1..u64::MAX / 4),
    ) {
        let range = ByteRange { first, last: first + length };
        let complete = rest.map(|rest| range.last + rest);
        let printed = ContentRange { range: Some(range), complete };
        let mut response = HeaderMap::new();
        response.insert("content-range", printed.to_value());
        prop_assert_eq!(parse_content_range(&response), Some(printed));
    }

    #[test]
    fn ranges_resolve_within_the_content(
        first in any::<u64>(),
        span in any::<u64>(),
        length in any::<u64>(),
    ) {
        let between = ByteRange { first, last: first.saturating_add(span) };
        for spec in [RangeSpec::Between(between), RangeSpec::From(first), RangeSpec::Last(span)] {
            if let Some(range) = spec.resolve(length) {
                prop_assert!(range.first <= range.last && range.last < length);
            }
        }
    }

    #[test]
    fn any_bytes_are_facts_or_none(bytes in vec(any::<u8>(), FACTS_BYTES)) {
        if let Some(facts) = StoredFacts::from_bytes(&bytes) {
            prop_assert_eq!(&facts.to_bytes()[..], &bytes[..]);
        }
    }

    #[test]
    fn any_bytes_are_a_row_or_none(bytes in vec(any::<u8>(), 0..60)) {
        if let Some(row) = VaryRow::from_bytes(&bytes) {
            row.matches(&HeaderMap::new());
        }
    }

    #[test]
    fn any_bytes_are_a_table_or_none(bytes in vec(any::<u8>(), 0..80)) {
        if let Some(table) = VariantTable::from_bytes(&bytes) {
            prop_assert_eq!(table.to_bytes(), bytes);
        }
    }

    #[test]
    fn tables_are_bounded_read_back_and_know_the_latest(
        nonce in any::<u64>(),
        names in vec("[a-z]{1,5}", 1..8),
        rows in vec((0_u64..20, any::<bool>(), 0_u64..3, "[a-z]{0,300}"), 0..40),
    ) {
        let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        let mut table = VariantTable::new(nonce, &names);
        for (values, here, version, etag) in rows {
            let place = if here {
                VariantPlace::Here
            } else {
                VariantPlace::Derived(values)
            };
            let etag = Some(format!("\"{etag}\"").into_bytes().into());
            table.set(Variant { values, place, version, alias: false, client: 0, etag });
            prop_assert_eq!(table.find(values).map(|row| row.version), Some(version));
            prop_assert!(table.rows().len() <= VARIANTS_MAX);
        }
        prop_assert_eq!(VariantTable::from_bytes(&table.to_bytes()), Some(table));
    }

    #[test]
    fn details_make_one_well_formed_value(detail in ".{0,30}") {
        let us = Pseudonym::new("hashcache").unwrap();
        let hit = CacheStatus::from_handling(Handling::Hit);
        let status = CacheStatus { detail: Some(&detail), ..hit };
        prop_assert!(status.to_value(&us).to_str().unwrap().starts_with("hashcache; hit; detail="));
        let known = ProxyStatus::from_error(ProxyError::DnsError);
        let status = ProxyStatus { details: Some(&detail), ..known };
        status.to_value("hashcache").to_str().unwrap();
    }
}
