//! Tests for `glob`: cases for each part of the language, and random patterns compared with
//! `globset`.

use globset::GlobBuilder;
use proptest::prelude::*;

use super::*;

fn matches(pattern: &str, text: &str, crosses: Crosses) -> bool {
    let mut globs = Globs::new();
    globs.push(pattern, crosses).unwrap();
    globs.is_match(text)
}

#[test]
fn each_part_of_a_pattern_takes_what_it_stands_for() {
    use Crosses::{DoubleStar, Star};
    for (pattern, crosses, taken, refused) in [
        (
            "/a?c",
            DoubleStar,
            &["/abc"][..],
            &["/ac", "/a/c", "/abbc"][..],
        ),
        ("a?c", Star, &["a/c"], &["ac"]),
        ("/a*", DoubleStar, &["/a", "/abc"], &["/a/b", "/b"]),
        (
            "/*.js",
            DoubleStar,
            &["/.js", "/a.js"],
            &["/a/b.js", "/a.jsx"],
        ),
        (
            "*.example.com",
            Star,
            &["a.b.example.com"],
            &["example.com"],
        ),
        ("/a/**", DoubleStar, &["/a/", "/a/b/c"], &["/a", "/ab"]),
        (
            "/**/b",
            DoubleStar,
            &["/b", "/a/b", "/a/a/b"],
            &["/ab", "/b/a"],
        ),
        (
            "/a/**/b",
            DoubleStar,
            &["/a/b", "/a/x/y/b"],
            &["/a/xb", "/ab"],
        ),
        ("/a**b", DoubleStar, &["/ab", "/axb"], &["/a/b"]),
        ("/[0-9a]", DoubleStar, &["/5", "/a"], &["/b", "/", "/55"]),
        ("/[!0-9]", DoubleStar, &["/a"], &["/5"]),
        ("/[]-]", DoubleStar, &["/]", "/-"], &["/["]),
        (
            "/x.{png,{j,J}pg}",
            DoubleStar,
            &["/x.png", "/x.Jpg"],
            &["/x.gif"],
        ),
        ("/x{,.gz}", DoubleStar, &["/x", "/x.gz"], &["/x."]),
        (r"/\*\{", DoubleStar, &["/*{"], &["/a{", r"/\*\{"]),
        ("/[{,}]", DoubleStar, &["/{", "/,"], &["/a"]),
        ("/é*", DoubleStar, &["/é", "/éa"], &["/è"]),
        ("", Star, &[""], &["a"]),
    ] {
        for text in taken {
            assert!(matches(pattern, text, crosses), "{pattern} takes {text}");
        }
        for text in refused {
            assert!(!matches(pattern, text, crosses), "{pattern} refuses {text}");
        }
    }
}

#[test]
fn the_places_of_matching_patterns_ascend() {
    let mut globs = Globs::new();
    for pattern in ["/b", "/{a,*}", "/**", "/a"] {
        globs.push(pattern, Crosses::DoubleStar).unwrap();
    }
    assert_eq!(globs.matches("/a").collect::<Vec<_>>(), [1, 1, 2, 3]);
    assert_eq!(globs.matches("/b").next(), Some(0));
    assert_eq!(globs.matches("b").next(), None);
}

#[test]
fn patterns_that_make_no_sense_are_refused() {
    let many = "{a,b}".repeat(12);
    for (pattern, error) in [
        ("/{a", GlobError::UnclosedBrace),
        ("/{a,{b}", GlobError::UnclosedBrace),
        ("/a}", GlobError::UnopenedBrace),
        ("/[a", GlobError::UnclosedClass),
        ("/[]", GlobError::UnclosedClass),
        ("/{[}", GlobError::UnclosedClass),
        ("/[z-a]", GlobError::EmptyRange('z', 'a')),
        ("/[é]", GlobError::ClassBeyondAscii),
        (r"/\", GlobError::DanglingEscape),
        (&many, GlobError::Alternatives),
    ] {
        let refused = Globs::new().push(pattern, Crosses::DoubleStar);
        assert_eq!(refused, Err(error), "{pattern}");
    }
}

/// With backtracking, the time would grow with the cube of the length: hours.
#[test]
fn a_long_text_is_matched_in_time_proportional_to_its_length() {
    let text = "/b".repeat(50_000);
    assert!(!matches(
        "/**/a*b/**/a*b/**/a*b/**",
        &text,
        Crosses::DoubleStar
    ));
    let text = "b".repeat(100_000);
    assert!(!matches("*a*b*a*b*", &text, Crosses::Star));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn patterns_mean_the_same_as_in_globset(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..7),
        text in "[ab/.]{0,7}",
        is_path in any::<bool>(),
    ) {
        let pattern = if is_path {
            format!("/{}", parts.concat())
        } else {
            parts.concat()
        };
        let text = if is_path { format!("/{text}") } else { text };
        // `**` differs in names with slashes: here it matches any text.
        if !is_path && pattern.contains("**") {
            return Ok(());
        }
        let theirs = GlobBuilder::new(&pattern)
            .literal_separator(is_path)
            .empty_alternates(true)
            .build()
            .unwrap()
            .compile_matcher();
        let crosses = if is_path { Crosses::DoubleStar } else { Crosses::Star };
        let ours = matches(&pattern, &text, crosses);
        prop_assert_eq!(ours, theirs.is_match(&text), "{} and {:?}", pattern, text);
    }
}

/// Parts of random patterns. No braces that start with a slash or are empty, because `globset`
/// looks for `**` before it expands braces.
const PARTS: [&str; 15] = [
    "a", "b", "/", ".", "?", "*", "**/", "/**/", "/**", "[ab]", "[!a]", "[a-b]", "{a,b}",
    "{a*,b?}", r"\*",
];
