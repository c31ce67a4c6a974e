//! Tests for rows that match, and rows that do not.

use super::*;

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
    }
    fields
}

/// Returns true if two values of a request field select the same row.
fn alike(name: &str, one: &str, other: &str) -> bool {
    let names = [HeaderName::from_bytes(name.as_bytes()).unwrap()];
    let row = VaryRow::select(&names, &fields(&[(name, one)])).unwrap();
    let matches = row.matches(&fields(&[(name, other)]));
    let same = VaryRow::select(&names, &fields(&[(name, other)])).unwrap() == row;
    assert_eq!(matches, same, "matching and selecting must agree");
    matches
}

#[test]
fn vary_lists_names_or_cannot_be_compared() {
    let vary = |lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| ("vary", *line)).collect();
        Vary::parse(&fields(&lines))
    };
    assert_eq!(vary(&[]), Vary::Nothing);
    assert_eq!(vary(&[""]), Vary::Nothing);
    let foo_bar = Vary::Fields(vec!["foo".parse().unwrap(), "bar".parse().unwrap()]);
    assert_eq!(vary(&["Foo, BAR"]), foo_bar);
    assert_eq!(vary(&["foo", "bar, foo"]), foo_bar);
    assert!(matches!(
        vary(&["a, b, c, d, e, f, g, h, a"]),
        Vary::Fields(_)
    ));
    assert_eq!(vary(&["a, b, c, d, e, f, g, h, i"]), Vary::TooWide);
    for lines in [
        &["*"][..],
        &["*, *"],
        &["*", "*"],
        &[", *"],
        &["", "*"],
        &["foo, *"],
        &["a b"],
    ] {
        assert_eq!(vary(lines), Vary::Anything, "{lines:?}");
    }
}

#[test]
fn a_missing_field_differs_from_an_empty_one() {
    let names = ["foo".parse().unwrap()];
    let absent = VaryRow::select(&names, &fields(&[])).unwrap();
    assert!(absent.matches(&fields(&[("bar", "1")])));
    assert!(!absent.matches(&fields(&[("foo", "")])));
}

#[test]
fn every_field_of_the_row_must_match() {
    let names = ["foo".parse().unwrap(), "bar".parse().unwrap()];
    let row = VaryRow::select(&names, &fields(&[("foo", "1"), ("bar", "2")])).unwrap();
    assert!(row.matches(&fields(&[("bar", "2"), ("foo", "1"), ("other", "3")])));
    assert!(!row.matches(&fields(&[("bar", "2"), ("foo", "2")])));
    assert!(!row.matches(&fields(&[("foo", "1")])));
}

#[test]
fn lines_are_joined_and_blanks_around_commas_do_not_count() {
    assert!(alike("foo", "1,2", "1 ,  2"));
    assert!(!alike("foo", "1,2", "2,1"));
    assert!(!alike("foo", "a", "A"));
    assert!(!alike("foo", "\"1,2\"", "\"1, 2\""));
    let names = ["foo".parse().unwrap()];
    let row = VaryRow::select(&names, &fields(&[("foo", "1, 2")])).unwrap();
    assert!(row.matches(&fields(&[("foo", "1"), ("foo", "2")])));
}

#[test]
fn accept_encoding_is_the_set_of_codings_wanted() {
    assert!(alike(
        "accept-encoding",
        "gzip, deflate, br, zstd",
        "zstd;q=0.1, BR , x-gzip"
    ));
    assert!(alike("accept-encoding", "deflate", "identity;q=0.5"));
    assert!(alike("accept-encoding", "*", "gzip, br, zstd, identity"));
    assert!(alike(
        "accept-encoding",
        "gzip, *;q=0",
        "gzip, identity;q=0"
    ));
    assert!(alike("accept-encoding", "gzip;q=0.000, br", "br"));
    assert!(!alike("accept-encoding", "gzip", "br"));
    assert!(!alike("accept-encoding", "gzip", "gzip;q=x"));
    let names = [ACCEPT_ENCODING];
    let absent = VaryRow::select(&names, &fields(&[])).unwrap();
    assert!(!absent.matches(&fields(&[("accept-encoding", "identity")])));
}

