//! Which strings of a JSON text are links, however it is cut.

use proptest::prelude::*;

use super::super::Mirror;
use super::super::tests::{crates, links, npm, pypi};
use super::*;

/// The output for a text that arrives in pieces of these lengths, and the rest at once.
fn rewritten(mirror: &Mirror, page: &str, text: &[u8], cuts: &[usize]) -> Vec<u8> {
    let links = links(mirror, page);
    let (mut json, mut out, mut rest) = (JsonRewriter::new(mirror.kind()), Vec::new(), text);
    for &cut in cuts {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        json.push(piece, &links, &mut out);
        rest = after;
    }
    json.push(rest, &links, &mut out);
    json.finish(&mut out);
    out
}

const NPM_PAGE: &str = "http://registry.test/npm/a";

fn npm_rewritten(text: &str) -> String {
    let out = rewritten(&npm(), NPM_PAGE, text.as_bytes(), &[]);
    String::from_utf8(out).unwrap()
}

#[test]
fn tarballs_of_the_registry_become_ours() {
    let text = r#"{"name":"a", "versions" : {"1.0.0":{"dist":{"shasum":"ab","tarball" :
        "http:\/\/registry.test\/npm\/@s%2fa\/-\/a-1.0.0.tgz","x":[{"y":1}]}},
        "2.0.0":{"dist":{"tarball":"http://registry.test/npm/a/-/a\u002d2.tgz"}}},
        "readme":"\"dist\""}"#;
    let expected = r#"{"name":"a", "versions" : {"1.0.0":{"dist":{"shasum":"ab","tarball" :
        "http://box:3128/mirror/npm/@s%2fa/-/a-1.0.0.tgz","x":[{"y":1}]}},
        "2.0.0":{"dist":{"tarball":"http://box:3128/mirror/npm/a/-/a-2.tgz"}}},
        "readme":"\"dist\""}"#;
    assert_eq!(npm_rewritten(text), expected);
    let spelled = r#"{"\u0064ist":{"\u0074\u0061\u0072\u0062\u0061\u006c\u006C":
        "http://registry.test/npm/x"}}"#;
    assert!(npm_rewritten(spelled).ends_with(r#" "http://box:3128/mirror/npm/x"}}"#));
}

#[test]
fn a_link_to_the_registry_itself_ends_in_a_slash() {
    for (link, ours) in [
        ("http://registry.test/npm/", "http://box:3128/mirror/npm/"),
        ("http://registry.test/npm/.", "http://box:3128/mirror/npm/"),
        (
            "http://registry.test/npm/a/..",
            "http://box:3128/mirror/npm/",
        ),
    ] {
        let text = |link| format!(r#"{{"dist":{{"tarball":"{link}"}}}}"#);
        assert_eq!(npm_rewritten(&text(link)), text(ours), "{link}");
    }
}

#[test]
fn strings_that_only_look_like_tarballs_pass() {
    for text in [
        r#"{"tarball":"http://registry.test/npm/x"}"#,
        r#"{"dist":{"x":{"tarball":"http://registry.test/npm/x"}}}"#,
        r#"{"dist":["tarball","http://registry.test/npm/x"]}"#,
        r#"{"dist":{"tarball":["http://registry.test/npm/x"]}}"#,
        r#"{"readme":"{\"dist\":{\"tarball\":\"http://registry.test/npm/x\"}}"}"#,
        r#"{"dist":{"tarball":"http://elsewhere.test/npm/x"}}"#,
        r#"{"dist":{"tarball":"http://registry.test/other/x"}}"#,
        r#"{"dist":{"a":1},"tarball":"http://registry.test/npm/x"}"#,
        r#"{"dist":{"tarball":"http://registry.test/npm/\ud800"}}"#,
        r#"{"dist":{"tarball":"http://registry.test/npm/a b"}}"#,
    ] {
        assert_eq!(npm_rewritten(text), text);
    }
}

#[test]
fn files_of_a_project_become_ours() {
    let page = "https://index.test/simple/a/";
    let text = r#"{"meta":{"url":"https://files.test/m"},"files":[{"filename":"a.whl",
        "url":"https://files.test/p/a.whl",
        "hashes":{"url":"https://files.test/h"}},
        {"url":"../../p/b.tar.gz"}],
        "url":"https://files.test/n"}"#;
    let expected = r#"{"meta":{"url":"https://files.test/m"},"files":[{"filename":"a.whl",
        "url":"http://box:3128/mirror/py/files/files.test/p/a.whl",
        "hashes":{"url":"https://files.test/h"}},
        {"url":"http://box:3128/mirror/py/files/index.test/p/b.tar.gz"}],
        "url":"https://files.test/n"}"#;
    let out = rewritten(&pypi(), page, text.as_bytes(), &[]);
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn of_a_sparse_index_the_downloads_become_ours() {
    let page = "https://index.test/config.json";
    let text = r#"{"dl":"https://static.test/{crate}-{version}",
        "api":"https:\/\/index.test",
        "auth-required":false,"x":{"dl":"https://static.test/"}}"#;
    let expected = r#"{"dl":"http://box:3128/mirror/crates/files/static.test/{crate}-{version}",
        "api":"http://box:3128/mirror/crates",
        "auth-required":false,"x":{"dl":"https://static.test/"}}"#;
    let out = rewritten(&crates(), page, text.as_bytes(), &[]);
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn what_is_broken_off_or_endless_passes_as_it_came() {
    let long = format!(
        r#"{{"dist":{{"tarball":"http://registry.test/npm/{}"}}}}"#,
        "a".repeat(20_000)
    );
    let endless = format!(r#"{{"dist":{{"tarball":"{}"#, "x".repeat(1 << 20));
    let deep = "[".repeat(100_000) + &"]".repeat(200_000);
    let name = format!(
        r#"{{"{}":{{"tarball":"http://registry.test/npm/a"}}}}"#,
        "dist".repeat(1000)
    );
    for text in [
        &long,
        &endless,
        &deep,
        &name,
        "",
        "\"",
        "{\"dist\":{\"tarball\":\"http://registry",
    ] {
        assert_eq!(npm_rewritten(text), *text);
    }
    // Invalid input passes, without a panic.
    let utf16: Vec<u8> = r#"{"dist":{"tarball":"http://registry.test/npm/x"}}"#
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(rewritten(&npm(), NPM_PAGE, &utf16, &[]), utf16);
    let latin = b"{\"dist\":{\"tarball\":\"http://registry.test/npm/\xff\"}}";
    assert_eq!(rewritten(&npm(), NPM_PAGE, latin, &[]), latin);
}

#[test]
fn no_more_than_a_link_is_held_back() {
    let links = links(&npm(), NPM_PAGE);
    let (mut json, mut out) = (JsonRewriter::new(MirrorKind::Npm), Vec::new());
    let mut fed = 0;
    for piece in [&b"{\"dist\":{\"tarball\":\""[..]]
        .into_iter()
        .chain([&[b'x'; 1000][..]; 200])
    {
        json.push(piece, &links, &mut out);
        fed += piece.len();
        assert!(fed - out.len() <= LINK_BYTES_MAX);
        assert!(json.held.capacity() <= 2 * LINK_BYTES_MAX);
    }
    assert_eq!(fed, out.len());
}

/// Pieces of packuments, put together without sense.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\"dist\":{",
        "\"tarball\":",
        "\"http://registry.test/npm/a\"",
        "\"http:\\/\\/registry.test\\/npm\\/b\"",
        "\\u00",
        "é",
        " ",
        "\"dist\"",
        "\"tarball\":\"http://registry.test/npm/c\"",
        "\"x\":1",
    ])
    .prop_map(|text: &str| text.as_bytes().to_vec());
    let any = prop::collection::vec(any::<u8>(), 0..4);
    prop::collection::vec(prop_oneof![8 => known, 1 => any], 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cuts_change_nothing(text in pieces(), cuts in prop::collection::vec(0_usize..12, 0..60)) {
        let whole = rewritten(&npm(), NPM_PAGE, &text, &[]);
        prop_assert_eq!(&rewritten(&npm(), NPM_PAGE, &text, &cuts), &whole);
        let singly = vec![1; text.len()];
        prop_assert_eq!(&rewritten(&npm(), NPM_PAGE, &text, &singly), &whole);
    }

    #[test]
    fn json_stays_json_and_only_links_change(name in "[a-z]{1,8}", link in "\\PC{0,20}") {
        let text = serde_json::json!({
            "name": &name,
            "versions": {
                "1": {"dist": {"tarball": format!("http://registry.test/npm/{link}"), "x": &link}},
            },
        });
        let out = rewritten(&npm(), NPM_PAGE, text.to_string().as_bytes(), &[]);
        let mut read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let tarball = read["versions"]["1"]["dist"]["tarball"].take();
        let mut was = text;
        let before = was["versions"]["1"]["dist"]["tarball"].take();
        prop_assert_eq!(read, was);
        let (tarball, before) = (tarball.as_str().unwrap(), before.as_str().unwrap());
        prop_assert!(tarball == before || tarball.starts_with("http://box:3128/mirror/npm/"));
    }
}
