//! Tests of the settings: which source wins, what is known of each value, and which errors are
//! printed.

use std::fs;

use super::environment::tests::environment;
use hashcache_proxy::Site;

use super::keys::find_flag;
use super::*;

const HOME: (&str, &str) = ("HOME", "/home-of-tests");

/// A flag as `args` would give it.
fn flag(name: &str, word: &str) -> Given {
    Given {
        found: find_flag(name).unwrap(),
        written: Written::One(word.to_owned()),
        source: Source::Flag(format!("--{name}")),
    }
}

fn assembled(
    file: &str,
    variables: &[(&str, &str)],
    flags: Vec<Given>,
) -> Result<Effective, Faults> {
    let variables: Vec<(&str, &str)> = [HOME].iter().chain(variables).copied().collect();
    assemble(
        Some(Path::new("a.toml")),
        file,
        flags,
        &environment(&variables),
    )
}

/// The value of key `name` and where it is from, as they are shown.
fn row(effective: &Effective, name: &str) -> (Shown, String) {
    let (_, shown, source) = effective
        .shown()
        .find(|(key, ..)| key.name == name)
        .unwrap();
    (shown, source.to_string())
}

fn text(text: &str) -> Shown {
    Shown::Text(text.to_owned())
}

fn whats(outcome: Result<Effective, Faults>) -> Vec<String> {
    outcome
        .unwrap_err()
        .0
        .into_iter()
        .map(|fault| fault.what)
        .collect()
}

#[test]
fn a_flag_wins_over_a_variable_and_that_over_the_file() {
    let file = "\nmemory = \"1MiB\"";
    let variable = ("HASHCACHE_MEMORY", "2MiB");
    let memory = |variables: &[(&str, &str)], flags, file| {
        row(&assembled(file, variables, flags).unwrap(), "memory")
    };
    assert_eq!(memory(&[], vec![], ""), (text("64MiB"), "default".into()));
    assert_eq!(memory(&[], vec![], file), (text("1MiB"), "a.toml:2".into()));
    assert_eq!(
        memory(&[variable], vec![], file),
        (text("2MiB"), "HASHCACHE_MEMORY".into())
    );
    let flags = vec![flag("memory", "3MiB")];
    assert_eq!(
        memory(&[variable], flags, file),
        (text("3MiB"), "--memory".into())
    );
}

#[test]
fn a_list_replaces_the_list_of_a_weaker_source() {
    let file = "listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]";
    let effective = assembled(file, &[], vec![flag("listen", "127.0.0.1:3")]).unwrap();
    assert_eq!(
        effective.values.startup.listen,
        ["127.0.0.1:3".parse().unwrap()]
    );
}

#[test]
fn the_defaults_are_those_the_help_promises() {
    let effective = assembled("", &[], vec![]).unwrap();
    let shown = |name| row(&effective, name).0;
    assert_eq!(shown("listen"), Shown::List(vec!["127.0.0.1:3128".into()]));
    assert_eq!(shown("admin"), text("127.0.0.1:3180"));
    assert_eq!(
        shown("cache"),
        Shown::List(vec!["/home-of-tests/.cache/hashcache/cache.img".into()])
    );
    assert_eq!(shown("cache_size"), text("1GiB"));
    assert_eq!(shown("policy"), text("log"));
    assert_eq!(shown("rows"), text("two"));
    assert_eq!(shown("grouped"), Shown::Truth(false));
    assert_eq!(shown("group_by"), text("page"));
    assert_eq!(shown("placement"), text("name"));
    assert_eq!(shown("readmission"), Shown::Truth(false));
    assert_eq!(shown("io"), text("auto"));
    assert_eq!(shown("access_log"), text("none"));
    assert_eq!(shown("log_format"), text("squid"));
    assert_eq!(shown("held_share"), Shown::Nothing);
    assert_eq!(shown("object_size"), text("8KiB"));
    assert_eq!(shown("block"), text("8KiB"));
    assert_eq!(shown("allow_connect_port"), Shown::List(vec!["443".into()]));
    assert_eq!(shown("max_object_size"), text("256MiB"));
    assert_eq!(shown("limits.head_time"), text("10s"));
    assert_eq!(shown("workers"), Shown::Number(4));
    assert_eq!(shown("accelerate"), Shown::Nothing);
    assert_eq!(shown("set_cookie"), text("protect"));
    assert_eq!(shown("collapse_wait"), text("satellite"));
}

