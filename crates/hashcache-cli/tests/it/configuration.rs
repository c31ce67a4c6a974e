//! `config check` and `config show`, through real files and variables.

use serde_json::{Value, json};

use crate::Home;

#[test]
fn a_file_that_is_well_is_said_to_be() {
    let home = Home::new();
    home.file(
        "a.toml",
        "memory = \"64MiB\"\n[limits]\nhead_time = \"3s\"\n",
    );
    let outcome = home.hashcache(&["config", "check", "a.toml"], &[]);
    assert_eq!(
        (
            outcome.status,
            outcome.stdout.as_str(),
            outcome.stderr.as_str()
        ),
        (Some(0), "a.toml: ok\n", "")
    );
}

#[test]
fn a_file_that_is_wrong_is_told_line_by_line_with_status_1() {
    let home = Home::new();
    home.file("a.toml", "# c\nmemroy = \"1MiB\"\ncache_size = \"big\"\n");
    let outcome = home.hashcache(&["config", "check", "a.toml"], &[]);
    assert_eq!(outcome.status, Some(1));
    assert_eq!(outcome.stdout, "");
    assert_eq!(
        outcome.stderr,
        "hashcache: a.toml:2: unknown key `memroy`\n\
         hint: did you mean `memory`?\n\
         hashcache: a.toml:3: cache_size: `big` is not a size\n\
         hint: write a size as 64MiB, 20GiB, 1GB or a number of bytes\n"
    );
}

#[test]
fn each_wrong_element_of_a_list_is_named() {
    let home = Home::new();
    home.file(
        "a.toml",
        "listen = [\"127.0.0.1:99999\", \"127.0.0.1:0\", \"here\"]\n",
    );
    let outcome = home.hashcache(&["config", "check", "a.toml"], &[]);
    assert_eq!(outcome.status, Some(1));
    for word in ["127.0.0.1:99999", "here"] {
        let named = format!("a.toml:1: listen: `{word}`");
        assert_eq!(outcome.stderr.matches(&named).count(), 1, "{outcome:?}");
    }
    assert!(!outcome.stderr.contains("`127.0.0.1:0`"), "{outcome:?}");
}

/// Settings that `proxy` refuses at its start, each with a part of the error.
const REFUSED: [(&str, &str); 8] = [
    ("memory = \"1MiB\"", "1MiB"),
    ("cache_size = \"1MiB\"", "too small for a cache"),
    ("access_log = \"none/such/log\"", "none/such/log"),
    ("admin_token_file = \"none.token\"", "none.token"),
    ("listen = [\"192.0.2.1:0\"]", "192.0.2.1:0"),
    ("upstream_ca = [\"none.pem\"]", "none.pem"),
    ("cache = \"none/such/cache.img\"", "none/such"),
    (
        "[intercept]\nca = \"none\"\nhosts = [\"a.example\"]",
        "none",
    ),
];

#[test]
fn what_the_start_refuses_is_known_before_and_no_file_is_left() {
    for (setting, part) in REFUSED {
        let home = Home::new();
        // Without a `cache` of its own, a setting would meet the file of a proxy on this machine.
        let cache = if setting.starts_with("cache =") {
            ""
        } else {
            "cache = \"c.img\"\n"
        };
        home.file("a.toml", &format!("{cache}{setting}"));
        let before = names(home.path());
        let check = home.hashcache(&["config", "check", "a.toml"], &[]);
        assert_eq!(check.status, Some(1), "{setting}: {check:?}");
        assert!(check.stderr.contains(part), "{setting}: {check:?}");
        let start = home.hashcache(&["proxy", "--config", "a.toml"], &[]);
        assert_eq!(start.status, Some(2), "{setting}: {start:?}");
        assert_eq!(start.stderr, check.stderr, "{setting}");
        assert_eq!(names(home.path()), before, "{setting}");
    }
}

#[test]
fn a_start_whose_address_is_in_use_leaves_no_file() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    let home = Home::new();
    let before = names(home.path());
    let flags = ["proxy", "--cache=c.img", "--cache-size=32MiB", &listen];
    let start = home.hashcache(&flags, &[]);
    assert_eq!(start.status, Some(2), "{start:?}");
    assert!(start.stderr.contains("another program"), "{start:?}");
    assert_eq!(names(home.path()), before);
}

