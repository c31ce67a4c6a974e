//! A request and the answer to it, as heads in bytes: whatever their fields say, the rules come to
//! a decision, one that keeps their promises.
//!
//! The data is two heads, parted by an empty line as on the wire, the first eight bytes being two
//! times.

#![no_main]

use hashcache_http::{
    ConditionOutcome, Exchange, Pseudonym, RangeAnswer, RequestFacts, RequestTarget, Reuse,
    ReuseOptions, Scheme, Space, Storable, StoreOptions, StoredFacts, Target, UnixTime, Upgrading,
    Vary, VaryRow, answer_range, cache_key, evaluate_conditions, freshen, invalidated,
    not_modified_confirms, parse_content_range, parse_target, reuse, set_validators, storable,
    strip_request, strip_response,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((times, heads)) = data.split_at_checked(8) else {
        return;
    };
    let time = |bytes: &[u8]| {
        let bytes: [u8; 4] = bytes.try_into().expect("four bytes");
        u64::from(u32::from_le_bytes(bytes))
    };
    let (sent, asked) = (time(&times[..4]), time(&times[4..]));
    let Some((target, method, mut request, rest)) = request(heads) else {
        return;
    };
    let Some((status, mut response)) = response(rest) else {
        return;
    };
    key(&target);
    let exchange = Exchange {
        target: &target,
        method: &method,
        request: &request,
        exempt: hashcache_http::Exempt::default(),
        status,
        response: &response,
        request_time: UnixTime(sent),
        response_time: UnixTime(sent.max(asked)),
    };
    if let Storable::Whole { facts, row } = storable(&exchange, &StoreOptions::default()) {
        stored(&request, &response, &facts, row.as_ref(), UnixTime(asked));
    }
    for named in invalidated(&method, &target, status, &response) {
        let same = (named.scheme, &named.authority) == (target.scheme, &target.authority);
        assert!(same, "{named:?} is not of the origin of {target:?}");
    }
    let _ = parse_content_range(&response);
    let us = Pseudonym::new("fuzz").expect("a token");
    let _ = us.is_in_via(&request);
    let _ = strip_request(&mut request, Upgrading::No);
    let _ = strip_response(&mut response, Upgrading::No);
    assert!(!request.contains_key(http::header::CONNECTION));
    assert!(!response.contains_key(http::header::CONNECTION));
});

/// What a head asks for, and the bytes after it.
fn request(bytes: &[u8]) -> Option<(Target, Method, HeaderMap, &[u8])> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(taken) = head.parse(bytes).ok()? else {
        return None;
    };
    let method = Method::from_bytes(head.method?.as_bytes()).ok()?;
    let map = map(head.headers)?;
    let host = map.get(http::header::HOST).and_then(|it| it.to_str().ok());
    match parse_target(&method, head.path?, host, Scheme::Http).ok()? {
        RequestTarget::Resource(target) => Some((target, method, map, &bytes[taken..])),
        _ => None,
    }
}

fn response(bytes: &[u8]) -> Option<(StatusCode, HeaderMap)> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut fields);
    head.parse(bytes).ok()?.is_complete().then_some(())?;
    Some((StatusCode::from_u16(head.code?).ok()?, map(head.headers)?))
}

fn map(fields: &[httparse::Header<'_>]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(map)
}

/// A target that is written out and read again is itself, under the same key.
fn key(target: &Target) {
    let again = Target::parse_url(&target.to_string()).expect("what we write, we read");
    assert_eq!(&again, target);
    let key = |target| cache_key(Space::Own, target);
    assert_eq!(key(&again), key(target));
}

/// What a hit promises.
fn stored(
    request: &HeaderMap,
    response: &HeaderMap,
    facts: &StoredFacts,
    row: Option<&VaryRow>,
    now: UnixTime,
) {
    assert_eq!(StoredFacts::from_bytes(&facts.to_bytes()), Some(*facts));
    if let Some(row) = row {
        assert!(row.matches(request), "the request it was chosen by");
        assert_eq!(VaryRow::from_bytes(row.as_bytes()).as_ref(), Some(row));
    }
    assert!(!matches!(Vary::parse(response), Vary::Anything));
    let asks = RequestFacts::new(&Method::GET, request);
    if let Reuse::Fresh { ttl, .. } = reuse(&asks, facts, now, &ReuseOptions::default()) {
        assert!(ttl > 0, "a fresh answer has time left");
    }
    const LENGTH: u64 = 100_000;
    let ranges = match answer_range(request, facts, response, LENGTH, now) {
        RangeAnswer::Part(range) => vec![range],
        RangeAnswer::Parts(ranges) => ranges,
        RangeAnswer::Whole | RangeAnswer::NotSatisfiable => vec![],
    };
    assert!(
        ranges
            .iter()
            .all(|it| it.first <= it.last && it.last < LENGTH)
    );
    let outcome = evaluate_conditions(request, facts, response, now);
    assert!(outcome == ConditionOutcome::Send || asks.has_condition);
    let mut validation = request.clone();
    set_validators(&mut validation, facts, response);
    let mut freshened = response.clone();
    if not_modified_confirms(response, response) {
        freshen(&mut freshened, response, now);
    }
}
