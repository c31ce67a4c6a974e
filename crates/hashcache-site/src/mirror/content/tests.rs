//! Content decoded and rewritten, whole or broken, in any pieces.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderValue;
use proptest::prelude::*;

use super::super::tests::{links, npm, pypi};
use super::*;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn rewriting(coding: ContentCoding) -> Rewriting {
    let links = links(&npm(), "http://registry.test/npm/a");
    Rewriting::new(links, coding, &HeaderMap::new())
}

/// The output for content that arrives in pieces of this size.
fn passed(coding: ContentCoding, content: &[u8], piece: usize) -> Result<Vec<u8>, Failure> {
    let (mut rewriting, mut out) = (rewriting(coding), Vec::new());
    for piece in content.chunks(piece) {
        rewriting.take(Bytes::copy_from_slice(piece));
        while let Some(bytes) = rewriting.next_output()? {
            assert!(bytes.len() < 4 * OUTPUT_BYTES, "{} bytes", bytes.len());
            out.extend_from_slice(&bytes);
        }
    }
    out.extend_from_slice(&rewriting.finish()?.unwrap_or_default());
    Ok(out)
}

const TEXT: &str = r#"{"dist":{"tarball":"http://registry.test/npm/a"}}"#;
const OURS: &str = r#"{"dist":{"tarball":"http://box:3128/mirror/npm/a"}}"#;

#[test]
fn what_is_coded_is_decoded_and_rewritten() {
    for piece in [1, 7, 10_000] {
        assert_eq!(
            passed(ContentCoding::Identity, TEXT.as_bytes(), piece).unwrap(),
            OURS.as_bytes()
        );
        assert_eq!(
            passed(ContentCoding::Gzip, &gzip(TEXT.as_bytes()), piece).unwrap(),
            OURS.as_bytes()
        );
        let (one, two) = TEXT.as_bytes().split_at(20);
        let members = [gzip(one), gzip(two)].concat();
        assert_eq!(
            passed(ContentCoding::Gzip, &members, piece).unwrap(),
            OURS.as_bytes()
        );
        assert_eq!(passed(ContentCoding::Gzip, b"", piece).unwrap(), b"");
    }
}

#[test]
fn what_is_not_coded_as_it_says_is_an_error_and_never_an_end() {
    let whole = gzip(TEXT.as_bytes());
    for length in 1..whole.len() {
        assert_eq!(
            passed(ContentCoding::Gzip, &whole[..length], 10),
            Err(MISCODED),
            "{length}"
        );
    }
    for at in [0, 1, 2, whole.len() - 8, whole.len() - 1] {
        let mut bad = whole.clone();
        bad[at] ^= 0x55;
        assert_eq!(passed(ContentCoding::Gzip, &bad, 10), Err(MISCODED), "{at}");
    }
    let trailed = [&whole[..], b"more"].concat();
    assert_eq!(passed(ContentCoding::Gzip, &trailed, 10), Err(MISCODED));
    assert_eq!(
        passed(ContentCoding::Gzip, TEXT.as_bytes(), 10),
        Err(MISCODED)
    );
}

#[test]
fn a_bomb_comes_out_in_small_pieces() {
    let bomb = gzip(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 128 << 10);
    let mut rewriting = rewriting(ContentCoding::Gzip);
    rewriting.take(bomb.into());
    let mut length = 0;
    while let Some(bytes) = rewriting.next_output().unwrap() {
        assert!(bytes.len() <= 3 * OUTPUT_BYTES, "{} bytes", bytes.len());
        length += bytes.len();
    }
    length += rewriting.finish().unwrap().unwrap_or_default().len();
    assert_eq!(length, 64 << 20);
}

#[test]
fn links_that_grow_come_out_in_small_pieces() {
    let mut many = r#"{"dist":{"#.to_owned();
    many.push_str(&r#""tarball":"/npm/","#.repeat(50_000));
    let mut rewriting = rewriting(ContentCoding::Identity);
    rewriting.take(many.into());
    while let Some(bytes) = rewriting.next_output().unwrap() {
        assert!(bytes.len() <= 3 * OUTPUT_BYTES, "{} bytes", bytes.len());
    }
}

#[test]
fn the_type_says_how_an_index_is_read() {
    let page = r#"<a href="https://files.test/a">"#;
    let json = r#"{"files":[{"url":"https://files.test/a"}]}"#;
    for (content_type, changes) in [
        (Some("text/html; charset=utf-8"), [true, false]),
        (Some("application/vnd.pypi.simple.v1+HTML"), [true, false]),
        (Some("application/vnd.pypi.simple.v1+json"), [false, true]),
        (Some("Application/JSON"), [false, true]),
        (Some("text/plain"), [false, false]),
        (None, [true, false]),
    ] {
        let mut fields = HeaderMap::new();
        if let Some(content_type) = content_type {
            fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        for (text, changes) in [page, json].into_iter().zip(changes) {
            let links = links(&pypi(), "https://index.test/simple/a/");
            let mut rewriting = Rewriting::new(links, ContentCoding::Identity, &fields);
            rewriting.take(Bytes::from_static(text.as_bytes()));
            let out = rewriting.next_output().unwrap().unwrap_or_default();
            assert_eq!(out != text.as_bytes(), changes, "{content_type:?}: {text}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_pass_or_are_an_error(content in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(passed(ContentCoding::Identity, &content, 100).is_ok());
        let _ = passed(ContentCoding::Gzip, &content, 100);
        let _ = passed(ContentCoding::Gzip, &[&[0x1f, 0x8b, 8, 0][..], &content].concat(), 100);
    }
}
