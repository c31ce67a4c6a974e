//! Decisions of rules: a table of requests, and the rules that are refused.

use hashcache_base::net::address::ConnectPort;

use super::*;
use crate::{Destination, ListFormat, ListSettings, NameSet, Reach, RuleClients};

fn networks(name: &str) -> RuleClients {
    match name.parse() {
        Ok(network) => RuleClients::Network(network),
        Err(_) => RuleClients::Named(name.into()),
    }
}

pub(super) fn clients(names: &[&str]) -> Option<Vec<RuleClients>> {
    Some(names.iter().map(|name| networks(name)).collect())
}

pub(super) fn destinations(texts: &[&str]) -> Option<Vec<Destination>> {
    Some(texts.iter().map(|text| text.parse().unwrap()).collect())
}

pub(super) fn ports(text: &str) -> Option<Vec<ConnectPort>> {
    Some(vec![text.parse().unwrap()])
}

pub(super) fn methods(words: &[&str]) -> Option<Vec<String>> {
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

pub(super) fn times(text: &str) -> Option<Vec<WeekSpan>> {
    Some(vec![text.parse().unwrap()])
}

const DENY: AccessAction = AccessAction::Deny;

pub(super) fn settings(rules: Vec<AccessRule>) -> AccessSettings {
    let named = [
        ("pupils", "10.1.0.0/16"),
        ("staff", "10.2.0.0/16"),
        ("guests", "10.9.0.0/16"),
        ("road", "203.0.113.0/24"),
    ];
    let named = named.map(|(name, network)| (name.to_owned(), vec![network.parse().unwrap()]));
    AccessSettings {
        rules,
        networks: named.into(),
        nat64: vec!["2001:db8:64::/96".parse().unwrap()],
        ..AccessSettings::default()
    }
}

fn school() -> AccessRules {
    let rule = AccessRule::from_action;
    let rules = vec![
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["guests"]),
                times: times("22:00-06:00"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["pupils"]),
                destinations: destinations(&[".games.example", "chat.example.org"]),
                times: times("Mon-Fri 08:00-15:30"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["staff"]),
                destinations: destinations(&[".games.example"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&[".games.example"]),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&[".bank.example"]),
                methods: methods(&["CONNECT"]),
                ports: ports("443"),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Tunnel)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&["live.example", "192.0.2.0/24"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::NoCache)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["guests"]),
                methods: methods(&["POST", "PUT"]),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["road"]),
                methods: methods(&["CONNECT"]),
                ports: ports("443"),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                ports: ports("8000-8999"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["192.168.7.7"]),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&["198.51.100.0/24"]),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["road"]),
                destinations: destinations(&["192.0.2.0/24"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
    ];
    AccessRules::new(&settings(rules)).unwrap()
}

/// Pupil on Monday at 10:00, at 16:00 and on Saturday; staff; guest by day and by night; the road;
/// somewhere else; one machine. Columns of the table below.
const WHO: [(&str, i64); 9] = [
    ("10.1.0.5", MONDAY + 10 * HOUR),
    ("10.1.0.5", MONDAY + 16 * HOUR),
    ("10.1.0.5", MONDAY + (5 * 24 + 10) * HOUR),
    ("10.2.0.5", MONDAY + 10 * HOUR),
    ("10.9.0.5", MONDAY + 10 * HOUR),
    ("10.9.0.5", MONDAY + (24 + 2) * HOUR),
    ("203.0.113.9", MONDAY + 10 * HOUR),
    ("198.51.100.1", MONDAY + 10 * HOUR),
    ("192.168.7.7", MONDAY + 10 * HOUR),
];
/// 2026-11-23, a Monday.
pub(super) const MONDAY: i64 = 1_795_392_000;
const HOUR: i64 = 3600;

