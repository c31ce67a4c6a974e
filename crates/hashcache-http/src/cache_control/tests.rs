//! Directives as origins and clients send them in practice.

use super::*;

fn fields(lines: &[&str]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines {
        fields.append(CACHE_CONTROL, line.parse().unwrap());
    }
    fields
}

fn response(line: &str) -> ResponseDirectives {
    ResponseDirectives::parse(&fields(&[line]))
}

fn request(line: &str) -> RequestDirectives {
    RequestDirectives::parse(&fields(&[line]))
}

fn names(list: &[&'static str]) -> Scope {
    Scope::Fields(list.iter().copied().map(HeaderName::from_static).collect())
}

#[test]
fn every_response_directive_is_read_in_any_case() {
    let read = response(
        "Max-Age=1, S-MAXAGE=2, No-Cache, NO-STORE, Private, public, must-revalidate, \
         proxy-revalidate, must-understand, no-transform, immutable, stale-while-revalidate=3, \
         stale-if-error=4, unknown=\"max-age=9\"",
    );
    let expected = ResponseDirectives {
        max_age: Some(Seconds::new(1)),
        s_maxage: Some(Seconds::new(2)),
        no_cache: Scope::Response,
        no_store: true,
        private: Scope::Response,
        public: true,
        must_revalidate: true,
        proxy_revalidate: true,
        must_understand: true,
        no_transform: true,
        immutable: true,
        stale_while_revalidate: Some(Seconds::new(3)),
        stale_if_error: Some(Seconds::new(4)),
        targeted: false,
    };
    assert_eq!(read, expected);
}

#[test]
fn every_request_directive_is_read() {
    let read = request(
        "max-age=1, max-stale=2, min-fresh=3, no-cache, no-store, no-transform, only-if-cached, \
         stale-if-error=4",
    );
    let expected = RequestDirectives {
        max_age: Some(Seconds::new(1)),
        max_stale: Some(Seconds::new(2)),
        min_fresh: Some(Seconds::new(3)),
        no_cache: true,
        no_store: true,
        no_transform: true,
        only_if_cached: true,
        stale_if_error: Some(Seconds::new(4)),
    };
    assert_eq!(read, expected);
}

#[test]
fn lifetimes_that_cannot_be_read_are_zero() {
    for value in [
        "abc", "5.5", "-1", "+1", "'5'", "", " 5", "5 ;x", "a100", "100a", "\"5", "5\"", "0x10",
        "\"\"",
    ] {
        let read = response(&format!("max-age={value}")).max_age;
        assert_eq!(read, Some(Seconds::ZERO), "{value:?}");
    }
    assert_eq!(response("max-age").max_age, Some(Seconds::ZERO));
    assert_eq!(response("max-age =5").max_age, Some(Seconds::ZERO));
}

#[test]
fn lifetimes_may_be_quoted_padded_and_huge() {
    assert_eq!(response("max-age=\"5\"").max_age, Some(Seconds::new(5)));
    assert_eq!(response("max-age=0005").max_age, Some(Seconds::new(5)));
    for huge in ["2147483648", "2147483649", "99999999999999999999999"] {
        let read = response(&format!("max-age={huge}")).max_age;
        assert_eq!(read, Some(Seconds::MAX), "{huge}");
    }
}

#[test]
fn of_two_lifetimes_the_first_counts() {
    assert_eq!(
        response("max-age=9, max-age=1").max_age,
        Some(Seconds::new(9))
    );
    assert_eq!(
        response("max-age=x, max-age=9").max_age,
        Some(Seconds::ZERO)
    );
    let lines = fields(&["max-age=1", "max-age=9"]);
    assert_eq!(
        ResponseDirectives::parse(&lines).max_age,
        Some(Seconds::new(1))
    );
}

#[test]
fn of_two_request_limits_the_stricter_counts() {
    let read = request("max-age=9, max-age=1, min-fresh=1, min-fresh=9, max-stale, max-stale=3");
    assert_eq!(read.max_age, Some(Seconds::new(1)));
    assert_eq!(read.min_fresh, Some(Seconds::new(9)));
    assert_eq!(read.max_stale, Some(Seconds::new(3)));
    assert_eq!(request("max-stale").max_stale, Some(Seconds::MAX));
    assert_eq!(request("max-stale=x").max_stale, Some(Seconds::ZERO));
    assert_eq!(request("min-fresh=x").min_fresh, Some(Seconds::MAX));
}

#[test]
fn directives_inside_quotes_are_none() {
    let read = response("ext=\"no-store, max-age=1\", max-age=5");
    assert_eq!(read.max_age, Some(Seconds::new(5)));
    assert!(!read.no_store);
}

#[test]
fn restricting_directives_count_with_any_value() {
    let read = response("no-store=x, must-revalidate=\"\", proxy-revalidate =1");
    assert!(read.no_store && read.must_revalidate && read.proxy_revalidate);
}

#[test]
fn permitting_directives_count_only_bare() {
    let read = response("public=x, immutable=1, must-understand=yes");
    assert!(!read.public && !read.immutable && !read.must_understand);
}

#[test]
fn field_names_narrow_no_cache_and_private() {
    let read = response("no-cache=\"Set-Cookie, a\", private=b");
    assert_eq!(read.no_cache, names(&["set-cookie", "a"]));
    assert_eq!(read.private, names(&["b"]));
    assert_eq!(
        response("private=\"a\", private=\"b\"").private,
        names(&["a", "b"])
    );
}

#[test]
fn field_names_that_cannot_be_read_do_not_narrow() {
    for line in [
        "no-cache=\"\"",
        "no-cache=\"a b\"",
        "no-cache=\"a",
        "no-cache=",
        "no-cache=\"a\", no-cache",
    ] {
        assert!(response(line).no_cache.is_response(), "{line}");
    }
}

#[test]
fn pragma_counts_only_without_cache_control() {
    let mut lines = HeaderMap::new();
    lines.insert(PRAGMA, "x, No-Cache".parse().unwrap());
    assert!(RequestDirectives::parse(&lines).no_cache);
    lines.insert(CACHE_CONTROL, "max-age=5".parse().unwrap());
    assert!(!RequestDirectives::parse(&lines).no_cache);
}
