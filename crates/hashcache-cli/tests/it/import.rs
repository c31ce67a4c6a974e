//! `import`: configurations of Squid as schools, libraries and providers have them become
//! configurations that `config check` takes.

use std::fs;

use crate::{Home, Outcome};

/// Imports a configuration of `squid/` in a home with the files that it names, checks the result,
/// and returns the outcome with the result.
fn imported(home: &Home, text: &str) -> (Outcome, String) {
    let text = text.replace("@HOME@", &home.path().display().to_string());
    home.file("squid.conf", &text);
    let flags = ["import", "squid.conf", "--out", "new.toml", "--allow-open"];
    let outcome = home.hashcache(&flags, &[]);
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    let check = home.hashcache(&["config", "check", "new.toml"], &[]);
    let result = fs::read_to_string(home.path().join("new.toml")).expect("a result");
    assert_eq!(check.status, Some(0), "{}\n{result}", check.stderr);
    (outcome, result)
}

/// Checks that the texts are in the result, in this order.
fn has_in_order(result: &str, texts: &[&str]) {
    let mut rest = result;
    for text in texts {
        match rest.split_once(text) {
            Some((_, after)) => rest = after,
            None => panic!("{text:?} is not, or not there, in:\n{result}"),
        }
    }
}

/// Checks that the lines on standard error start with these texts, in this order.
fn tells(outcome: &Outcome, lines: &[&str]) {
    let told: Vec<&str> = outcome.stderr.lines().collect();
    let words = [": not imported: ", ": closed: ", ": would be open: "];
    let is_told = |line: &&&str| words.iter().any(|word| line.contains(word));
    for line in lines {
        let found = told.iter().filter(is_told).any(|it| it.starts_with(line));
        assert!(found, "{line:?} is not told in:\n{}", outcome.stderr);
    }
    let missing = told.iter().filter(is_told).count();
    assert_eq!(missing, lines.len(), "{}", outcome.stderr);
}

#[test]
fn debians_configuration_is_imported_as_a_whole() {
    let home = Home::new();
    fs::create_dir(home.path().join("conf.d")).unwrap();
    home.file("conf.d/debian.conf", "logfile_rotate 0\n");
    let (outcome, result) = imported(&home, include_str!("squid/debian.conf"));
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    tells(&outcome, &[]);
    has_in_order(
        &result,
        &[
            "listen = [\"[::]:3128\"]\n",
            "\"1025-65535\"",
            "allow_connect_port = [\"443\"]\n",
            "# squid.conf:26: http_access allow localhost\n[[access]]\naction = \"allow\"\n\
             clients = [\"127.0.0.1/32\", \"::1/128\"]\n",
            "# squid.conf:27: http_access deny all\n[[access]]\naction = \"deny\"\n",
        ],
    );
}

#[test]
fn a_school_keeps_its_rules_lists_and_users() {
    let home = Home::new();
    home.file("blocked.txt", ".casino.example\nads.example\n");
    home.file("exam-room.txt", "10.1.7.0/24 # room 7\n");
    let hash = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";
    home.file("passwd", &format!("okafor:{hash}\nlee:{hash}\n"));
    let (outcome, result) = imported(&home, include_str!("squid/school.conf"));
    assert_eq!(outcome.status, Some(1));
    tells(
        &outcome,
        &[
            "squid.conf:14: acl badwords",
            "squid.conf:25: http_access deny badwords",
            "squid.conf:39: refresh_pattern",
            "squid.conf:39: refresh_pattern",
            "squid.conf:44: dns_nameservers",
            "squid.conf:46: via off",
        ],
    );
    assert!(outcome.stderr.contains("NOT DENIED"), "{}", outcome.stderr);
    has_in_order(
        &result,
        &[
            "cache_size = \"2000MiB\"\n",
            "memory = \"130MiB\"\n",
            "max_object_size = \"256MiB\"\n",
            "allow_connect_port = [\"443\", \"8443\"]\n",
            "login_networks = [\"10.2.0.0/16\", \"127.0.0.0/8\", \"::1/128\"]\n",
            "contact = \"it@greenfield.example\"\n",
            "# squid.conf:49: delay_access 1 allow pupils\n\
             # Squid does not slow hits down. Here they are too.\n\
             [[limit]]\nname = \"pool-1-client\"\nper = \"client\"\n\
             bandwidth = \"64000\"\nburst = \"128000\"\n",
            "# squid.conf:24: http_access deny blocked\n[[access]]\naction = \"deny\"\n\
             lists = [\"blocked\"]\n",
            "# squid.conf:27: http_access deny exam !learning\n[[access]]\naction = \"deny\"\n\
             clients = [\"exam\"]\n\
             except = { destinations = [\".khanacademy.org\", \".wikipedia.org\"] }\n\n",
            "clients = [\"pupils\"]\ndestinations = [\".twitch.tv\", \".youtube.com\"]\n\
             times = [\"Mon-Fri 08:00-15:31\"]\n",
            "users = [\"okafor\"]\n",
            "except = { groups = [\"squid-users\"] }\n",
            "action = \"limit\"\nlimits = [\"pool-1-client\"]\nclients = [\"pupils\"]\n\n",
            "action = \"allow\"\nclients = [\"staff\"]\n",
            "[[list]]\nname = \"blocked\"\n",
            "[[group]]\nname = \"squid-users\"\nusers = [\"lee\", \"okafor\"]\n",
            "[[rule]]\npath = [",
        ],
    );
}