/// Method, host, port; then the deciding rule for each of `WHO`: its number, `a` for served by
/// default, `d` for refused by default.
const TABLE: &str = "
    GET     www.example         80    a a a a a 1 d d 10
    GET     games.example       80    2 4 4 3 4 1 4 4 4
    GET     www.games.example   443   2 4 4 3 4 1 4 4 4
    GET     a.b.games.example.  80    2 4 4 3 4 1 4 4 4
    CONNECT games.example       443   2 4 4 3 4 1 4 4 4
    POST    games.example       80    2 4 4 3 4 1 4 4 4
    GET     games.example       8080  2 4 4 3 4 1 4 4 4
    GET     xgames.example      80    a a a a a 1 d d 10
    GET     games.example.org   80    a a a a a 1 d d 10
    GET     example             80    a a a a a 1 d d 10
    GET     chat.example.org    80    2 a a a a 1 d d 10
    GET     CHAT.example.org.   80    2 a a a a 1 d d 10
    GET     x.chat.example.org  80    a a a a a 1 d d 10
    GET     example.org         80    a a a a a 1 d d 10
    CONNECT chat.example.org    443   2 a a a a 1 8 d 10
    CONNECT bank.example        443   5 5 5 5 5 1 8 d 5
    CONNECT www.bank.example    443   5 5 5 5 5 1 8 d 5
    CONNECT www.bank.example    8443  9 9 9 9 9 1 9 9 9
    CONNECT www.bank.example    444   a a a a a 1 d d 10
    GET     www.bank.example    443   a a a a a 1 d d 10
    CONNECT live.example        443   6 6 6 6 6 1 8 d 6
    GET     live.example        80    6 6 6 6 6 1 d d 6
    GET     www.live.example    80    a a a a a 1 d d 10
    GET     192.0.2.77          80    6 6 6 6 6 1 12 d 6
    GET     192.0.3.77          80    a a a a a 1 d d 10
    GET     [::ffff:192.0.2.1]  80    6 6 6 6 6 1 12 d 6
    GET     [2001:db8::1]       80    a a a a a 1 d d 10
    GET     [64:ff9b::c000:209] 80    6 6 6 6 6 1 12 d 6
    GET     [64:ff9b::c000:309] 80    a a a a a 1 d d 10
    GET     [2001:db8:64::c000:209] 443 6 6 6 6 6 1 12 d 6
    GET     [2001:db8:64::c000:309] 80 a a a a a 1 d d 10
    GET     [2002:c000:209::1]  80    a a a a a 1 d d 10
    GET     [2001:db8::5efe:192.0.2.9] 80 a a a a a 1 d d 10
    GET     [2001:db8::200:5efe:192.0.2.9] 80 a a a a a 1 d d 10
    GET     [::ffff:0:192.0.2.9] 80   a a a a a 1 d d 10
    GET     198.51.100.7        80    11 11 11 11 11 1 11 11 10
    GET     [::ffff:198.51.100.7] 80  11 11 11 11 11 1 11 11 10
    GET     [64:ff9b::198.51.100.7] 80 11 11 11 11 11 1 11 11 10
    GET     [2001:db8:64::198.51.100.7] 80 11 11 11 11 11 1 11 11 10
    GET     [2002:c633:6407::1] 80    11 11 11 11 11 1 11 11 10
    GET     [2001:db8::5efe:198.51.100.7] 80 11 11 11 11 11 1 11 11 10
    GET     [2001:db8::200:5efe:198.51.100.7] 80 11 11 11 11 11 1 11 11 10
    GET     [::ffff:0:198.51.100.7] 80 11 11 11 11 11 1 11 11 10
    POST    www.example         80    a a a a 7 1 d d 10
    PUT     www.example         80    a a a a 7 1 d d 10
    post    www.example         80    a a a a 7 1 d d 10
    DELETE  www.example         80    a a a a a 1 d d 10
    POST    live.example        80    6 6 6 6 6 1 d d 6
    CONNECT www.example         443   a a a a a 1 8 d 10
    CONNECT www.example         8000  9 9 9 9 9 1 9 9 9
    GET     www.example         8999  9 9 9 9 9 1 9 9 9
    GET     www.example         9000  a a a a a 1 d d 10
    GET     www.example         7999  a a a a a 1 d d 10
    POST    www.example         8080  9 9 9 9 7 1 9 9 9
