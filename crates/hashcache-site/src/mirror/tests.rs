//! Which paths lead where, and what is a resource of a mirror.

use super::*;

fn place(url: &str) -> Target {
    Target::parse_url(url).unwrap()
}

pub(super) fn pypi() -> Mirror {
    let files = vec![
        place("https://files.test"),
        place("http://more.test:81"),
        place("https://index.test/p"),
    ];
    Mirror::new("py", MirrorKind::Pypi, "https://index.test/simple", files).unwrap()
}

pub(super) fn npm() -> Mirror {
    Mirror::new("npm", MirrorKind::Npm, "http://registry.test/npm/", vec![]).unwrap()
}

pub(super) fn crates() -> Mirror {
    let files = vec![place("https://static.test")];
    Mirror::new("crates", MirrorKind::Crates, "https://index.test/", files).unwrap()
}

/// Links of `page` of a mirror, for a client that knows us as `http://box:3128`.
pub(super) fn links(mirror: &Mirror, page: &str) -> Links {
    let page = Target::parse_url(page).unwrap();
    Links::new(mirror, "http://box:3128", page)
}

fn apt() -> Mirror {
    Mirror::new(
        "apt",
        MirrorKind::Apt,
        "http://archive.test/debian/",
        vec![],
    )
    .unwrap()
}

/// Where a path leads, and whether the response has links.
fn led(path: &str) -> Option<(String, bool)> {
    let mirrors = Mirrors::new(&[pypi(), npm(), crates(), apt()]);
    match mirrors.resolve(path) {
        Some(MirrorLookup::To(_, _, route)) => Some((route.target.to_string(), route.links)),
        Some(MirrorLookup::Nowhere | MirrorLookup::Refused | MirrorLookup::NoMirror) | None => None,
    }
}

#[test]
fn paths_lead_below_the_base_byte_for_byte() {
    for (path, target, links) in [
        ("py/simple/", "https://index.test/simple/", true),
        (
            "py/simple/a%2fb/?x",
            "https://index.test/simple/a%2fb/?x",
            true,
        ),
        (
            "py/files/files.test/a/b.whl",
            "https://files.test/a/b.whl",
            false,
        ),
        (
            "py/files/index.test/p/c.whl.metadata",
            "https://index.test/p/c.whl.metadata",
            false,
        ),
        ("py/files/more.test%3A81/a", "http://more.test:81/a", false),
        ("npm/@a%2fb", "http://registry.test/npm/@a%2fb", true),
        ("npm/a/1.0.0", "http://registry.test/npm/a/1.0.0", true),
        (
            "npm/@a/b/-/b-1.tgz",
            "http://registry.test/npm/@a/b/-/b-1.tgz",
            false,
        ),
        (
            "npm/-/v1/search?text=a",
            "http://registry.test/npm/-/v1/search?text=a",
            false,
        ),
        ("npm/files/x/y", "http://registry.test/npm/files/x/y", true),
        ("npm", "http://registry.test/npm/", true),
        ("crates/config.json", "https://index.test/config.json", true),
        (
            "crates/se/rd/serde",
            "https://index.test/se/rd/serde",
            false,
        ),
        (
            "crates/files/static.test/a.crate",
            "https://static.test/a.crate",
            false,
        ),
        (
            "apt/dists/s/InRelease",
            "http://archive.test/debian/dists/s/InRelease",
            false,
        ),
    ] {
        let expected = Some((target.to_owned(), links));
        assert_eq!(led(&format!("/mirror/{path}")), expected, "{path}");
    }
}

#[test]
fn no_path_leads_to_what_is_not_configured() {
    for path in [
        "other/simple/",
        "",
        "py/",
        "py/packages/a.whl",
        "py/files/evil.test/a",
        "py/files/files.test",
        "py/files//a",
        "py/files/files.test:443@evil.test/a",
        "py/files/files.test%2fevil/a",
        "crates/files/evil.test/a",
        "apt/../secret",
        "apt/%2e%2E/secret",
        "apt/a/%2e./secret",
        "apt/a%2f..%2f..%2fsecret",
        "apt/a\\..\\..\\secret",
        "py/simple/..",
        // The registry's host has more than the registry.
        "py/files/index.test/service/rest/v1/status",
        "py/files/index.test/",
        "py/files/index.test/private",
        "py/files/index.test/p",
        "py/files/index.test/p/%252e%252e/secret",
        "npm/..;/secret",
        "npm/a/..%00/secret",
        "py/files/files.test/../x",
    ] {
        assert_eq!(led(&format!("/mirror/{path}")), None, "{path}");
    }
    // A dot that is part of a name, or behind the question mark, is no step.
    for path in ["apt/a..b/.c", "apt/...", "apt/a?../x", "apt/./Packages"] {
        assert!(led(&format!("/mirror/{path}")).is_some(), "{path}");
    }
    assert!(Mirrors::new(&[apt()]).resolve("/other").is_none());
}