#[test]
fn order_in_a_file_never_matters() {
    let lines = [
        "max_object_size = \"600MiB\"",
        "cache_size = \"700MiB\"",
        "name = \"a\"",
    ];
    let mut orders = vec![];
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1]] {
        let file: Vec<&str> = order.iter().map(|&at| lines[at]).collect();
        let effective = assembled(&file.join("\n"), &[], vec![]).unwrap();
        orders.push(
            effective
                .shown()
                .map(|(_, shown, _)| shown)
                .collect::<Vec<_>>(),
        );
    }
    assert!(orders.iter().all(|order| *order == orders[0]));
}

#[test]
fn the_largest_object_follows_the_size_of_the_cache_until_it_is_set() {
    let effective = assembled("cache_size = \"8GiB\"", &[], vec![]).unwrap();
    assert_eq!(
        effective.values.for_proxy().reloadable.max_object_size,
        2 << 30
    );
    let effective = assembled(
        "cache_size = \"8GiB\"\nmax_object_size = \"1MiB\"",
        &[],
        vec![],
    )
    .unwrap();
    assert_eq!(
        effective.values.for_proxy().reloadable.max_object_size,
        1 << 20
    );
}

#[test]
fn all_faults_of_all_sources_are_told_at_once() {
    let file = "memroy = 1\ncache_size = \"big\"\n";
    let outcome = assembled(
        file,
        &[("HASHCACHE_POLICY", "lru")],
        vec![flag("admin", "everywhere")],
    );
    assert_eq!(
        whats(outcome),
        [
            "a.toml:1: unknown key `memroy`",
            "a.toml:2: cache_size: `big` is not a size",
            "HASHCACHE_POLICY: `lru` is not one of log, log-lru, set-mem, set-mem-lru, set, basic",
            "--admin: `everywhere` is not an IP address with a port",
        ]
    );
}

#[test]
fn one_source_cannot_say_a_thing_twice() {
    let outcome = assembled(
        "default_rules = true\nno_default_rules = true\n",
        &[],
        vec![],
    );
    assert_eq!(whats(outcome), ["a.toml:2: `default_rules` is given twice"]);
}

#[test]
fn the_rules_that_ship_are_turned_off_under_either_name() {
    let is_on = |file: &str, variables: &[(&str, &str)], flags| {
        assembled(file, variables, flags)
            .unwrap()
            .values
            .default_rules
    };
    assert!(is_on("", &[], vec![]));
    assert!(!is_on("default_rules = false", &[], vec![]));
    assert!(!is_on("no_default_rules = true", &[], vec![]));
    assert!(!is_on("", &[("HASHCACHE_NO_DEFAULT_RULES", "1")], vec![]));
    assert!(!is_on("", &[], vec![flag("no-default-rules", "true")]));
    assert!(is_on(
        "default_rules = false",
        &[("HASHCACHE_DEFAULT_RULES", "true")],
        vec![]
    ));
}

#[test]
fn flags_and_keys_may_be_written_with_either_dash() {
    let effective = assembled("cache-size = \"2GiB\"", &[], vec![]).unwrap();
    assert_eq!(effective.values.engine.cache_size, 2 << 30);
}

