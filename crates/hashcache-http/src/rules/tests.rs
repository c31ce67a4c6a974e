//! Tests for freshness rules, shipped and written by operators.

use super::*;

fn find(rules: &Rules, url: &str) -> Option<RuleAction> {
    let matched = rules.find(&Target::parse_url(url).unwrap());
    matched.map(|matched| matched.action)
}

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn the_shipped_list_knows_names_made_from_content() {
    let rules = Rules::shipped();
    for path in [
        "/debian/pool/main/h/hello/hello_2.10-3_amd64.deb".to_owned(),
        "/pool/universe/h/hello/hello_2.10.orig.tar.gz".to_owned(),
        "/debian/pool/main/h/hello/hello_2.10-3.dsc".to_owned(),
        format!("/debian/dists/stable/main/binary-amd64/by-hash/SHA256/{DIGEST}"),
        format!("/packages/ab/cd/{}/x-1.0-py3-none-any.whl", &DIGEST[..60]),
        format!("/packages/ab/cd/{}/x-1.0.tar.gz", &DIGEST[..60]),
        "/left-pad/-/left-pad-1.3.0.tgz".to_owned(),
        "/@scope/name/-/name-1.0.0.tgz".to_owned(),
        "/crates/serde/serde-1.0.0.crate".to_owned(),
        "/crates/serde/1.0.0-rc.1.crate".to_owned(),
        format!("/repo.git/objects/ab/{}", &DIGEST[..38]),
        format!("/a/b/objects/pack/pack-{}.pack", &DIGEST[..40]),
        format!("/a/b/objects/pack/pack-{DIGEST}.idx"),
        format!("/v2/library/debian/blobs/sha256:{DIGEST}"),
    ] {
        let url = format!("http://h{path}");
        assert_eq!(find(&rules, &url), Some(RuleAction::Immutable), "{path}");
    }
}

#[test]
fn the_shipped_list_leaves_names_that_may_change() {
    let rules = Rules::shipped();
    for path in [
        "/debian/dists/stable/InRelease".to_owned(),
        "/debian/pool/main/h/hello/".to_owned(),
        "/debian/dists/stable/by-hash/SHA256/latest".to_owned(),
        "/simple/x/".to_owned(),
        "/packages/ab/cd/latest/x-1.0.tar.gz".to_owned(),
        "/left-pad".to_owned(),
        "/download/left-pad.tgz".to_owned(),
        "/account/x.crate".to_owned(),
        "/account/x-latest.crate".to_owned(),
        "/account/x-1.crate".to_owned(),
        "/x/-/x.tgz".to_owned(),
        "/x/-/x-latest.tgz".to_owned(),
        "/debian/pool/main/h/hello/hello.deb".to_owned(),
        "/debian/pool/main/h/hello/hello_latest_amd64.deb".to_owned(),
        "/debian/pool/main/h/hello/hello.tar.gz".to_owned(),
        "/repo.git/objects/info/packs".to_owned(),
        "/repo.git/info/refs".to_owned(),
        "/v2/library/debian/manifests/latest".to_owned(),
        format!("/v2/library/debian/manifests/sha256:{DIGEST}x"),
        format!("/v2/library/debian/blobs/sha256:{}", &DIGEST[1..]),
        "/".to_owned(),
    ] {
        let found = find(&rules, &format!("http://h{path}"));
        assert_ne!(found, Some(RuleAction::Immutable), "{path}");
    }
}

#[test]
fn the_shipped_list_knows_names_for_which_no_lifetime_is_guessed() {
    let rules = Rules::shipped();
    for path in [
        "/org/x/maven-metadata.xml",
        "/org/x/maven-metadata.xml.sha1",
        "/org/x/1.0-SNAPSHOT/a-1.0-SNAPSHOT.jar",
        "/debian/dists/stable/InRelease",
        "/debian/dists/stable/main/binary-amd64/Packages.gz",
        "/x/repodata/repomd.xml",
        "/x/APKINDEX.tar.gz",
        "/x/core.db",
        "/x/index.yaml",
        "/x/SHA256SUMS",
        "/x/latest-linux.yml",
        "/x/setup-latest.exe",
        "/x/x_current_amd64.deb",
        "/v2/library/debian/manifests/latest",
        "/lab.test/m/@v/list",
    ] {
        let found = find(&rules, &format!("http://h{path}"));
        let Some(RuleAction::Heuristic(heuristic)) = found else {
            panic!("{path}: {found:?}");
        };
        assert_eq!((heuristic.percent, heuristic.max), (0, Seconds::ZERO));
    }
    for path in ["/logo.png", "/app/main.js", "/download/x-1.0.zip", "/"] {
        assert_eq!(find(&rules, &format!("http://h{path}")), None, "{path}");
    }
}

