//! Tests of the choice of a coding and of the fields of encoded responses.

use super::*;

fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(*name, value.parse().unwrap());
    }
    fields
}

fn chosen(accepted: &str) -> Option<Coding> {
    let mut request = fields(&[("accept-encoding", accepted)]);
    let accepted = take_accept_encoding(&mut request);
    assert!(request.is_empty());
    accepted.choose(&[Coding::Gzip, Coding::Brotli])
}

#[test]
fn the_client_gets_the_coding_that_it_prefers() {
    let (br, gzip) = (Some(Coding::Brotli), Some(Coding::Gzip));
    for (accepted, coding) in [
        ("gzip, deflate, br, zstd", br),
        ("gzip, deflate", gzip),
        ("x-gzip", gzip),
        ("br;q=0.5, gzip;q=0.8", gzip),
        ("br;q=0.800, GZIP;Q=0.8", br),
        ("br;q=0, gzip", gzip),
        ("br;q=0.000", None),
        ("*", br),
        ("*;q=0.1, br;q=0", gzip),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip;q=0.5", gzip),
        ("deflate", None),
        ("", None),
        (";q=1, ,gzip;q=2.9;x", gzip),
        ("gzip;q=", None),
    ] {
        assert_eq!(chosen(accepted), coding, "{accepted}");
    }
    assert_eq!(AcceptEncoding::default().choose(&[Coding::Gzip]), None);
}

#[test]
fn a_coding_that_is_not_offered_is_not_chosen() {
    let mut request = fields(&[("accept-encoding", "br, gzip;q=0.1")]);
    let accepted = take_accept_encoding(&mut request);
    assert_eq!(accepted.choose(&[Coding::Gzip]), Some(Coding::Gzip));
    assert_eq!(accepted.choose(&[]), None);
}

#[test]
fn long_text_is_encoded_and_nothing_else() {
    let text = ("content-type", "text/html; charset=utf-8");
    let ok = |lines: &[(&'static str, &str)]| is_encodable(StatusCode::OK, &fields(lines));
    assert!(ok(&[text]));
    assert!(ok(&[text, ("content-length", "1024")]));
    assert!(ok(&[("content-type", "IMAGE/SVG+XML")]));
    assert!(ok(&[("content-type", "application/json")]));
    assert!(!ok(&[]));
    assert!(!ok(&[text, ("content-length", "1023")]));
    assert!(!ok(&[text, ("content-length", "many")]));
    assert!(!ok(&[text, ("content-encoding", "gzip")]));
    assert!(!ok(&[text, ("cache-control", "max-age=5, No-Transform")]));
    assert!(!ok(&[text, ("content-range", "bytes 0-1/2")]));
    assert!(!ok(&[("content-type", "image/png")]));
    assert!(!ok(&[("content-type", "text/event-stream")]));
    assert!(!ok(&[("content-type", "application/zip")]));
    for status in [204, 206, 301, 304, 416, 500] {
        let status = StatusCode::from_u16(status).unwrap();
        assert!(!is_encodable(status, &fields(&[text])), "{status}");
    }
}

#[test]
fn the_encoded_form_has_a_weak_tag_and_no_fields_about_other_bytes() {
    let mut response = fields(&[
        ("etag", "\"v1\""),
        ("content-length", "5000"),
        ("accept-ranges", "bytes"),
        ("repr-digest", "sha-256=:AA==:"),
        ("content-type", "text/plain"),
    ]);
    encoded_fields(Coding::Gzip.name(), &mut response);
    assert_eq!(response["etag"], "W/\"v1\"");
    assert_eq!(response["content-encoding"], "gzip");
    assert_eq!(response.len(), 3);
    encoded_fields(Coding::Gzip.name(), &mut response);
    assert_eq!(response["etag"], "W/\"v1\"");
}

#[test]
fn vary_names_accept_encoding_once() {
    for (before, after) in [
        (None, vec!["accept-encoding"]),
        (Some("Cookie"), vec!["Cookie", "accept-encoding"]),
        (
            Some("Cookie, Accept-Encoding"),
            vec!["Cookie, Accept-Encoding"],
        ),
        (Some("*"), vec!["*"]),
    ] {
        let mut response = HeaderMap::new();
        if let Some(before) = before {
            response.insert(VARY, before.parse().unwrap());
        }
        add_vary(&mut response);
        let lines: Vec<_> = response.get_all(VARY).iter().collect();
        assert_eq!(lines, after);
    }
}

#[test]
fn only_a_client_that_names_zstd_gets_it() {
    for (accepted, expected) in [
        (&["gzip, deflate, br, zstd"][..], true),
        (&["gzip", "ZSTD;q=0.1"], true),
        (&["zstd;q=0.5, gzip"], true),
        (&["zstd;q=0"], false),
        (&["zstd;q=0.5, identity"], false),
        (&["zstd;q=0.5, identity;q=0.5"], true),
        (&["identity;q=0"], false),
        (&["*"], false),
        (&["gzip, br"], false),
        (&[""], false),
        (&[], false),
    ] {
        let values = accepted.iter().map(|value| value.as_bytes());
        assert_eq!(prefers_zstd(values), expected, "{accepted:?}");
    }
}