#[test]
fn a_whole_number_of_bytes_needs_no_quotes() {
    let effective = assembled("memory = 1_048_576\n[limits]\nclients = 7", &[], vec![]).unwrap();
    assert_eq!(effective.values.engine.memory, 1 << 20);
    assert_eq!(effective.values.startup.limits.clients, 7);
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (file, what) in [
        (
            "listen = []",
            "a.toml:1: `listen` is empty: clients could not connect",
        ),
        (
            "listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]",
            "a.toml:1: 127.0.0.1:1 is in the list twice",
        ),
        (
            "accelerate = \"http://a\"\ntls_cert = \"c\"",
            "a.toml:2: `tls_cert` has 1 files and `tls_key` has 0",
        ),
        (
            "tls_cert = \"c\"\ntls_key = \"k\"",
            "a.toml:1: `tls_cert` needs `accelerate`, `[[site]]` or an https:// address",
        ),
        (
            "listen = \"https://127.0.0.1:1\"",
            "a.toml:1: https://127.0.0.1:1 needs a certificate for TLS",
        ),
        (
            "listen = [\"127.0.0.1:1\", \"h2c://127.0.0.1:1\"]",
            "a.toml:1: h2c://127.0.0.1:1 is in the list twice",
        ),
        (
            "accelerate = \"http://a\"\nlisten = \"tproxy://[::]:1\"",
            "a.toml:2: tproxy://[::]:1 works only in a forward proxy, not in front of a site",
        ),
        ("cache = []", "a.toml:1: `cache` is empty"),
        (
            "cache = [\"/a\", \"/b\", \"/a\"]",
            "a.toml:1: `cache` has /a twice",
        ),
        (
            "listen = \"127.0.0.1:3180\"",
            "`listen` and `admin` both use 127.0.0.1:3180",
        ),
        (
            "max_object_size = \"2GiB\"",
            "a.toml:1: `max_object_size` is larger than `cache_size`",
        ),
    ] {
        assert_eq!(whats(assembled(file, &[], vec![])), [what]);
    }
}

#[test]
fn ports_that_the_system_chooses_may_be_listed_twice() {
    let file = "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"";
    assert!(assembled(file, &[], vec![]).is_ok());
}

#[test]
fn values_out_of_their_range_are_refused_where_they_stand() {
    for line in [
        "workers = 0",
        "workers = 100000",
        "memory = 0",
        "memory = -1",
        "memory = 1.5",
        "memory = [\"1MiB\", \"2MiB\"]",
        "name = \"two words\"",
        "name = \"\"",
        "listen = \"3128\"",
        "listen = \"localhost:3128\"",
        "allow_client = [\"10.0.0.1/8\"]",
        "allow_client = \"everyone\"",
        "proxy_protocol_from = \"everyone\"",
        "allow_destination = \"school.example\"",
        "allow_destination = \"school.example@dns\"",
        "listen = \"redirect://3129\"",
        "allow_connect_port = [0]",
        "allow_connect_port = [\"99999\"]",
        "accelerate = \"ftp://x\"",
        "listen = \"ftp://127.0.0.1:1\"",
        "listen = \"https://3128\"",
        "accelerate = \"x:80\"",
        "accelerate = \"http://x/path\"",
        "access_log = \"\"",
        "access_log = \" \"",
        "access_log = false",
        "access_log = true",
        "access_log = 1",
        "access_log = \"off\"",
        "access_log = \"Yes\"",
        "access_log = \"0\"",
        "access_log = \"1.5\"",
        "access_log = \"stdout\"",
        "access_log = \"syslog\"",
        "access_log = \"syslog:daemon\"",
        "access_log = \"daemon:/var/log/access.log\"",
        "access_log = \"udp://192.0.2.1:514\"",
        "access_log = \"combined\"",
        "log_format = \"apache\"",
        "log_strip_query = \"maybe\"",
        "log_anonymize = \"mostly\"",
        "held_share = 0",
        "held_share = 101",
        "held_share = \"half\"",
        "object_size = \"100\"",
        "object_size = \"8GiB\"",
        "block = \"1KiB\"",
        "block = \"3KiB\"",
        "policy = \"Log\"",
        "rows = \"three\"",
        "grouped = \"perhaps\"",
        "group_by = \"client\"",
        "placement = \"page\"",
        "memory = 1979-05-27",
        "[limits]\nhead_time = 10",
        "[limits]\nhead_time = \"0s\"",
        "[limits]\nclients = 0",
    ] {
        let last_line = line.lines().count();
        let whats = whats(assembled(line, &[], vec![]));
        assert_eq!(whats.len(), 1, "{line}: {whats:?}");
        assert!(
            whats[0].starts_with(&format!("a.toml:{last_line}: ")),
            "{line}: {whats:?}"
        );
    }
}