";

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = school();
    let mut rows = 0;
    for line in TABLE.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let host = Host::parse(words[1]).unwrap();
        let request = AccessRequest {
            user: RequestUser::Unknowable,
            method: words[0],
            host: &host,
            port: words[2].parse().unwrap(),
        };
        for ((address, second), expected) in WHO.iter().zip(&words[3..]) {
            let address: IpAddr = address.parse().unwrap();
            let is_private = matches!(address, IpAddr::V4(v4) if v4.is_private());
            let client = rules.client(address, is_private);
            let timed = rules.at(WeekMinute::of_local(*second));
            let decision = rules
                .decide(&client, &timed, &request, |_, _| false)
                .unwrap();
            let rule = match *expected {
                "a" | "d" => None,
                number => Some(number.parse::<usize>().unwrap() - 1),
            };
            let action = match (rule, *expected) {
                (Some(rule), _) => rules.rules[rule].action,
                (None, "a") => AccessAction::Allow,
                (None, _) => DENY,
            };
            let expected = Decision { action, rule };
            assert_eq!(decision, expected, "{line} for {address}");
            rows += 1;
        }
    }
    assert!(rows >= 380, "{rows}");
}

#[test]
fn without_rules_private_networks_are_served_and_no_others() {
    let rules = AccessRules::default();
    let address = IpAddr::from([10, 0, 0, 1]);
    assert_eq!(rules.refusal(&rules.client(address, true)), None);
    let refused = Decision {
        action: DENY,
        rule: None,
    };
    assert_eq!(rules.refusal(&rules.client(address, false)), Some(refused));
}

