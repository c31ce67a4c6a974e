//! Tests of `except`.

use super::tests::{MONDAY, clients, destinations, methods, ports, settings, times};
use super::*;
use crate::{ListFormat, ListSettings, RuleClients};

const DENY: AccessAction = AccessAction::Deny;
const ALLOW: AccessAction = AccessAction::Allow;

fn given() -> AccessConditions {
    AccessConditions::default()
}

fn rule(
    action: AccessAction,
    conditions: AccessConditions,
    except: Vec<AccessConditions>,
) -> AccessRule {
    AccessRule {
        conditions,
        except,
        ..AccessRule::from_action(action)
    }
}

fn of_clients(names: &[&str]) -> AccessConditions {
    AccessConditions {
        clients: clients(names),
        ..given()
    }
}

fn of_hosts(texts: &[&str]) -> AccessConditions {
    AccessConditions {
        destinations: destinations(texts),
        ..given()
    }
}

fn of_users(names: &[&str]) -> AccessConditions {
    AccessConditions {
        users: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..given()
    }
}

fn compiled(rules: Vec<AccessRule>) -> AccessRules {
    AccessRules::new(&settings(rules)).unwrap()
}

/// The deciding rule as people count: `a` or `d` is the decision without one, `ask` means that the
/// client must log in first.
fn decided(
    rules: &AccessRules,
    asked: (&str, RequestUser<'_>, &str, &str, u16),
    minute: i64,
) -> String {
    let (address, user, method, host, port) = asked;
    let address: IpAddr = address.parse().unwrap();
    let is_private = matches!(address, IpAddr::V4(v4) if v4.is_private());
    let host = Host::parse(host).unwrap();
    let request = AccessRequest {
        user,
        method,
        host: &host,
        port,
    };
    let client = rules.client(address, is_private);
    let timed = rules.at(WeekMinute::of_local(minute));
    match rules.decide(&client, &timed, &request, |_, _| false) {
        Err(UserNeeded { .. }) => "ask".to_owned(),
        Ok(Decision {
            rule: Some(rule), ..
        }) => (rule + 1).to_string(),
        Ok(Decision { action: ALLOW, .. }) => "a".to_owned(),
        Ok(_) => "d".to_owned(),
    }
}

#[test]
fn a_request_that_meets_one_exception_is_left_to_the_next_rules() {
    let rules = compiled(vec![
        rule(
            DENY,
            of_clients(&["pupils"]),
            vec![
                of_hosts(&[".learn.example"]),
                AccessConditions {
                    methods: methods(&["CONNECT"]),
                    ports: ports("443"),
                    times: times("Mon 16:00-18:00"),
                    ..given()
                },
            ],
        ),
        rule(
            ALLOW,
            of_clients(&["road", "pupils"]),
            vec![of_clients(&["203.0.113.64/26"]), of_hosts(&["no.example"])],
        ),
        rule(AccessAction::NoCache, given(), vec![of_clients(&["staff"])]),
    ]);
    let afternoon = MONDAY + 17 * 3600;
    for (address, method, host, port, at, expected) in [
        ("10.1.0.5", "GET", "www.example", 80, MONDAY, "1"),
        ("10.1.0.5", "GET", "a.learn.example", 80, MONDAY, "2"),
        ("10.1.0.5", "CONNECT", "www.example", 443, MONDAY, "1"),
        ("10.1.0.5", "CONNECT", "www.example", 443, afternoon, "2"),
        ("10.1.0.5", "CONNECT", "www.example", 444, afternoon, "1"),
        ("10.1.0.5", "GET", "www.example", 443, afternoon, "1"),
        ("203.0.113.9", "GET", "www.example", 80, MONDAY, "2"),
        ("203.0.113.70", "GET", "www.example", 80, MONDAY, "d"),
        ("203.0.113.9", "GET", "no.example", 80, MONDAY, "d"),
        ("10.1.0.5", "CONNECT", "no.example", 443, afternoon, "3"),
        ("10.2.0.5", "GET", "www.example", 80, MONDAY, "a"),
        ("10.3.0.5", "GET", "www.example", 80, MONDAY, "3"),
    ] {
        let asked = (address, RequestUser::Unknowable, method, host, port);
        assert_eq!(decided(&rules, asked, at), expected, "{asked:?} {at}");
    }
}

#[test]
fn an_address_that_may_embed_another_one_is_denied_in_doubt() {
    let rules = compiled(vec![
        rule(
            DENY,
            of_clients(&["pupils"]),
            vec![of_hosts(&["192.0.2.0/24"])],
        ),
        rule(
            ALLOW,
            of_clients(&["road"]),
            vec![of_hosts(&["192.0.2.0/24"])],
        ),
    ]);
    for (host, pupil, road) in [
        ("192.0.2.9", "a", "d"),
        ("[::ffff:192.0.2.9]", "a", "d"),
        ("[64:ff9b::192.0.2.9]", "a", "d"),
        ("[2002:c000:209::1]", "1", "d"),
        ("[2001:db8::5efe:192.0.2.9]", "1", "d"),
        ("198.51.100.1", "1", "2"),
    ] {
        for (address, expected) in [("10.1.0.5", pupil), ("203.0.113.9", road)] {
            let asked = (address, RequestUser::Unknowable, "GET", host, 80);
            assert_eq!(decided(&rules, asked, MONDAY), expected, "{asked:?}");
        }
    }
}

#[test]
fn a_client_is_asked_for_a_login_only_if_an_exception_depends_on_it() {
    let rules = compiled(vec![
        rule(
            DENY,
            of_hosts(&["video.example"]),
            vec![of_users(&["anna"]), of_clients(&["staff"])],
        ),
        rule(ALLOW, of_clients(&["road"]), vec![of_users(&["bert"])]),
        rule(
            DENY,
            AccessConditions {
                destinations: destinations(&["exam.example"]),
                ..of_users(&["anna", "bert"])
            },
            vec![of_users(&["anna"])],
        ),
    ]);
    let user = |word| match word {
        "?" => RequestUser::Unknown,
        "-" => RequestUser::Unknowable,
        name => RequestUser::Known(name),
    };
    for (name, address, host, expected) in [
        ("anna", "10.1.0.5", "video.example", "a"),
        ("bert", "10.1.0.5", "video.example", "1"),
        ("?", "10.1.0.5", "video.example", "ask"),
        ("-", "10.1.0.5", "video.example", "1"),
        ("?", "10.2.0.5", "video.example", "a"),
        ("-", "10.2.0.5", "video.example", "a"),
        ("?", "10.1.0.5", "www.example", "a"),
        ("anna", "203.0.113.9", "www.example", "2"),
        ("bert", "203.0.113.9", "www.example", "d"),
        ("?", "203.0.113.9", "www.example", "ask"),
        ("-", "203.0.113.9", "www.example", "d"),
        ("anna", "10.1.0.5", "exam.example", "a"),
        ("bert", "10.1.0.5", "exam.example", "3"),
        ("zoe", "10.1.0.5", "exam.example", "a"),
        ("?", "10.1.0.5", "exam.example", "ask"),
        ("-", "10.1.0.5", "exam.example", "3"),
    ] {
        let asked = (address, user(name), "GET", host, 80);
        assert_eq!(decided(&rules, asked, MONDAY), expected, "{asked:?}");
    }
    assert!(rules.needs_users());
    let mut names: Vec<&str> = rules.user_names().collect();
    names.sort_unstable();
    assert_eq!(names, ["anna", "bert"]);
}

#[test]
fn a_client_that_cannot_say_who_it_is_stays_within_the_limits_of_others() {
    let limited = AccessRule {
        limits: Some(vec!["day".to_owned()]),
        ..rule(AccessAction::Limit, given(), vec![of_users(&["anna"])])
    };
    let deny = rule(DENY, of_hosts(&["exam.example"]), vec![]);
    let tunnel = rule(AccessAction::Tunnel, of_hosts(&["bank.example"]), vec![]);
    let mut allow = rule(ALLOW, of_hosts(&["www.example"]), vec![]);
    allow.conditions.clients = clients(&["pupils"]);
    let settings = AccessSettings {
        limits: vec!["day".to_owned()],
        ..settings(vec![limited, deny, tunnel, allow])
    };
    let rules = AccessRules::new(&settings).unwrap();
    let unknowable = RequestUser::Unknowable;
    for (user, host, expected) in [
        (unknowable, "a.example", "1"),
        (unknowable, "www.example", "1"),
        (unknowable, "exam.example", "2"),
        (unknowable, "bank.example", "3"),
        (RequestUser::Known("anna"), "a.example", "a"),
        (RequestUser::Known("anna"), "www.example", "4"),
        (RequestUser::Known("bert"), "exam.example", "1"),
    ] {
        let asked = ("10.1.0.5", user, "GET", host, 80);
        assert_eq!(decided(&rules, asked, MONDAY), expected, "{asked:?}");
    }
}

#[test]
fn a_client_that_an_exception_may_serve_is_not_refused_as_a_whole() {
    let refusal = |rules: Vec<AccessRule>, address: [u8; 4]| {
        let rules = compiled(rules);
        let client = rules.client(IpAddr::from(address), true);
        rules.refusal(&client).map(|decision| decision.rule)
    };
    let (pupil, staff) = ([10, 1, 0, 1], [10, 2, 0, 1]);
    let of_staff = || vec![rule(DENY, given(), vec![of_clients(&["staff"])])];
    assert_eq!(refusal(of_staff(), pupil), Some(Some(0)));
    assert_eq!(refusal(of_staff(), staff), None);
    let of_host = || rule(DENY, given(), vec![of_hosts(&["a.example"])]);
    assert_eq!(refusal(vec![of_host()], pupil), None);
    let then_all = vec![of_host(), rule(DENY, given(), vec![])];
    assert_eq!(refusal(then_all, pupil), Some(Some(1)));
    // The rule that allows never does so for this client.
    let but_pupils = rule(
        ALLOW,
        AccessConditions {
            clients: Some(vec![RuleClients::All]),
            ..given()
        },
        vec![of_clients(&["pupils"])],
    );
    let rules = vec![but_pupils, rule(DENY, of_clients(&["pupils"]), vec![])];
    assert_eq!(refusal(rules.clone(), pupil), Some(Some(1)));
    assert_eq!(refusal(rules, staff), None);
}

#[test]
fn what_a_connect_must_know_of_later_requests_counts_exceptions() {
    let there = |host: &str| Host::parse(host).unwrap();
    let address = IpAddr::from([10, 1, 0, 1]);
    let may_need = |rules: Vec<AccessRule>, host: &str| {
        let rules = compiled(rules);
        rules.may_need_user(&rules.client(address, true), (&there(host), 443), |_, _| {
            false
        })
    };
    let for_anna = || rule(DENY, of_users(&["anna"]), vec![]);
    let but_anna = || rule(DENY, given(), vec![of_users(&["anna"])]);
    let but_a = || rule(ALLOW, given(), vec![of_hosts(&["a.example"])]);
    let but_posts = || {
        let posts = AccessConditions {
            methods: methods(&["POST"]),
            ..given()
        };
        rule(ALLOW, given(), vec![posts])
    };
    assert!(may_need(vec![but_anna()], "a.example"));
    // The first rule settles all requests to other hosts than a.example.
    assert!(may_need(vec![but_a(), for_anna()], "a.example"));
    assert!(!may_need(vec![but_a(), for_anna()], "b.example"));
    assert!(may_need(vec![but_posts(), for_anna()], "b.example"));
    let both = || {
        let except = vec![of_users(&["anna"]), of_hosts(&["a.example"])];
        vec![rule(DENY, given(), except)]
    };
    assert!(!may_need(both(), "a.example"));
    assert!(may_need(both(), "b.example"));

    let tunnel = |except| vec![rule(AccessAction::Tunnel, given(), except)];
    let may_be_tunnel = |rules: Vec<AccessRule>, host: &str| {
        let rules = compiled(rules);
        rules.may_be_tunnel(&rules.client(address, true), (&there(host), 443), |_, _| {
            false
        })
    };
    let of_a = || tunnel(vec![of_hosts(&["a.example"])]);
    assert!(!may_be_tunnel(of_a(), "a.example"));
    assert!(may_be_tunnel(of_a(), "b.example"));
    assert!(may_be_tunnel(
        tunnel(vec![of_users(&["anna"])]),
        "a.example"
    ));
    assert!(may_be_tunnel(
        tunnel(vec![AccessConditions {
            times: times("Mon"),
            ..of_hosts(&["a.example"])
        }]),
        "a.example"
    ));

    let judges = |rules: Vec<AccessRule>| {
        let rules = compiled(rules);
        rules.judge_hosts(&rules.client(address, true))
    };
    assert!(judges(vec![rule(
        DENY,
        given(),
        vec![of_hosts(&["a.example"])]
    )]));
    assert!(!judges(vec![rule(
        DENY,
        given(),
        vec![of_users(&["anna"])]
    )]));
}

#[test]
fn a_list_is_asked_once_for_a_rule_and_its_exceptions() {
    let of_list = |name: &str| AccessConditions {
        lists: Some(vec![name.to_owned()]),
        ..given()
    };
    let list = |name: &str| ListSettings {
        name: name.to_owned(),
        files: vec![],
        format: ListFormat::Auto,
    };
    let posts = AccessConditions {
        methods: methods(&["POST"]),
        ..of_list("good")
    };
    let rules = AccessRules::new(&AccessSettings {
        lists: vec![list("bad"), list("good")],
        ..settings(vec![
            rule(DENY, of_list("bad"), vec![of_list("good")]),
            rule(ALLOW, of_list("bad"), vec![posts]),
            rule(DENY, of_list("good"), vec![of_list("bad")]),
        ])
    });
    let rules = rules.unwrap();
    let client = rules.client(IpAddr::from([10, 0, 0, 1]), true);
    let timed = rules.at(WeekMinute::of_local(MONDAY));
    let host = Host::parse("a.example").unwrap();
    for (method, found, rule, asked) in [
        ("GET", [false, false], None, vec![0, 1]),
        ("GET", [true, false], Some(0), vec![0, 1]),
        ("GET", [true, true], Some(1), vec![0, 1]),
        ("POST", [true, true], None, vec![0, 1]),
        ("GET", [false, true], Some(2), vec![0, 1]),
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
        assert_eq!(
            (decision.unwrap().rule, log.into_inner()),
            (rule, asked),
            "{method} {found:?}"
        );
    }
}

fn faults(rules: Vec<AccessRule>) -> Vec<(usize, Option<usize>, String)> {
    let faults = AccessRules::new(&settings(rules)).err().unwrap_or_default();
    let faults = faults.into_iter();
    faults
        .map(|it| (it.rule, it.exception, it.error.to_string()))
        .collect()
}

#[test]
fn a_fault_of_an_exception_names_it() {
    let unknown = AccessConditions {
        lists: Some(vec!["ad".into()]),
        groups: Some(vec!["stuff".into()]),
        ..of_clients(&["pupil"])
    };
    let empty = AccessConditions {
        ports: Some(vec![]),
        ..given()
    };
    let allow = || rule(ALLOW, given(), vec![of_hosts(&["a.example"])]);
    assert_eq!(
        faults(vec![allow(), rule(DENY, given(), vec![empty, unknown])]),
        [
            (1, Some(0), "`ports` is empty, so it matches nothing".into()),
            (1, Some(1), "there is no group called `stuff`".into()),
            (1, Some(1), "there is no network called `pupil`".into()),
            (1, Some(1), "there is no list called `ad`".into()),
        ]
    );
    let all = "the rule can never match: the exception has all of its requests";
    for except in [given(), of_clients(&["pupils", "staff"])] {
        let staff = rule(DENY, of_clients(&["staff"]), vec![except]);
        assert_eq!(faults(vec![staff]), [(0, Some(0), all.into())]);
    }
    // Behind a rule with an exception, the next one matches.
    let rules = vec![
        rule(DENY, given(), vec![of_hosts(&["a.example"])]),
        rule(DENY, given(), vec![]),
    ];
    assert_eq!(faults(rules), []);
}

#[test]
fn exceptions_count_as_rules() {
    let exceptions = |count| vec![of_hosts(&["a.example"]); count];
    let most = RULES_MAX - 1;
    assert_eq!(faults(vec![rule(DENY, given(), exceptions(most))]), []);
    let too_many = faults(vec![rule(DENY, given(), exceptions(most + 1))]);
    assert_eq!(too_many[0].0, RULES_MAX);
}

/// Returns true if conditions hold for a request; `None`: that depends on the user.
fn holds(
    conditions: &AccessConditions,
    (client, user, method, host, port): (usize, RequestUser<'_>, &str, &str, u16),
) -> Option<bool> {
    let network = RuleClients::Network(format!("10.{client}.0.0/16").parse().unwrap());
    let others = [
        conditions.clients.as_ref().map(|it| it.contains(&network)),
        conditions.destinations.as_ref().map(|them| {
            let mut names = them.iter().map(ToString::to_string);
            names.any(|it| it == host)
        }),
        conditions.ports.as_ref().map(|it| it[0].contains(port)),
        conditions
            .methods
            .as_ref()
            .map(|it| it.iter().any(|it| it == method)),
    ];
    if others.contains(&Some(false)) {
        return Some(false);
    }
    match (&conditions.users, user) {
        (None, _) => Some(true),
        (Some(users), RequestUser::Known(name)) => Some(users.iter().any(|it| it == name)),
        (Some(_), _) => None,
    }
}

#[test]
fn the_decision_is_that_of_rules_looked_at_one_by_one() {
    let mut rng = fastrand::Rng::with_seed(34);
    let (hosts, names) = (["a.example", "b.example"], ["anna", "bert"]);
    let mut random = |is_rule: bool| {
        let mut given = AccessConditions::default();
        if is_rule || rng.bool() {
            let some: Vec<String> = (1..=3)
                .filter(|_| rng.u8(0..3) > 0)
                .map(|n| format!("10.{n}.0.0/16"))
                .collect();
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            given.clients = (!some.is_empty()).then(|| clients(&some)).flatten();
        }
        match rng.u8(0..8) {
            0 | 1 => given.destinations = destinations(&[hosts[rng.usize(..2)]]),
            2 => given.ports = ports("443"),
            3 => given.methods = methods(&["POST"]),
            4 | 5 => given.users = Some(vec![names[rng.usize(..2)].to_owned()]),
            _ => {}
        }
        given
    };
    let (mut counts, mut asks) = ([0; 3], 0);
    for _ in 0..2000 {
        let actions = [DENY, ALLOW, AccessAction::NoCache];
        let rules: Vec<AccessRule> = (0..4)
            .map(|at| {
                let except = (0..at % 3).map(|_| random(false)).collect();
                let mut conditions = random(true);
                // Without clients, a rule depends on its action.
                conditions.clients = conditions.clients.or_else(|| clients(&["10.1.0.0/16"]));
                rule(actions[at % 3], conditions, except)
            })
            .collect();
        let Ok(compiled) = AccessRules::new(&settings(rules.clone())) else {
            continue;
        };
        for number in 0..3 * 4 * 2 * 2 * 2 {
            let (client, user) = (1 + number % 3, number / 3 % 4);
            let user = match user {
                0 => RequestUser::Unknown,
                1 => RequestUser::Unknowable,
                user => RequestUser::Known(names[user - 2]),
            };
            let method = ["GET", "POST"][number / 12 % 2];
            let (host, port) = (hosts[number / 24 % 2], [80, 443][number / 48 % 2]);
            let asked = (client, user, method, host, port);
            let mut expected = "a".to_owned();
            for (at, rule) in rules.iter().enumerate() {
                let denies = rule.action == DENY;
                // In doubt a request is refused.
                let known = |held: Option<bool>, in_doubt| match (held, user) {
                    (None, RequestUser::Unknown) => None,
                    (held, _) => Some(held.unwrap_or(in_doubt)),
                };
                let own = known(holds(&rule.conditions, asked), denies);
                let except = rule
                    .except
                    .iter()
                    .map(|it| known(holds(it, asked), !denies));
                let except: Vec<Option<bool>> = except.collect();
                if own == Some(false) || except.contains(&Some(true)) {
                    continue;
                }
                expected = if own.is_none() || except.contains(&None) {
                    "ask".to_owned()
                } else {
                    (at + 1).to_string()
                };
                break;
            }
            let address = format!("10.{client}.0.1");
            let found = decided(&compiled, (&address, user, method, host, port), MONDAY);
            assert_eq!(found, expected, "{asked:?} of {rules:#?}");
            asks += usize::from(found == "ask");
            counts[usize::from(found != "a") + usize::from(found == "1")] += 1;
        }
    }
    assert!(
        counts.iter().all(|it| *it > 5000) && asks > 2000,
        "{counts:?} {asks}"
    );
}