#[test]
fn without_a_home_the_cache_needs_a_place() {
    let outcome = assemble(None, "", vec![], &environment(&[]));
    let faults = outcome.unwrap_err().0;
    assert_eq!(
        faults[0].hint.as_deref(),
        Some("give a file or a block device with `--cache PATH`")
    );
    let flags = vec![flag("cache", "/c.img")];
    assert!(assemble(None, "", flags, &environment(&[])).is_ok());
}

#[test]
fn a_named_file_that_is_missing_is_an_error_and_a_usual_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().to_str().unwrap();
    let environment = environment(&[("HOME", home)]);
    assert!(
        load(
            Some(&directory.path().join("none.toml")),
            vec![],
            &environment
        )
        .is_err()
    );

    let usual = directory.path().join(".config/hashcache/hashcache.toml");
    fs::create_dir_all(usual.parent().unwrap()).unwrap();
    fs::write(&usual, "name = \"usual\"").unwrap();
    let effective = load(None, vec![], &environment).unwrap();
    assert_eq!(effective.values.startup.name, "usual");
    assert_eq!(effective.file, Some(usual));
}

#[test]
fn a_variable_names_the_file_unless_a_flag_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("v.toml"), "name = \"variable\"").unwrap();
    fs::write(path("f.toml"), "name = \"flag\"").unwrap();
    let variable = path("v.toml");
    let environment = environment(&[HOME, ("HASHCACHE_CONFIG", variable.to_str().unwrap())]);
    assert_eq!(
        load(None, vec![], &environment)
            .unwrap()
            .values
            .startup
            .name,
        "variable"
    );
    assert_eq!(
        load(Some(&path("f.toml")), vec![], &environment)
            .unwrap()
            .values
            .startup
            .name,
        "flag"
    );
}

#[test]
fn hosts_are_intercepted_by_an_authority_and_on_a_forward_proxy_alone() {
    let fault = |file: &str| whats(assembled(file, &[], vec![])).join("; ");
    for (file, told) in [
        (
            "[intercept]\nhosts = [\"a.test\"]",
            "needs a certificate authority",
        ),
        (
            "[intercept]\nlists = [\"cacheable\"]",
            "needs a certificate authority",
        ),
        (
            "accelerate = \"http://a\"\n[intercept]\nca = \"c\"",
            "works only in a forward proxy",
        ),
        (
            "[intercept]\nca = \"c\"\nhosts = [\"*.org\"]",
            "a whole top-level domain",
        ),
        (
            "[intercept]\nca = \"c\"\nnever = [\"10.0.0.1\"]",
            "it is an IP address",
        ),
        (
            "[intercept]\nca = \"c\"\nlists = [\"cachable\"]",
            "is not one of cacheable",
        ),
    ] {
        assert!(fault(file).contains(told), "{}", fault(file));
    }
    let file = "[intercept]\nca = \"c\"\nhosts = [\"a.test\", \"*.B.test\"]\n\
                lists = [\"cacheable\"]\ndespite_never = [\"mail.a.test\"]";
    let effective = assembled(file, &[], vec![flag("intercept", "c.test")]).unwrap();
    let hosts = row(&effective, "intercept.hosts");
    assert_eq!(
        hosts,
        (Shown::List(vec!["c.test".into()]), "--intercept".into())
    );
    let effective = assembled(file, &[("HASHCACHE_INTERCEPT__CA", "d")], vec![]).unwrap();
    let ca = row(&effective, "intercept.ca");
    assert_eq!(ca, (text("d"), "HASHCACHE_INTERCEPT__CA".into()));
    let hosts = Shown::List(vec!["a.test".into(), "*.b.test".into()]);
    assert_eq!(row(&effective, "intercept.hosts").0, hosts);
}