/// The names of the files in `directory`.
fn names(directory: &std::path::Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).expect("the directory can be read");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_status_2() {
    let outcome = Home::new().hashcache(&["config", "check", "none.toml"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome
            .stderr
            .starts_with("hashcache: cannot read configuration file none.toml: "),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
}

#[test]
fn a_file_that_is_not_text_is_told_with_status_2() {
    let home = Home::new();
    std::fs::write(home.path().join("a.toml"), [0xff, 0xfe, 0x00]).unwrap();
    let outcome = home.hashcache(&["config", "check", "a.toml"], &[]);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
}

#[test]
fn settings_that_are_wrong_stop_a_command_that_needs_them_with_status_2() {
    let home = Home::new();
    let outcome = home.hashcache(&["config", "show", "--memory", "much"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome
            .stderr
            .starts_with("hashcache: --memory: `much` is not a size\n"),
        "{outcome:?}"
    );
}

#[test]
fn a_variable_that_is_no_setting_is_refused_with_the_one_meant() {
    let outcome = Home::new().hashcache(&["config", "show"], &[("HASHCACHE_CACHE_SIZ", "1GiB")]);
    assert_eq!(outcome.status, Some(2));
    assert_eq!(
        outcome.stderr,
        "hashcache: unknown variable `HASHCACHE_CACHE_SIZ`\n\
         hint: did you mean `HASHCACHE_CACHE_SIZE`?\n"
    );
}

#[test]
fn json_tells_each_value_and_where_it_is_from() {
    let home = Home::new();
    home.file("a.toml", "\nmemory = \"1MiB\"\n[limits]\nclients = 9\n");
    let outcome = home.hashcache(
        &[
            "config",
            "show",
            "--json",
            "--config",
            "a.toml",
            "--listen",
            "127.0.0.1:0",
        ],
        &[
            ("HASHCACHE_NAME", "school"),
            ("HASHCACHE_LIMITS__HEAD_TIME", "3s"),
        ],
    );
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    let shown: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let file = |line: u32| json!({ "kind": "file", "path": "a.toml", "line": line });
    assert_eq!(
        shown["memory"],
        json!({ "value": "1MiB", "source": file(2) })
    );
    assert_eq!(
        shown["limits"]["clients"],
        json!({ "value": 9, "source": file(4) })
    );
    let variable = |name: &str| json!({ "kind": "variable", "name": name });
    assert_eq!(
        shown["name"],
        json!({ "value": "school", "source": variable("HASHCACHE_NAME") })
    );
    assert_eq!(
        shown["limits"]["head_time"],
        json!({ "value": "3s", "source": variable("HASHCACHE_LIMITS__HEAD_TIME") })
    );
    assert_eq!(
        shown["listen"],
        json!({ "value": ["127.0.0.1:0"], "source": { "kind": "flag", "name": "--listen" } })
    );
    assert_eq!(
        shown["accelerate"],
        json!({ "value": null, "source": { "kind": "default" } })
    );
}

#[test]
fn what_is_shown_is_itself_a_file_with_the_same_settings() {
    let home = Home::new();
    let rules = "[[rule]]\npath = \"/a/**\"\nlifetime = \"1d\"\n\n[[rule]]\nhost = \"b.test\"\n\
                 path = [\"/b\", \"/c\"]\nheuristic = { percent = 5, max = \"1h\" }\n";
    home.file("rules.toml", rules);
    let flags = [
        "--config=rules.toml",
        "--memory=3MiB",
        "--allow-client=192.0.2.0/24",
        "--log-strip-query",
        "--policy=set",
    ];
    let values = |outcome: &str| -> Vec<String> {
        let settings = outcome.lines().filter(|line| !line.starts_with('#'));
        settings
            .map(|line| line.split(" # ").next().unwrap().trim().to_owned())
            .collect()
    };
    let first = home.hashcache(&[&["config", "show"], &flags[..]].concat(), &[]);
    assert_eq!((first.status, first.stderr.as_str()), (Some(0), ""));
    home.file("shown.toml", &first.stdout);
    let second = home.hashcache(&["config", "show", "--config", "shown.toml"], &[]);
    assert_eq!((second.status, second.stderr.as_str()), (Some(0), ""));
    assert_eq!(values(&second.stdout), values(&first.stdout));
    assert!(values(&first.stdout).contains(&"memory = \"3MiB\"".to_owned()));
    assert_eq!(first.stdout.matches("[[rule]]").count(), 2);
    let json = home.hashcache(&["config", "show", "--json", "--config=shown.toml"], &[]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["rule"][0]["lifetime"], "1d");
}

#[test]
fn the_files_that_the_program_prints_are_up_to_date() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, argument) in [
        ("docs/operate/reference.md", "reference"),
        ("packaging/hashcache.toml", "example"),
    ] {
        let kept = std::fs::read_to_string(root.join(path)).expect("a file of this repository");
        // The page ends with a mark for `cargo xtask tidy`.
        let kept = kept
            .split("\n<!-- made of sources")
            .next()
            .unwrap_or_default();
        let printed = Home::new().hashcache(&["config", argument], &[]);
        assert!(printed.stdout == kept, "run `cargo xtask docs`: {path}");
    }
}