#[test]
fn a_library_opens_what_its_list_has() {
    let home = Home::new();
    // This machine has no such address.
    let text = include_str!("squid/library.conf").replace("192.0.2.1", "127.0.0.1");
    let (outcome, result) = imported(&home, &text);
    assert_eq!(outcome.status, Some(1));
    tells(
        &outcome,
        &["squid.conf:24: error_directory", "squid.conf:25: snmp_port"],
    );
    has_in_order(
        &result,
        &[
            "listen = [\"127.0.0.1:3128\"]\n",
            "allow_port = [\"80\", \"443\"]\n",
            "log_anonymize = true\n",
            "clients = [\"public\"]\nexcept = { times = [\"08:30-20:01\"] }\n",
            "# squid.conf:17: http_access deny public !allowed_sites\n[[access]]\n\
             action = \"deny\"\nclients = [\"public\"]\n\
             except = { destinations = [\".gov.example\"",
            "# squid.conf:20: cache deny webmail\n[[access]]\naction = \"no-cache\"\n\
             clients = [\"office\"]\ndestinations = [\"mail.example\"]\n",
        ],
    );
}

#[test]
fn a_provider_keeps_its_peers_and_routes() {
    let home = Home::new();
    let (outcome, result) = imported(&home, include_str!("squid/isp.conf"));
    assert_eq!(outcome.status, Some(1));
    tells(
        &outcome,
        &[
            "squid.conf:6: acl abuse",
            "squid.conf:7: acl snmppublic",
            // The parent looks names up, so their addresses are not compared.
            "squid.conf:8: http_access deny abuse",
            "squid.conf:17: cache_peer hub.satellite.example parent 3128 3130 default no-digest \
             login=...",
            "squid.conf:18: cache_peer north",
            "squid.conf:33: logformat",
            "squid.conf:35: snmp_port",
            "squid.conf:36: snmp_access",
            "squid.conf:37: wccp2_router",
        ],
    );
    assert!(!result.contains("secret") && !outcome.stderr.contains("secret"));
    let listen = "listen = [\"[::]:8080\", \"redirect://[::]:8081\"]\n";
    assert!(result.contains(listen), "{result}");
    has_in_order(
        &result,
        &[
            "cache_size = \"2500MiB\"\n",
            "deny_destination = [\"192.0.2.0/24\"]\n",
            "icp = 3130\n",
            "htcp = 4827\n",
            "connect_time = \"30s\"\n",
            "[[peer]]\nname = \"hub.satellite.example\"\nurl = ",
            "kind = \"sibling\"\n",
            "htcp = 4827\n",
            "digest = true\n",
            "[[route]]\nhost = [\"isp.example\", \"*.isp.example\"]\npeers = []\n",
            "host = [\"akamai.example\", \"*.akamai.example\"]\n",
        ],
    );
}

#[test]
fn a_branch_office_reaches_everything_through_its_parents() {
    let home = Home::new();
    let (outcome, result) = imported(&home, include_str!("squid/branch.conf"));
    assert_eq!(outcome.status, Some(1));
    assert!(!result.contains("secret"), "{result}");
    has_in_order(
        &result,
        &[
            "listen = [\"[::]:3128\", \"redirect://[::]:3130\"]\n",
            "direct = \"never\"\n",
            "drain_time = \"5s\"\n",
            "clients = [\"branch\"]\n",
            "url = \"https://backup.corp.example:3129\"\n",
            "[[route]]\nhost = [\"corp.example\", \"*.corp.example\", \"intranet\"]\n",
        ],
    );
}

#[test]
fn sites_keep_their_hosts_and_origins() {
    let home = Home::new();
    let (outcome, result) = imported(&home, include_str!("squid/site.conf"));
    assert_eq!(outcome.status, Some(1));
    tells(&outcome, &["squid.conf:3: https_port 8443"]);
    has_in_order(
        &result,
        &[
            "listen = [\"http://127.0.0.1:8080\"]\n",
            "[[site]]\nhosts = [\"example.com\", \"www.example.com\"]\norigins = ",
            "balance = \"round-robin\"\n",
            "[[site]]\nhosts = [\"blog.example.com\"]\n",
            "[[rule]]\nhost = \"www.example.com\"\n",
        ],
    );
}