#[test]
fn every_key_can_be_set_to_what_it_shows() {
    let file = "accelerate = \"http://127.0.0.1:81\"\nheld_share = 30\n\
                public_url = \"http://box.test\"\nadmin_token_file = \"/etc/token\"\n\
                contact = \"Ms Abara\"";
    // A setting that cannot be combined with `accelerate`.
    let other = "parent = \"https://hub.test:1\"\nlink_dir = \"/link\"\n\
                 parent_pin = \"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n\
                 [intercept]\nca = \"/ca\"";
    let [effective, other] = [file, other].map(|file| assembled(file, &[], vec![]).unwrap());
    for (key, shown, _) in effective.shown() {
        let (effective, shown) = match shown {
            Shown::Nothing => (&other, (key.show)(&other.values)),
            _ => (&effective, shown),
        };
        let written = match shown {
            Shown::Nothing => panic!("{} shows nothing", key.name),
            Shown::Text(text) => Written::One(text),
            Shown::Number(number) => Written::One(number.to_string()),
            Shown::Truth(yes) => Written::One(yes.to_string()),
            Shown::List(words) => Written::Many(words),
        };
        let mut values = effective.values.clone();
        find(key.name).unwrap().read(&mut values, &written).unwrap();
        assert_eq!(
            (key.show)(&values),
            (key.show)(&effective.values),
            "{}",
            key.name
        );
    }
}

#[test]
fn mirrors_are_tables_or_words_and_shown_as_words() {
    let tables = "[[mirror]]\nkind = \"npm\"\nurl = \"http://registry.test\"\n\
                  [[mirror]]\nname = \"py\"\nkind = \"pypi\"\nurl = \"http://index.test/simple\"\n\
                  files = [\"https://files.test\"]\n";
    let words = [
        "npm=http://registry.test/".to_owned(),
        "pypi:py=http://index.test/simple/ https://files.test/".to_owned(),
    ];
    let by_tables = assembled(tables, &[], vec![]).unwrap();
    let shown = Shown::List(words.to_vec());
    assert_eq!(row(&by_tables, "mirror"), (shown, "a.toml:1".into()));
    // The shown settings are a configuration themselves.
    let by_words = assembled(&format!("mirror = {words:?}"), &[], vec![]).unwrap();
    assert_eq!(
        by_words.values.reloadable.mirrors,
        by_tables.values.reloadable.mirrors
    );
    let variable = ("HASHCACHE_MIRROR", &words.join(",")[..]);
    let by_variable = assembled("", &[variable], vec![]).unwrap();
    assert_eq!(
        by_variable.values.reloadable.mirrors,
        by_tables.values.reloadable.mirrors
    );
}

#[test]
fn a_wrong_mirror_names_its_line_and_two_of_a_name_are_refused() {
    let fine = "[[mirror]]\nkind = \"npm\"\nurl = \"http://registry.test\"\n";
    for (wrong, what) in [
        (
            "[[mirror]]\nkind = \"npm\"\n",
            "a.toml:4: mirror: missing field `url`",
        ),
        (
            "[[mirror]]\nkind = \"np\"\nurl = \"http://a.test\"\n",
            "a.toml:4: mirror: `np` is not one of pypi, npm, crates, apt",
        ),
        (
            "[[mirror]]\nkind = \"npm\"\nurl = \"http://a.test\"\nfile = []\n",
            "a.toml:7: mirror: unknown field `file`",
        ),
        (fine, "a.toml:1: two mirrors have the name `npm`"),
    ] {
        let whats = whats(assembled(&format!("{fine}{wrong}"), &[], vec![]));
        assert_eq!(whats.len(), 1, "{whats:?}");
        assert!(whats[0].starts_with(what), "{whats:?}");
    }
    let both = format!("accelerate = \"http://site.test\"\n{fine}");
    let refused = whats(assembled(&both, &[], vec![]));
    assert!(
        refused[0].contains("`mirror` works only in a forward proxy"),
        "{refused:?}"
    );
}