#[test]
fn the_first_rule_that_matches_host_and_path_decides() {
    let rules = Rules::from_toml(
        r#"
        [[rule]]
        host = ["a.example", "*.B.example"]
        path = "/x/*"
        lifetime = "5m"
        [[rule]]
        path = ["/x/**", "/y"]
        heuristic = { percent = 20 }
        "#,
    )
    .unwrap();
    let five_minutes = Some(RuleAction::Lifetime(Seconds::new(300)));
    let fifth = Some(RuleAction::Heuristic(Heuristic {
        percent: 20,
        max: Seconds::DAY,
    }));
    assert_eq!(find(&rules, "http://a.example/x/1?q"), five_minutes);
    assert_eq!(find(&rules, "http://c.d.b.example/x/1"), five_minutes);
    assert_eq!(find(&rules, "http://a.example/x/1/2"), fifth);
    assert_eq!(find(&rules, "http://127.0.0.1/y"), fifth);
    assert_eq!(find(&rules, "http://a.example/z"), None);
}

#[test]
fn operator_rules_stand_before_the_shipped_ones() {
    let own = RuleSpec::from_toml("[[rule]]\npath = '/pool/**'\nlifetime = '1h'").unwrap();
    let rules = Rules::before_shipped(&own).unwrap();
    let hour = Some(RuleAction::Lifetime(Seconds::new(3600)));
    assert_eq!(find(&rules, "http://h/pool/a_1.deb"), hour);
    assert_eq!(
        find(&rules, "http://h/x/pool/a_1.deb"),
        Some(RuleAction::Immutable)
    );
    assert_eq!(find(&Rules::none(), "http://h/x/pool/a_1.deb"), None);
    let author = |url: &str| {
        let matched = rules.find(&Target::parse_url(url).unwrap());
        matched.map(|matched| matched.author)
    };
    assert_eq!(author("http://h/pool/a_1.deb"), Some(RuleAuthor::Operator));
    assert_eq!(author("http://h/x/pool/a_1.deb"), Some(RuleAuthor::Shipped));
}

#[test]
fn spans_have_units() {
    for (text, seconds) in [
        ("90s", 90),
        ("5m", 300),
        ("12h", 43_200),
        ("30d", 2_592_000),
    ] {
        assert_eq!(parse_span(text), Some(Seconds::new(seconds)), "{text}");
    }
    assert_eq!(parse_span("99999999999999999999w"), Some(Seconds::MAX));
    for text in ["", "5", "m", "-5m", "1.5h", "5 m", "5M"] {
        assert_eq!(parse_span(text), None, "{text}");
    }
}

#[test]
fn bad_rules_say_what_is_wrong() {
    for (text, wanted) in [
        ("[[rule]]\npath = '/x'", "exactly one of"),
        (
            "[[rule]]\npath = '/x'\nimmutable = true\nlifetime = '1d'",
            "exactly one of",
        ),
        (
            "[[rule]]\npath = 'x'\nimmutable = true",
            "does not begin with /",
        ),
        ("[[rule]]\npath = '/[x'\nimmutable = true", "pattern /[x"),
        (
            "[[rule]]\npath = '/<hex:0>'\nimmutable = true",
            "not <hex:N>",
        ),
        (
            "[[rule]]\npath = '/<dec:3>'\nimmutable = true",
            "not <hex:N>",
        ),
        ("[[rule]]\npath = []\nimmutable = true", "cannot read"),
        ("[[rule]]\npath = '/x'\nlifetim = '1d'", "cannot read"),
        ("[[rules]]\npath = '/x'", "cannot read"),
    ] {
        let error = Rules::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

#[test]
fn where_only_immutable_counts_the_same_first_rule_is_found() {
    let text = "[[rule]]\npath = \"/a/*\"\nlifetime = \"1h\"\n\
                [[rule]]\npath = \"/**/*.deb\"\nimmutable = true\n\
                [[rule]]\npath = \"/**/*latest*\"\nlifetime = \"1m\"\n";
    let rules = Rules::new(&RuleSpec::from_toml(text).unwrap()).unwrap();
    for (path, is_immutable) in [
        ("/b/x.deb", true),
        ("/a/x.deb", false),
        ("/b/latest.txt", false),
        ("/b/latest.deb", true),
        ("/b/c", false),
    ] {
        let target = Target::parse_url(&format!("http://h{path}")).unwrap();
        let is =
            |found: Option<Matched>| found.is_some_and(|rule| rule.action == RuleAction::Immutable);
        assert_eq!(is(rules.find_immutable(&target)), is_immutable, "{path}");
        assert_eq!(is(rules.find(&target)), is_immutable, "{path}");
    }
    assert!(
        Rules::none()
            .find_immutable(&Target::parse_url("http://h/x").unwrap())
            .is_none()
    );
}