#[test]
fn a_client_is_refused_as_a_whole_only_if_no_rule_can_serve_it() {
    let refusal = |rules: Vec<AccessRule>, by_default: bool| {
        let rules = AccessRules::new(&settings(rules)).unwrap();
        let client = rules.client(IpAddr::from([10, 1, 0, 1]), by_default);
        rules.refusal(&client).map(|decision| decision.rule)
    };
    let rule = |action, names: Option<Vec<RuleClients>>| AccessRule {
        conditions: AccessConditions {
            clients: names,
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(action)
    };
    let some = |action| AccessRule {
        conditions: AccessConditions {
            destinations: destinations(&["a.example"]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(action)
    };
    let deny_pupils = || rule(DENY, clients(&["pupils"]));
    assert_eq!(refusal(vec![deny_pupils()], true), Some(Some(0)));
    assert_eq!(
        refusal(vec![some(DENY), deny_pupils()], true),
        Some(Some(1))
    );
    assert_eq!(
        refusal(vec![some(AccessAction::Allow), deny_pupils()], true),
        None
    );
    // That rule is for clients that are served anyway.
    assert_eq!(refusal(vec![some(AccessAction::Allow)], false), Some(None));
    let pupils = rule(AccessAction::Allow, clients(&["pupils"]));
    assert_eq!(refusal(vec![pupils], false), None);
    assert_eq!(refusal(vec![rule(DENY, clients(&["staff"]))], true), None);
}

#[test]
fn the_host_in_a_tunnel_matters_only_if_a_rule_can_deny_the_tunnel() {
    let judges = |rules: Vec<AccessRule>, by_default: bool| {
        let rules = AccessRules::new(&settings(rules)).unwrap();
        rules.judge_hosts(&rules.client(IpAddr::from([10, 1, 0, 1]), by_default))
    };
    let some = |action, methods: Option<&[&str]>| AccessRule {
        conditions: AccessConditions {
            destinations: destinations(&["a.example"]),
            methods: methods.map(|it| it.iter().map(ToString::to_string).collect()),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(action)
    };
    assert!(judges(vec![some(DENY, None)], true));
    assert!(judges(vec![some(DENY, Some(&["GET", "CONNECT"]))], true));
    assert!(judges(
        vec![
            some(AccessAction::Allow, None),
            AccessRule::from_action(DENY)
        ],
        true
    ));
    assert!(!judges(vec![some(DENY, Some(&["POST"]))], true));
    assert!(!judges(vec![some(AccessAction::Tunnel, None)], true));
    assert!(!judges(vec![AccessRule::from_action(DENY)], true));
}

fn faults(rules: Vec<AccessRule>) -> Vec<(usize, String)> {
    let faults = AccessRules::new(&settings(rules)).err().unwrap_or_default();
    faults
        .into_iter()
        .map(|fault| (fault.rule, fault.error.to_string()))
        .collect()
}

#[test]
fn an_empty_condition_and_an_unknown_network_are_refused() {
    let empty = || AccessRule {
        conditions: AccessConditions {
            clients: clients(&[]),
            users: Some(vec![]),
            groups: Some(vec![]),
            destinations: destinations(&[]),
            lists: Some(vec![]),
            ports: Some(vec![]),
            methods: methods(&[]),
            times: Some(vec![]),
        },
        ..AccessRule::from_action(DENY)
    };
    let said = faults(vec![empty()]);
    let conditions = [
        "clients",
        "users",
        "groups",
        "destinations",
        "lists",
        "ports",
        "methods",
        "times",
    ];
    let expected = conditions.map(|it| (0, format!("`{it}` is empty, so it matches nothing")));
    assert_eq!(said, expected);
    let unknown = AccessRule {
        conditions: AccessConditions {
            clients: clients(&["pupil"]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(DENY)
    };
    assert_eq!(
        faults(vec![unknown]),
        [(0, "there is no network called `pupil`".into())]
    );
}

#[test]
fn a_rule_that_can_never_match_is_refused() {
    let rule = |action, clients: Option<Vec<RuleClients>>| AccessRule {
        conditions: AccessConditions {
            clients,
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(action)
    };
    let allow = |clients| rule(AccessAction::Allow, clients);
    let some = || AccessRule {
        conditions: AccessConditions {
            destinations: destinations(&["a.example"]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(AccessAction::Tunnel)
    };
    let all = || Some(vec![RuleClients::All]);
    let road = || clients(&["road"]);
    for (rules, hidden) in [
        (vec![rule(DENY, None), allow(road())], true),
        (vec![allow(all()), rule(DENY, None)], true),
        (vec![allow(None), some()], true),
        (vec![allow(Some(vec![RuleClients::Local])), some()], true),
        (vec![rule(DENY, road()), allow(road())], true),
        (
            vec![rule(DENY, clients(&["road", "pupils"])), allow(road())],
            true,
        ),
        (
            vec![rule(DENY, road()), allow(clients(&["road", "pupils"]))],
            false,
        ),
        // For clients that are not served by default.
        (vec![allow(None), allow(road())], false),
        (vec![allow(None), rule(DENY, None)], false),
        (vec![some(), rule(DENY, None)], false),
        (vec![rule(DENY, road()), some()], false),
    ] {
        let faults = faults(rules.clone());
        assert_eq!(!faults.is_empty(), hidden, "{rules:?}");
        let said = "the rule can never match: `rule 1` before it has no conditions";
        assert!(
            faults.iter().all(|fault| *fault == (1, said.to_owned())),
            "{faults:?}"
        );
    }
}

#[test]
fn names_of_rules_are_unique_and_rules_are_counted() {
    let named = || AccessRule {
        conditions: AccessConditions {
            destinations: destinations(&["a.example"]),
            ..AccessConditions::default()
        },
        name: Some("x".into()),
        ..AccessRule::from_action(DENY)
    };
    assert_eq!(
        faults(vec![named(), named()]),
        [(1, "two rules are called `x`".into())]
    );
    let rules = vec![
        AccessRule {
            name: None,
            ..named()
        };
        RULES_MAX + 1
    ];
    assert_eq!(
        faults(rules),
        [(
            RULES_MAX,
            "more than 1024 rules and exceptions, 64 lists or 64 limits".into()
        )]
    );
}

fn rules_with_lists() -> AccessRules {
    let list = |name: &str| ListSettings {
        name: name.to_owned(),
        files: vec![],
        format: ListFormat::Auto,
    };
    let rule = |lists: &[&str], methods: Option<Vec<String>>| AccessRule {
        conditions: AccessConditions {
            lists: Some(lists.iter().map(|name| (*name).to_owned()).collect()),
            methods,
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(DENY)
    };
    let rules = vec![
        rule(&["ads"], methods(&["POST"])),
        rule(&["malware", "ads"], None),
        rule(&["malware"], None),
    ];
    let lists = vec![list("ads"), list("malware")];
    AccessRules::new(&AccessSettings {
        lists,
        ..settings(rules)
    })
    .unwrap()
}

#[test]
fn a_list_is_asked_once_a_request_and_only_if_all_else_matches() {
    let rules = rules_with_lists();
    let client = rules.client(IpAddr::from([10, 0, 0, 1]), true);
    let timed = rules.at(WeekMinute::of_local(MONDAY));
    let host = Host::parse("a.example").unwrap();
    for (method, found, rule, asked) in [
        ("GET", [false, false], None, vec![0, 1]),
        ("POST", [false, false], None, vec![0, 1]),
        ("POST", [true, false], Some(0), vec![0]),
        ("GET", [true, false], Some(1), vec![0]),
        ("GET", [false, true], Some(1), vec![0, 1]),
    ] {
        let request = AccessRequest {
            user: RequestUser::Unknowable,
            method,
            host: &host,
            port: 80,
        };
        let log = std::cell::RefCell::new(vec![]);
        let decision = rules.decide(&client, &timed, &request, |list, _| {
            log.borrow_mut().push(list);
            found[list]
        });
        let decision = decision.unwrap();
        assert_eq!(
            (decision.rule, log.into_inner()),
            (rule, asked),
            "{method} {found:?}"
        );
    }
}

#[test]
fn a_list_has_an_address_in_an_ipv6_address_that_embeds_it() {
    let rules = rules_with_lists();
    let client = rules.client(IpAddr::from([10, 0, 0, 1]), true);
    let timed = rules.at(WeekMinute::of_local(MONDAY));
    let mut list = NameSet::with_room(1);
    assert!(list.insert(&Host::parse("192.0.2.1").unwrap(), Reach::Host));
    for (host, rule) in [
        ("192.0.2.1", Some(1)),
        ("[::ffff:192.0.2.1]", Some(1)),
        ("[64:ff9b::192.0.2.1]", Some(1)),
        ("[2001:db8:64::192.0.2.1]", Some(1)),
        ("[2001:db8:65::192.0.2.1]", None),
        ("192.0.2.2", None),
    ] {
        let host = Host::parse(host).unwrap();
        let request = AccessRequest {
            user: RequestUser::Unknowable,
            method: "GET",
            host: &host,
            port: 80,
        };
        let has = |number, host: &HostHashes| number == 0 && list.contains(host);
        let decision = rules.decide(&client, &timed, &request, has).unwrap();
        assert_eq!(decision.rule, rule, "{host}");
    }
}

#[test]
fn a_rule_that_serves_takes_no_address_that_its_owner_made_up_for_one_of_a_list() {
    let of_list = |action| AccessRule {
        conditions: AccessConditions {
            lists: Some(vec!["known".to_owned()]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(action)
    };
    let rules = AccessRules::new(&AccessSettings {
        lists: vec![ListSettings {
            name: "known".to_owned(),
            files: vec![],
            format: ListFormat::Auto,
        }],
        ..settings(vec![of_list(AccessAction::Allow), of_list(DENY)])
    });
    let rules = rules.unwrap();
    let client = rules.client(IpAddr::from([10, 0, 0, 1]), true);
    let timed = rules.at(WeekMinute::of_local(MONDAY));
    let mut list = NameSet::with_room(1);
    assert!(list.insert(&Host::parse("192.0.2.1").unwrap(), Reach::Host));
    for (host, rule, asked) in [
        ("192.0.2.1", Some(0), 1),
        ("[::ffff:192.0.2.1]", Some(0), 1),
        ("[64:ff9b::192.0.2.1]", Some(0), 1),
        ("[2001:db8:64::192.0.2.1]", Some(0), 1),
        ("[2001:db8::5efe:192.0.2.1]", Some(1), 2),
        ("[2002:c000:201::1]", Some(1), 2),
        ("[2001:db8::5efe:192.0.2.2]", None, 2),
        ("a.example", None, 1),
    ] {
        let host = Host::parse(host).unwrap();
        let request = AccessRequest {
            user: RequestUser::Unknowable,
            method: "GET",
            host: &host,
            port: 80,
        };
        let count = std::cell::Cell::new(0);
        let has = |_, host: &HostHashes| {
            count.set(count.get() + 1);
            list.contains(host)
        };
        let decision = rules.decide(&client, &timed, &request, has).unwrap();
        assert_eq!((decision.rule, count.get()), (rule, asked), "{host:?}");
    }
}

#[test]
fn a_rule_with_a_list_that_there_is_not_or_with_none_is_refused() {
    let unknown = AccessRule {
        conditions: AccessConditions {
            lists: Some(vec!["ad".into()]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(DENY)
    };
    assert_eq!(
        faults(vec![unknown]),
        [(0, "there is no list called `ad`".into())]
    );
    let empty = AccessRule {
        conditions: AccessConditions {
            lists: Some(vec![]),
            ..AccessConditions::default()
        },
        ..AccessRule::from_action(DENY)
    };
    assert_eq!(
        faults(vec![empty]),
        [(0, "`lists` is empty, so it matches nothing".into())]
    );
}

/// A thousand rules of every kind, none of which matches, and a million names in lists. The hosts
/// of the requests are all different, so that most lookups miss the processor's caches.
#[test]
#[ignore = "measures time: run it alone and optimised, with --nocapture"]
fn time_of_a_decision() {
    for list_count in [1, 8, 64] {
        let each = time_with(list_count);
        println!("1,000 rules, 1,000,000 names in {list_count} lists: {each} ns a decision");
    }
}

fn time_with(list_count: usize) -> u128 {
    let name = |list: usize| format!("list{list}");
    let lists = (0..list_count).map(|list| ListSettings {
        name: name(list),
        files: vec![],
        format: ListFormat::Auto,
    });
    let settings = AccessSettings {
        lists: lists.collect(),
        ..settings(
            (0..1000)
                .map(|number| rule_of_a_kind(number, name(number / 10 % list_count)))
                .collect(),
        )
    };
    let rules = AccessRules::new(&settings).unwrap();
    let names = 1_000_000 / list_count;
    let lists: Vec<NameSet> = (0..list_count)
        .map(|list| {
            let mut set = NameSet::with_room(names);
            for number in 0..names {
                let host = Host::Name(format!("host{number}.ads{list}.example").into());
                assert!(set.insert(&host, Reach::Below));
            }
            set
        })
        .collect();
    let hosts: Vec<Host> = (0..1 << 18)
        .map(|number| Host::Name(format!("www.cdn{number}.some{number}.example.org").into()))
        .collect();
    let client = rules.client(IpAddr::from([10, 1, 0, 5]), true);
    let timed = rules.at(WeekMinute::of_local(MONDAY));
    let decide = |host: &Host| {
        let request = AccessRequest {
            user: RequestUser::Unknowable,
            method: "GET",
            host,
            port: 443,
        };
        let has = |list: usize, host: &HostHashes| lists[list].contains(host);
        rules.decide(&client, &timed, &request, has)
    };
    let start = tokio::time::Instant::now();
    let allowed = hosts
        .iter()
        .filter(|host| decide(host).unwrap().rule.is_none());
    assert_eq!(allowed.count(), hosts.len());
    start.elapsed().as_nanos() / hosts.len() as u128
}

/// A rule that matches no request of `time_with`.
fn rule_of_a_kind(number: usize, list: String) -> AccessRule {
    match number % 10 {
        0 => AccessRule {
            conditions: AccessConditions {
                lists: Some(vec![list]),
                clients: clients(&["10.0.0.0/8"]),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
        1 => AccessRule {
            conditions: AccessConditions {
                ports: ports(&(20_000 + number).to_string()),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
        2 => AccessRule {
            conditions: AccessConditions {
                clients: clients(&[&format!("172.16.{}.0/24", number % 256)]),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
        3 => AccessRule {
            conditions: AccessConditions {
                times: times("Sat,Sun"),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
        4 => AccessRule {
            conditions: AccessConditions {
                methods: methods(&["POST", "PUT"]),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
        5 => AccessRule {
            conditions: AccessConditions {
                users: Some(vec![format!("user{number}")]),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(AccessAction::Allow)
        },
        _ => AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&[&format!(".site{number}.example")]),
                ..AccessConditions::default()
            },
            ..AccessRule::from_action(DENY)
        },
    }
}

/// Rules for users: the user, the client, the host; then the deciding rule, as in [`TABLE`]. The
/// user `?` has not logged in and can be asked to; `-` has not and cannot be asked. `ask` means
/// that the client must log in first.
const USERS: &str = "
    abara  10.2.0.5  video.example      1
    lee    10.2.0.5  video.example      1
    pupil1 10.2.0.5  video.example      3
    nobody 10.2.0.5  video.example      3
    ?      10.2.0.5  video.example      ask
    -      10.2.0.5  video.example      3
    abara  10.1.0.5  video.example      3
    ?      10.1.0.5  video.example      3
    -      10.1.0.5  video.example      3
    abara  10.1.0.5  mail.example       a
    pupil1 10.1.0.5  mail.example       2
    pupil2 10.1.0.5  mail.example       a
    nobody 10.1.0.5  mail.example       a
    ?      10.1.0.5  mail.example       ask
    -      10.1.0.5  mail.example       2
    abara  10.1.0.5  both.example       4
    lee    10.1.0.5  both.example       5
    pupil1 10.1.0.5  both.example       5
    ?      10.1.0.5  both.example       ask
    -      10.1.0.5  both.example       5
    ?      10.1.0.5  www.example        a
    -      10.1.0.5  www.example        a
    abara  203.0.113.9 www.example      d
    abara  203.0.113.9 home.example     6
    pupil1 203.0.113.9 home.example     d
    ?      203.0.113.9 home.example     ask
    -      203.0.113.9 home.example     d
    abara  198.51.100.1 home.example    d
    ?      198.51.100.1 home.example    d
";

fn rules_for_users() -> AccessSettings {
    let rule = AccessRule::from_action;
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    let at = |host: &str| destinations(&[host]);
    let rules = vec![
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["staff"]),
                groups: names(&["teachers"]),
                destinations: at("video.example"),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                users: names(&["pupil1"]),
                destinations: at("mail.example"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: at("video.example"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                users: names(&["abara", "pupil1"]),
                groups: names(&["teachers"]),
                destinations: at("both.example"),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::NoCache)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: at("both.example"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                clients: clients(&["road"]),
                groups: names(&["teachers"]),
                destinations: at("home.example"),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
    ];
    let teachers = ["abara", "lee"].map(str::to_owned).to_vec();
    AccessSettings {
        groups: [("teachers".to_owned(), teachers)].into(),
        ..settings(rules)
    }
}

#[test]
fn a_rule_for_users_asks_for_one_only_when_all_else_matches() {
    let rules = AccessRules::new(&rules_for_users()).unwrap();
    for line in USERS.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [user, address, host, expected] = words[..] else {
            panic!("{line}");
        };
        let (host, address) = (Host::parse(host).unwrap(), address.parse().unwrap());
        let is_private = matches!(address, IpAddr::V4(v4) if v4.is_private());
        let request = AccessRequest {
            user: match user {
                "?" => RequestUser::Unknown,
                "-" => RequestUser::Unknowable,
                name => RequestUser::Known(name),
            },
            method: "GET",
            host: &host,
            port: 443,
        };
        let client = rules.client(address, is_private);
        let timed = rules.at(WeekMinute::of_local(MONDAY));
        let decided = rules.decide(&client, &timed, &request, |_, _| false);
        let said = match decided {
            Err(UserNeeded { .. }) => "ask".to_owned(),
            Ok(Decision {
                rule: Some(rule), ..
            }) => (rule + 1).to_string(),
            Ok(Decision {
                action: AccessAction::Allow,
                ..
            }) => "a".to_owned(),
            Ok(_) => "d".to_owned(),
        };
        assert_eq!(said, expected, "{line}");
    }
}

#[test]
fn a_rule_about_another_method_or_time_may_need_the_user_too() {
    let rule = AccessRule::from_action;
    let staff = || Some(vec!["anna".to_owned()]);
    let rules = vec![
        AccessRule {
            conditions: AccessConditions {
                methods: methods(&["CONNECT"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                users: staff(),
                destinations: destinations(&["post.example"]),
                methods: methods(&["POST"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                users: staff(),
                destinations: destinations(&["night.example"]),
                times: times("22:00-06:00"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
        AccessRule {
            conditions: AccessConditions {
                destinations: destinations(&["open.example"]),
                ..AccessConditions::default()
            },
            ..rule(AccessAction::Allow)
        },
        AccessRule {
            conditions: AccessConditions {
                users: staff(),
                clients: clients(&["staff"]),
                ports: ports("443"),
                ..AccessConditions::default()
            },
            ..rule(DENY)
        },
    ];
    let rules = AccessRules::new(&settings(rules)).unwrap();
    for (client, host, port, needed) in [
        ("10.2.0.5", "post.example", 443, true),
        ("10.1.0.5", "post.example.", 80, true),
        ("10.1.0.5", "night.example", 443, true),
        ("10.2.0.5", "open.example", 443, false),
        ("10.2.0.5", "any.example", 443, true),
        ("10.2.0.5", "any.example", 80, false),
        ("10.1.0.5", "any.example", 443, false),
    ] {
        let client = rules.client(client.parse().unwrap(), true);
        let there = Host::parse(host).unwrap();
        let may_need = rules.may_need_user(&client, (&there, port), |_, _| false);
        assert_eq!(may_need, needed, "{host}:{port}");
    }
}

#[test]
fn a_rule_with_a_group_that_there_is_not_is_refused() {
    let mut settings = rules_for_users();
    settings.groups.clear();
    let faults = AccessRules::new(&settings).unwrap_err();
    assert_eq!(faults.len(), 3);
    assert_eq!(
        faults[0].error.to_string(),
        "there is no group called `teachers`"
    );
}

#[test]
fn rules_name_the_limits_of_their_requests() {
    let limited = |names: &[&str], action| AccessRule {
        limits: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..AccessRule::from_action(action)
    };
    let written = AccessSettings {
        limits: vec!["day".into(), "video".into(), "calm".into()],
        ..settings(vec![
            AccessRule {
                conditions: AccessConditions {
                    destinations: destinations(&[".video.example"]),
                    ..AccessConditions::default()
                },
                ..limited(&["video", "day"], AccessAction::Limit)
            },
            AccessRule {
                conditions: AccessConditions {
                    users: Some(vec!["anna".into()]),
                    ..AccessConditions::default()
                },
                ..limited(&["calm"], AccessAction::Tunnel)
            },
            AccessRule {
                conditions: AccessConditions {
                    clients: clients(&["10.9.0.0/16"]),
                    ..AccessConditions::default()
                },
                ..limited(&["calm"], AccessAction::NoCache)
            },
            limited(&["day"], AccessAction::Limit),
        ])
    };
    let rules = AccessRules::new(&written).unwrap();
    let masks: Vec<u64> = (0..4).map(|rule| rules.limits(rule)).collect();
    assert_eq!(masks, [0b011, 0b100, 0b100, 0b001]);
    let of = |address: &str, user| {
        let client = rules.client(address.parse().unwrap(), true);
        rules.limits_of(&client, user)
    };
    assert_eq!(of("10.1.0.1", RequestUser::Unknowable), 0b011);
    assert_eq!(of("10.1.0.1", RequestUser::Known("anna")), 0b111);
    assert_eq!(of("10.9.0.1", RequestUser::Known("bert")), 0b111);
}

#[test]
fn limits_that_there_are_not_and_limits_out_of_place_are_refused() {
    let limited = |names: &[&str], action| AccessRule {
        conditions: AccessConditions {
            destinations: destinations(&["a.example"]),
            ..AccessConditions::default()
        },
        limits: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..AccessRule::from_action(action)
    };
    let unlimited = AccessRule {
        limits: None,
        ..limited(&[], AccessAction::Limit)
    };
    let found = faults(vec![
        limited(&["dai"], AccessAction::Limit),
        unlimited,
        limited(&["dai"], DENY),
        limited(&[], AccessAction::Tunnel),
    ]);
    let said: Vec<(usize, &str)> = found.iter().map(|(at, text)| (*at, &**text)).collect();
    assert_eq!(
        said,
        [
            (0, "there is no limit called `dai`"),
            (1, "`limits` must name a limit"),
            (
                2,
                "`limits` goes with the actions `limit`, `tunnel` and `no-cache`"
            ),
            (2, "there is no limit called `dai`"),
            (3, "`limits` must name a limit"),
        ]
    );
}