const SITE_TABLE: &str = "[[site]]\nhosts = [\"a.test\"]\norigins = [\"http://10.0.0.5\"]\n";

#[test]
fn sites_are_read_and_shown_as_they_were_written() {
    let file = format!("{SITE_TABLE}{}", SITE_TABLE.replace("a.test", "b.test"));
    let effective = assembled(&file, &[], vec![]).unwrap();
    let names = effective
        .values
        .reloadable
        .sites
        .all()
        .iter()
        .map(Site::name);
    assert_eq!(names.collect::<Vec<_>>(), ["a.test", "b.test"]);
    assert_eq!(effective.tables[0].1.as_array().unwrap().len(), 2);
    assert!(effective.values.is_reverse());
}

#[test]
fn a_wrong_site_names_its_line_and_its_field() {
    let wrong = |more: &str| whats(assembled(&format!("{SITE_TABLE}{more}"), &[], vec![]));
    assert_eq!(
        wrong("balance = \"hashed\"\n"),
        ["a.toml:1: site: balance: `hashed` is not one of round-robin, least-busy, hash, first"]
    );
    let unknown = wrong("ballance = \"hash\"\n");
    assert!(
        unknown[0].starts_with("a.toml:4: site: unknown field `ballance`"),
        "{unknown:?}"
    );
    assert_eq!(wrong(SITE_TABLE), ["site: `a.test` is a host of two sites"]);
    let table = "[site]\nhosts = [\"a.test\"]\n";
    assert_eq!(
        whats(assembled(table, &[], vec![])),
        ["a.toml:1: `site` must be an array of tables"]
    );
}

#[test]
fn two_peers_of_one_name_are_a_fault_at_the_second() {
    let peer = "[[peer]]\nname = \"a\"\nurl = \"http://192.0.2.1:3128\"\n";
    assert_eq!(
        whats(assembled(&format!("{peer}{peer}"), &[], vec![])),
        ["a.toml:4: peer: two peers are called `a`"]
    );
}

#[test]
fn a_site_does_not_go_together_with_a_forward_proxy() {
    for (more, what) in [
        (
            "accelerate = \"http://b.test\"\n",
            "a.toml:1: `accelerate` and `[[site]]` contradict each other",
        ),
        (
            "mirror = \"npm=http://b.test/\"\n",
            "a.toml:1: `mirror` works only in a forward proxy, not in front of a site",
        ),
        (
            "intercept.ca = \"/c\"\n",
            "a.toml:1: `intercept` works only in a forward proxy, not in front of a site",
        ),
    ] {
        assert_eq!(
            whats(assembled(&format!("{more}{SITE_TABLE}"), &[], vec![])),
            [what]
        );
    }
}

/// The first indented lines of a page of the operating manual, below `heading`.
fn example_of_the_manual(page: &str, heading: &str) -> String {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate");
    let text = fs::read_to_string(manual.join(page)).unwrap();
    let (_, section) = text.split_once(&format!("{heading}\n")).unwrap();
    let lines = section.lines().skip_while(|line| line.is_empty());
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect()
}

#[test]
fn the_example_of_a_school_in_the_manual_can_be_read() {
    let example = example_of_the_manual("access.md", "## A school: staff and pupils");
    let effective = assembled(&example, &[], vec![]).unwrap();
    assert!(!effective.values.reloadable.access.is_empty());
    assert_eq!(row(&effective, "contact").0, text("Ms Abara, room 12"));
    let tables: Vec<&str> = effective.tables.iter().map(|(name, _)| *name).collect();
    assert_eq!(tables, ["access", "group", "list", "networks"]);
}

