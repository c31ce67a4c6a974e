//! Which attributes of an HTML text are links, however it is cut.

use proptest::prelude::*;

use super::super::tests::{links, pypi};
use super::*;

fn rewritten(text: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut links = links(&pypi(), "https://index.test/simple/a/");
    let (mut html, mut out, mut rest) = (HtmlRewriter::new(), Vec::new(), text);
    for &cut in cuts {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        html.push(piece, &mut links, &mut out);
        rest = after;
    }
    html.push(rest, &mut links, &mut out);
    html.finish(&mut out);
    out
}

fn text(html: &str) -> String {
    String::from_utf8(rewritten(html.as_bytes(), &[])).unwrap()
}

const FILES: &str = "http://box:3128/mirror/py/files/files.test";

#[test]
fn links_of_anchors_become_ours_and_all_else_stays() {
    for (before, after) in [
        (
            r#"<a href="https://files.test/a.whl#sha256=ab" data-requires="&gt;=3.8">a.whl</a>"#,
            format!(r#"<a href="{FILES}/a.whl#sha256=ab" data-requires="&gt;=3.8">a.whl</a>"#),
        ),
        (
            "<A data-x='<b>' HREF = 'https://files.test/a?b&amp;c'>",
            format!("<A data-x='<b>' HREF = '{FILES}/a?b&amp;c'>"),
        ),
        (
            "<a\nrel=x/href=https://files.test/a >x",
            "<a\nrel=x/href=https://files.test/a >x".to_owned(),
        ),
        (
            "<a rel=x href=https://files.test/a>x",
            format!("<a rel=x href=\"{FILES}/a\">x"),
        ),
        (
            "<a href=\"&#104;ttps://files.test/&#x61;\">",
            format!("<a href=\"{FILES}/a\">"),
        ),
        (
            "1 < 2 <<a href=\"https://files.test/a\">",
            format!("1 < 2 <<a href=\"{FILES}/a\">"),
        ),
        (
            "<!-- > --><a href=\"https://files.test/a\"><!--><a href='https://files.test/b'>",
            format!("<!-- > --><a href=\"{FILES}/a\"><!--><a href='{FILES}/b'>"),
        ),
        (
            "<SCRIPT>'</a <a href=x'</Script ><a href=\"https://files.test/a\">",
            format!("<SCRIPT>'</a <a href=x'</Script ><a href=\"{FILES}/a\">"),
        ),
    ] {
        assert_eq!(text(before), after);
    }
}

#[test]
fn what_only_looks_like_a_link_passes() {
    for html in [
        "<!-- <a href=\"https://files.test/a\"> -->",
        "<script>x = '<a href=\"https://files.test/a\">'</script>",
        "<abbr href=\"https://files.test/a\">",
        "<a data-href=\"https://files.test/a\">",
        "<a title='href=\"https://files.test/a\"'>",
        "<a href=\"https://evil.test/a\">",
        "</a href=\"https://files.test/a\">",
        "<a =href \"https://files.test/a\">",
        "<a href>",
        "<a href=>",
        "<a href=",
        "<a",
        "<",
        "<a href=\"https://files.test/a",
    ] {
        assert_eq!(text(html), html);
    }
    let latin = b"<a href=\"https://files.test/\xe9\">\xff</a>";
    assert_eq!(rewritten(latin, &[]), latin);
}

#[test]
fn a_base_says_what_links_are_relative_to() {
    let html = "<base href=\"https://files.test/x/\"><a href=\"a.whl\"><a href=\"//evil.test/b\">";
    let expected = format!(
        "<base href=\"https://files.test/x/\"><a href=\"{FILES}/x/a.whl\">\
         <a href=\"https://evil.test/b\">"
    );
    assert_eq!(text(html), expected);
}

#[test]
fn endless_tags_are_not_held_back() {
    let mut links = links(&pypi(), "https://index.test/simple/a/");
    for begin in ["<a href=\"", "<a ", "<!", "<!--", "<script>"] {
        let (mut html, mut out, mut fed) = (HtmlRewriter::new(), Vec::new(), 0);
        for piece in [begin.as_bytes()]
            .into_iter()
            .chain([&[b'x'; 1000][..]; 100])
        {
            html.push(piece, &mut links, &mut out);
            fed += piece.len();
            assert!(fed - out.len() <= LINK_BYTES_MAX);
        }
        assert_eq!(fed, out.len(), "{begin}");
    }
}

/// Pieces of an index, put together without sense.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "<",
        ">",
        "<a ",
        "href=",
        "\"",
        "'",
        "=",
        " ",
        "/",
        "<!--",
        "-->",
        "-",
        "<script>",
        "</script",
        "<a href=\"https://files.test/a\">",
        "<a href=x>",
        "&amp;",
        "&#",
        "</a>",
        "x",
        "<base href='/y/'>",
        "<a href='https://files.test/b?c&amp;d' x>",
    ])
    .prop_map(|text: &str| text.as_bytes().to_vec());
    let any = prop::collection::vec(any::<u8>(), 0..4);
    prop::collection::vec(prop_oneof![8 => known, 1 => any], 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cuts_change_nothing(text in pieces(), cuts in prop::collection::vec(0_usize..12, 0..60)) {
        let whole = rewritten(&text, &[]);
        prop_assert_eq!(&rewritten(&text, &cuts), &whole);
        prop_assert_eq!(&rewritten(&text, &vec![1; text.len()]), &whole);
    }
}