#[test]
fn links_to_resources_of_the_mirror_become_ours_and_no_others() {
    let page = "https://index.test/simple/foo/";
    for (link, renamed) in [
        (
            "../../p/f.whl#sha256=ab",
            Some("py/files/index.test/p/f.whl#sha256=ab"),
        ),
        (
            "https://files.test/p/f.whl",
            Some("py/files/files.test/p/f.whl"),
        ),
        (
            "HTTPS://FILES.test:443/%2f",
            Some("py/files/files.test/%2f"),
        ),
        ("http://more.test:81/f", Some("py/files/more.test:81/f")),
        ("//files.test/f", Some("py/files/files.test/f")),
        ("/simple/bar/", Some("py/simple/bar/")),
        ("f.whl", Some("py/simple/foo/f.whl")),
        // Another scheme or port is another host.
        ("http://files.test/f", None),
        ("https://more.test:81/f", None),
        ("https://evil.test/f", None),
        ("mailto:a@files.test", None),
        ("#top", None),
        ("", None),
        ("https://u:p@files.test/f", None),
    ] {
        let renamed = renamed.map(|place| format!("http://box:3128/mirror/{place}"));
        assert_eq!(links(&pypi(), page).rename(link), renamed, "{link}");
    }
    // Such a link would be relative to the mirror.
    for (link, target) in [
        ("//evil.test/f#x", "https://evil.test/f#x"),
        ("../../other/f.whl", "https://index.test/other/f.whl"),
        ("/service/rest/", "https://index.test/service/rest/"),
    ] {
        let foreign = links(&pypi(), page).rename(link);
        assert_eq!(foreign.as_deref(), Some(target));
    }
}

#[test]
fn what_a_link_becomes_leads_back_to_where_it_led() {
    for (mirror, page, link) in [
        (
            pypi(),
            "https://index.test/simple/a/",
            "https://files.test/x/y.whl",
        ),
        (
            pypi(),
            "https://index.test/simple/a/",
            "http://more.test:81/y",
        ),
        (
            pypi(),
            "https://index.test/simple/a/",
            "https://index.test/simple/files/x/",
        ),
        (
            npm(),
            "http://registry.test/npm/a",
            "http://registry.test/npm/a/-/a-1.tgz",
        ),
        (
            crates(),
            "https://index.test/config.json",
            "https://static.test/crates",
        ),
        (
            crates(),
            "https://index.test/config.json",
            "https://index.test/files/x/y",
        ),
    ] {
        let renamed = links(&mirror, page).rename(link).unwrap();
        let path = renamed.strip_prefix("http://box:3128").unwrap();
        assert_eq!(led(path).unwrap().0, link, "{renamed}");
    }
}

#[test]
fn a_space_belongs_to_a_name_wherever_it_stands() {
    let space = |mirrors: &[Mirror]| match Mirrors::new(mirrors).resolve("/mirror/npm/a") {
        Some(MirrorLookup::To(_, space, _)) => space,
        _ => panic!("it is there"),
    };
    assert_eq!(space(&[npm()]), space(&[apt(), npm(), pypi()]));
    // It is part of the names of what is stored.
    assert_eq!(space(&[npm()]), Space::Mirror(name_number("npm")));
    assert_eq!(name_number("npm"), 0x75f0);
    let many: Vec<Mirror> = (0..1000)
        .map(|n| Mirror::new(&format!("m{n}"), MirrorKind::Apt, "http://a.test", vec![]).unwrap())
        .collect();
    let numbers: std::collections::BTreeSet<u16> =
        Mirrors::new(&many).all.iter().map(|(_, n)| *n).collect();
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn what_decides_about_links_is_in_the_fingerprint() {
    let print = |mirror: &Mirror, base| Links::new(mirror, base, mirror.base.clone()).fingerprint();
    let fewer = Mirror::new("py", MirrorKind::Pypi, "https://index.test/simple", vec![]).unwrap();
    assert_eq!(print(&pypi(), "http://a"), print(&pypi(), "http://a"));
    assert_ne!(print(&pypi(), "http://a"), print(&pypi(), "http://b"));
    assert_ne!(print(&pypi(), "http://a"), print(&fewer, "http://a"));
}