#[test]
fn the_example_of_limits_in_the_manual_can_be_read() {
    let example = example_of_the_manual("quotas.md", "# Quotas and rates");
    let file = format!("{example}[networks]\npupils = [\"10.1.0.0/16\"]\n");
    let effective = assembled(&file, &[], vec![]).unwrap();
    let names: Vec<&str> = effective
        .values
        .reloadable
        .access_limits
        .iter()
        .map(|it| &*it.name)
        .collect();
    assert_eq!(names, ["pupil", "video"]);
}

/// The configurations (fences of `toml`) of a page of the operating manual.
fn configurations_of(page: &str) -> Vec<String> {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate");
    let text = fs::read_to_string(manual.join(page)).unwrap();
    let fences = text.split("\n```toml\n").skip(1);
    fences
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

#[test]
fn every_configuration_of_the_pages_for_readers_can_be_read() {
    for (page, count) in [
        ("school.md", 2),
        ("ship.md", 3),
        ("ci.md", 1),
        ("site.md", 1),
        ("machines.md", 2),
    ] {
        let configurations = configurations_of(page);
        assert_eq!(configurations.len(), count, "{page}");
        for file in configurations {
            assert!(assembled(&file, &[], vec![]).is_ok(), "{page}: {file}");
        }
    }
}

#[test]
fn limits_that_are_wrong_name_their_lines() {
    let file = "[[limit]]\nname = \"a\"\n[[limit]]\nname = \"b\"\nrequests = 1\n\
                [[limit]]\nname = \"b\"\nrequests = 1\n[[limit]]\nnam = \"c\"\n";
    let said = whats(assembled(file, &[], vec![]));
    let expected = [
        "a.toml:1: limit: the limit `a` limits nothing",
        "a.toml:6: limit: two limits are called `b`",
        "a.toml:10: limit: unknown field `nam`",
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_fault_in_an_exception_names_its_line() {
    let file = "[[access]]\naction = \"deny\"\nexcept = [\n  { ports = [80] },\n  \
                { ports = [0], methods = [\"get\"] },\n]\n\
                [[access]]\naction = \"deny\"\nexcept = { prots = [80] }\n\
                [[access]]\naction = \"deny\"\nexcept = 1\n";
    let said = whats(assembled(file, &[], vec![]));
    let expected = [
        "a.toml:5: access: except: ports: `0`: ",
        "a.toml:5: access: except: methods: `get`: ",
        "a.toml:9: access: unknown field `prots`",
        "a.toml:12: access: invalid type: integer `1`, expected a table of conditions",
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}");
    }
    let file = "[[access]]\naction = \"deny\"\nexcept = [\n  { ports = [80] },\n  \
                { clients = [\"pupil\"] },\n]\n[[access]]\naction = \"allow\"\n\
                [access.except]\n[[access]]\naction = \"deny\"\nports = [1]\n\
                [[access.except]]\nlists = [\"ads\"]\n";
    let said = whats(assembled(file, &[], vec![]));
    let expected = [
        "a.toml:5: access: except: there is no network called `pupil`",
        "a.toml:9: access: except: the rule can never match: the exception has all of its",
        "a.toml:13: access: except: there is no list called `ads`",
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn wrong_networks_and_rules_name_their_lines() {
    let file = "[networks]\nall = [\"10.0.0.0/8\"]\npupils = [\"10.1.0.1/16\"]\nstaff = 1\n\
                [[access]]\naction = \"allow\"\nclints = []\n\
                [[access]]\naction = \"deny\"\nports = []\n";
    let said = whats(assembled(file, &[], vec![]));
    let expected = [
        "a.toml:2: networks: `all` is not a name for a network",
        "a.toml:3: networks: pupils: `10.1.0.1/16`: address bits are set",
        "a.toml:4: networks: staff: `1`: not an IP address",
        "a.toml:7: access: unknown field `clints`",
        "a.toml:8: access: `ports` is empty",
    ];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}");
    }
}
