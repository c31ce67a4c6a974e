//! Tests of the layouts of metadata.

use hashcache_http::{
    Exchange, Storable, StoreOptions, Target, UnixTime, Variant, VariantPlace, storable,
};
use http::{Method, StatusCode};

use super::*;

/// A response that varies, with its table.
pub(super) fn sample() -> StoredResponse {
    let mut fields = HeaderMap::new();
    for (name, value) in [
        ("cache-control", "max-age=60"),
        ("vary", "accept-language"),
        ("x-two", "1"),
        ("x-two", "2"),
        ("etag", "\"a\""),
    ] {
        fields.append(name, HeaderValue::from_static(value));
    }
    let mut request = HeaderMap::new();
    request.insert("accept-language", HeaderValue::from_static("sw, fr"));
    let exchange = Exchange {
        target: &Target::parse_url("http://h/").unwrap(),
        method: &Method::GET,
        request: &request,
        exempt: hashcache_http::Exempt::default(),
        status: StatusCode::OK,
        response: &fields,
        request_time: UnixTime(1),
        response_time: UnixTime(2),
    };
    let Storable::Whole { facts, row } = storable(&exchange, &StoreOptions::default()) else {
        panic!("it is storable")
    };
    let mut table = VariantTable::new(7, &[http::header::ACCEPT_LANGUAGE]);
    table.set(Variant {
        values: 1,
        place: VariantPlace::Here,
        version: 2,
        alias: false,
        client: 0,
        etag: Some((*b"\"a\"").into()),
    });
    StoredResponse {
        facts,
        row,
        table: Some(table),
        fields,
        digest: None,
        pages: None,
    }
}

/// The same with content in pages.
fn in_pages() -> StoredResponse {
    StoredResponse {
        digest: Some(Digest::from_content(b"content")),
        pages: Some(PageTable::new(70_000, &[100, 300])),
        ..sample()
    }
}

#[test]
fn a_response_comes_back_as_it_was_stored() {
    let response = sample();
    let back = StoredResponse::decode(&response.encode().unwrap()).unwrap();
    assert_eq!(back.facts, response.facts);
    assert_eq!(back.row, response.row);
    assert_eq!(back.table, response.table);
    assert_eq!(back.fields, response.fields);
    assert!(back.row.is_some());
}

#[test]
fn the_digest_has_a_place_from_the_beginning_and_is_read_at_the_end() {
    let announced = StoredResponse {
        digest: Some(UNKNOWN_DIGEST),
        ..sample()
    };
    let announced = announced.encode().unwrap();
    assert_eq!(StoredResponse::decode(&announced).unwrap().digest, None);
    let digest = Digest::from_content(b"content");
    let whole = finished(&announced, Some(digest), None).unwrap();
    assert_eq!(whole.len(), announced.len());
    let back = StoredResponse::decode(&whole).unwrap();
    assert_eq!((back.digest, back.fields), (Some(digest), sample().fields));
    assert_eq!(finished(&announced, None, None), None);
    let plain = sample().encode().unwrap();
    assert_eq!(finished(&plain, Some(digest), None), None);
    for length in 0..whole.len() {
        let _ = StoredResponse::decode(&whole.slice(..length));
    }
}

#[test]
fn the_fields_of_a_put_whose_pages_have_just_begun_can_be_read() {
    let begun = StoredResponse {
        pages: Some(PageTable::announced(Some(70_000))),
        ..in_pages()
    };
    let begun = begun.encode().unwrap();
    assert!(StoredResponse::decode(&begun).is_none());
    assert_eq!(StoredResponse::decode_fields(&begun), Some(sample().fields));
}

#[test]
fn the_page_table_is_found_beside_the_digest_and_survives_a_change_of_fields() {
    let mut stored = StoredResponse::decode(&in_pages().encode().unwrap()).unwrap();
    stored.fields.insert("x", HeaderValue::from_static("new"));
    let back = StoredResponse::decode(&stored.encode().unwrap()).unwrap();
    assert_eq!(
        (back.digest, &back.pages),
        (in_pages().digest, &in_pages().pages)
    );
    assert_eq!((back.fields, back.table), (stored.fields, sample().table));
    for (length, ends) in [
        (Some(70_000), &[100, 300][..]),
        (None, &[100, 300]),
        (None, &[]),
    ] {
        let announced = StoredResponse {
            digest: Some(UNKNOWN_DIGEST),
            pages: Some(PageTable::announced(length)),
            ..sample()
        };
        let announced = announced.encode().unwrap();
        // A put that was not finished is no response, unless there is no content.
        assert_eq!(
            StoredResponse::decode(&announced).is_some(),
            length.is_none()
        );
        let pages = PageTable::new(if ends.is_empty() { 0 } else { 70_000 }, ends);
        for digest in [None, Some(Digest::from_content(b"content"))] {
            let whole = finished(&announced, digest, Some(&pages)).unwrap();
            assert!(length.is_none() || whole.len() == announced.len());
            let back = StoredResponse::decode(&whole).unwrap();
            assert_eq!((back.digest, back.pages), (digest, Some(pages.clone())));
            assert_eq!(back.fields, sample().fields);
        }
        assert_eq!(
            finished(&announced, in_pages().digest, None),
            None,
            "without its table"
        );
    }
    let mut view = in_pages();
    (view.row, view.table) = (None, None);
    let metadata = view.encode().unwrap();
    let mut view = StoredView::from_metadata(&metadata).unwrap();
    assert!(view.is_in_pages);
    assert_eq!(
        view.next_field(),
        Ok(Some((&b"cache-control"[..], &b"max-age=60"[..])))
    );
}

#[test]
fn metadata_that_was_cut_or_altered_never_panics() {
    damage(&sample());
    damage(&in_pages());
}

fn damage(response: &StoredResponse) {
    let whole = response.encode().unwrap();
    for length in 0..whole.len() {
        let _ = StoredResponse::decode(&whole.slice(..length));
    }
    for at in 0..whole.len() {
        let mut bad = whole.to_vec();
        bad[at] ^= 0xff;
        let _ = StoredResponse::decode(&bad.into());
    }
    assert!(StoredResponse::decode(&Bytes::new()).is_none());
}

#[test]
fn a_head_too_large_for_the_engine_is_not_stored() {
    let mut response = sample();
    response
        .fields
        .insert("x", HeaderValue::from_str(&"v".repeat(66_000)).unwrap());
    assert!(response.encode().is_none());
}