#[test]
fn a_file_that_is_there_is_not_written_over() {
    let home = Home::new();
    home.file("squid.conf", "http_port 3128\n");
    home.file("new.toml", "memory = 1\n");
    let outcome = home.hashcache(&["import", "squid.conf", "--out", "new.toml"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stderr.contains("cannot write new.toml"),
        "{outcome:?}"
    );
    let kept = fs::read_to_string(home.path().join("new.toml")).unwrap();
    assert_eq!(kept, "memory = 1\n");
    let outcome = home.hashcache(&["import", "none.conf"], &[]);
    assert_eq!((outcome.status, &*outcome.stdout), (Some(2), ""));
}

#[test]
fn without_a_name_the_result_is_printed() {
    let home = Home::new();
    home.file("squid.conf", "http_port 3128\nnew_directive 1\n");
    let outcome = home.hashcache(&["import", "squid.conf"], &[]);
    assert_eq!(outcome.status, Some(1));
    assert!(
        outcome.stdout.contains("listen = [\"[::]:3128\"]\n"),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stdout
            .contains("# squid.conf:2: new_directive 1\n#     unknown directive\n")
    );
    assert_eq!(
        outcome.stderr,
        "squid.conf:2: new_directive 1: not imported: unknown directive\n\
         1 directives imported, 0 need no setting, 1 not imported or not wholly, 0 deny more than \
         Squid, 0 would be open; 0 options left out\n"
    );
}

#[test]
fn a_result_that_serves_what_squid_refuses_is_not_written_unless_asked_for() {
    let home = Home::new();
    let text = "acl bad url_regex casino\nacl net src 10.0.0.0/8\nhttp_access deny bad\n\
                http_access allow net\nhttp_access deny all\nhttp_port 3128\n";
    home.file("squid.conf", text);
    let import = |flags: &[&str]| {
        let always = ["import", "squid.conf", "--out", "new.toml"];
        let outcome = home.hashcache(&[&always, flags].concat(), &[]);
        let result = fs::read_to_string(home.path().join("new.toml")).ok();
        let _ = fs::remove_file(home.path().join("new.toml"));
        (outcome, result)
    };
    let (outcome, result) = import(&[]);
    assert_eq!((outcome.status, result), (Some(2), None));
    for part in [
        "squid.conf:3: http_access deny bad: would be open: NOT DENIED: acl bad: access rules know",
        "hashcache: nothing is written: the result would serve requests that 1 directives",
        "hint: ",
        "`--close`",
        "`--allow-open`",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    let printed = home.hashcache(&["import", "squid.conf"], &[]);
    assert_eq!((printed.status, &*printed.stdout), (Some(2), ""));
    let rules = |result: Option<String>| {
        let table: toml::Table = toml::from_str(&result.expect("a result")).expect("TOML");
        let rules = table["access"].as_array().expect("rules").iter();
        rules
            .map(|it| it["action"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let (outcome, result) = import(&["--allow-open"]);
    assert_eq!(
        (outcome.status, rules(result)),
        (Some(1), vec!["allow".into(), "deny".into()])
    );
    let (outcome, result) = import(&["--close"]);
    assert_eq!(
        (outcome.status, rules(result)),
        (Some(1), vec!["deny".into()])
    );
    assert!(
        outcome.stderr.contains(": closed: DENIES MORE"),
        "{}",
        outcome.stderr
    );
    let (outcome, result) = import(&["--strict"]);
    assert_eq!((outcome.status, result), (Some(2), None));
    let (outcome, _) = import(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(report["written"].as_bool(), Some(false));
    let open = report["open"][0]["directive"].as_str();
    assert_eq!(open, Some("squid.conf:3: http_access deny bad"));
}

#[test]
fn a_hash_of_another_program_drops_its_user_only() {
    let home = Home::new();
    let hash = "$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe";
    home.file(
        "passwd",
        &format!("okafor:{hash}\nlee:$apr1$x$y\nana:{hash}\n"),
    );
    let text = "auth_param basic program /usr/lib/squid/basic_ncsa_auth @HOME@/passwd\n\
                acl auth proxy_auth REQUIRED\nhttp_access allow auth\nhttp_access deny all\n";
    let (outcome, result) = imported(&home, text);
    tells(&outcome, &["squid.conf:1: auth_param basic program"]);
    assert!(
        outcome.stderr.contains("users `lee`: their hashes"),
        "{}",
        outcome.stderr
    );
    has_in_order(
        &result,
        &["htpasswd = [", "users = [\"ana\", \"okafor\"]\n"],
    );
    let check = home.hashcache(&["config", "check", "new.toml"], &[]);
    let said = format!("{}{}", check.stdout, check.stderr);
    assert!(
        said.contains("users whose hashes are not bcrypt cannot log in: `lee`"),
        "{said}"
    );
}