#[test]
fn accept_language_is_an_ordered_list() {
    assert!(alike(
        "accept-language",
        "en-GB, de;q=0.5",
        "de;q=0.3 ,EN-gb;q=0.9"
    ));
    assert!(!alike("accept-language", "en, de", "de, en"));
    assert!(!alike("accept-language", "en, de;q=0", "en"));
    assert!(!alike("accept-language", "en, de;q=0", "en, de"));
}

#[test]
fn accept_is_compared_without_blanks_and_case_of_types() {
    assert!(alike(
        "accept",
        "Text/HTML; q=0.5, */*",
        "text/html;q=0.5,*/*"
    ));
    assert!(!alike("accept", "text/html;v=A", "text/html;v=a"));
}

#[test]
fn cookies_and_agents_are_compared_byte_for_byte() {
    assert!(!alike("cookie", "a=1; b=2", "a=1;b=2"));
    assert!(!alike("user-agent", "X (a, b)", "X (a,b)"));
    assert!(alike("user-agent", "X", " X "));
}

#[test]
fn rows_that_would_be_too_large_are_refused() {
    let names: Vec<HeaderName> = (0..9).map(|n| format!("f{n}").parse().unwrap()).collect();
    assert!(VaryRow::select(&names, &fields(&[])).is_none());
    assert!(VaryRow::select(&names[..8], &fields(&[])).is_some());
    let long = "x".repeat(VARY_ROW_BYTES_MAX);
    assert!(VaryRow::select(&names[..1], &fields(&[("f0", &long)])).is_none());
}

#[test]
fn rows_survive_storage_and_damage_is_noticed() {
    let names = ["foo".parse().unwrap(), "bar".parse().unwrap()];
    let row = VaryRow::select(&names, &fields(&[("foo", "1")])).unwrap();
    let bytes = row.as_bytes();
    assert_eq!(VaryRow::from_bytes(bytes), Some(row.clone()));
    for length in 0..bytes.len() {
        assert_eq!(VaryRow::from_bytes(&bytes[..length]), None, "{length}");
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert_eq!(VaryRow::from_bytes(&longer), None);
    longer[0] = 9;
    assert_eq!(VaryRow::from_bytes(&longer), None);
}

#[test]
fn codings_the_row_forgets_are_noticed() {
    let names = [ACCEPT_ENCODING];
    let deflate = fields(&[("content-encoding", "deflate")]);
    let gzip = fields(&[("content-encoding", "x-gzip")]);
    let request = fields(&[("accept-encoding", "deflate, gzip")]);
    assert!(coding_escapes_row(&names, &request, &deflate));
    assert!(!coding_escapes_row(&names, &request, &gzip));
    assert!(!coding_escapes_row(&names, &fields(&[]), &deflate));
    assert!(!coding_escapes_row(&[], &request, &deflate));
}

#[test]
fn a_value_longer_than_a_row_has_no_row_and_answers_none() {
    let list = |length: usize| "x,".repeat(length / 2);
    for name in ["accept-language", "accept", "accept-encoding", "x-other"] {
        let names = [HeaderName::from_bytes(name.as_bytes()).unwrap()];
        let long = fields(&[(name, &list(VARY_ROW_BYTES_MAX + 2))]);
        assert_eq!(VaryRow::select(&names, &long), None, "{name}");
        // Otherwise both requests would have only `identity`.
        let row = VaryRow::select(&names, &fields(&[(name, "x")])).unwrap();
        assert!(!row.matches(&long), "{name}");
        let halves = list(VARY_ROW_BYTES_MAX / 2 + 2);
        let lines = fields(&[(name, halves.as_str()), (name, halves.as_str())]);
        assert_eq!(VaryRow::select(&names, &lines), None, "{name} in two lines");
    }
}
