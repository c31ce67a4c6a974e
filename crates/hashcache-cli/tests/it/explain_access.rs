//! The output of `hashcache explain` about access rules, compared with the behaviour of the same
//! proxy.

use std::net::IpAddr;

use hashcache_testkit::{Client, Origin, Script};

use super::Home;
use super::explain::explain;
use super::operation::Running;
use super::proxy_intercept::authority;
use super::proxy_users::{ANNA, BERT, USERS};

const CONFIG: &str = "--config=h.toml";
const RULES: &str = "
    htpasswd = [\"users\"]
    login_networks = [\"127.0.0.0/30\"]
    contact = \"Ms Abara\"
    [networks]
    pupils = [\"127.0.0.2\"]
    [[group]]
    name = \"staff\"
    users = [\"anna\"]
    [[list]]
    name = \"games\"
    files = [\"games\"]
    [[access]]
    name = \"no games\"
    action = \"deny\"
    clients = [\"pupils\"]
    lists = [\"games\"]
    reason = \"Not now.\"
    [[access]]
    action = \"deny\"
    methods = [\"DELETE\"]
    [[access]]
    action = \"deny\"
    clients = [\"127.0.0.3\", \"127.0.0.4\"]
    groups = [\"staff\"]
    [[access]]
    action = \"no-cache\"
    destinations = [\"live.localhost\"]
    [[access]]
    name = \"lessons\"
    action = \"deny\"
    clients = [\"pupils\"]
    times = [\"Mon 08:00-09:00\"]
    destinations = [\"lessons.localhost\"]
    [[access]]
    action = \"limit\"
    destinations = [\"films.localhost\"]
    limits = [\"films\"]
    [[limit]]
    name = \"films\"
    per = \"client\"
    bandwidth = \"1MiB\"
";

fn start(home: &Home) -> Running {
    home.file("users", USERS);
    home.file("games", "games.localhost\n");
    home.file("h.toml", RULES);
    Running::start(home, &[CONFIG])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rule_that_is_named_is_the_rule_that_decides() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[], "page"));
    let origin = origin.await.unwrap();
    let proxy = start(&home);
    let (pupil, staff, far) = ("127.0.0.2", "127.0.0.3", "127.0.0.4");
    let (anna, bert) = (Some(("anna", ANNA)), Some(("bert", BERT)));
    // Host, client, user, method; the number of the rule, if one decides; the status.
    let rows = [
        ("games.localhost", "127.0.0.1", None, "GET", None, 200),
        ("games.localhost", pupil, None, "GET", Some(1), 403),
        ("www.games.localhost", pupil, None, "GET", Some(1), 403),
        ("games.localhost", pupil, None, "DELETE", Some(1), 403),
        ("a.localhost", pupil, None, "GET", None, 200),
        ("a.localhost", pupil, anna, "GET", None, 200),
        ("a.localhost", pupil, None, "DELETE", Some(2), 403),
        ("a.localhost", staff, None, "DELETE", Some(2), 403),
        ("a.localhost", staff, None, "GET", Some(3), 407),
        ("a.localhost", staff, anna, "GET", Some(3), 403),
        ("a.localhost", staff, bert, "GET", None, 200),
        ("live.localhost", staff, bert, "GET", Some(4), 200),
        ("live.localhost", pupil, None, "GET", Some(4), 200),
        // Nobody is asked for a password in its network, so the rule refuses whoever it may be.
        ("a.localhost", far, None, "GET", Some(3), 403),
        ("a.localhost", far, bert, "GET", Some(3), 403),
    ];
    for (host, client, user, method, rule, status) in rows {
        let row = format!("{host} {client} {user:?} {method}");
        let url = format!("http://{host}:{}/", origin.address().port());
        let (from, by) = (format!("--client={client}"), format!("--method={method}"));
        let user_flag = user.map(|(name, _)| format!("--user={name}"));
        let flags: Vec<&str> = [url.as_str(), &from, &by]
            .into_iter()
            .chain(user_flag.as_deref())
            .collect();
        let (answer, told) = explain(&home, proxy.admin, &flags);
        let checks = answer["access"]["checks"].as_array().unwrap();
        let mut numbers = checks
            .iter()
            .filter_map(|check| check["rule"]["number"].as_u64());
        assert_eq!(numbers.next_back(), rule, "{row}: {answer}");
        let refused = answer["access"]["allowed"] == false;
        assert_eq!(refused, status != 200, "{row}: {told}");
        assert_eq!(
            told.contains("login-needed"),
            status == 407,
            "{row}: {told}"
        );

        let from = client.parse::<IpAddr>().unwrap();
        let mut asking = Client::connect_from(from, proxy.listen).await.unwrap();
        let field = user.map(|(_, login)| ("Proxy-Authorization", login));
        asking
            .request(method, &url, field.as_slice())
            .await
            .unwrap();
        let got = asking.read_response(method).await.unwrap();
        assert_eq!(got.status, status, "{row}: {told}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn number_text_reason_contact_and_time_are_told() {
    let home = Home::new();
    let proxy = start(&home);
    let pupil = "--client=127.0.0.2";
    let (answer, told) = explain(&home, proxy.admin, &["http://games.localhost/", pupil]);
    let rule = &answer["access"]["checks"][0]["rule"];
    assert_eq!(
        (&rule["number"], &rule["name"], &rule["action"]),
        (&1.into(), &"no games".into(), &"deny".into()),
        "{answer}"
    );
    for part in [
        "refused (rule-denied): rule 1 (\"no games\") denies it",
        "h.toml:13: action = \"deny\", clients = [\"pupils\"], lists = [\"games\"]",
        "reason: Not now.",
        "to ask: Ms Abara",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Noon of Monday, 30 November 2026, in UTC; on local clocks it may be another hour.
    let noon = 1_796_040_000_i64;
    let url = "http://lessons.localhost/";
    let access_at = |at: i64| {
        let at = format!("--at={at}");
        let (answer, _) = explain(&home, proxy.admin, &[url, pupil, &at]);
        answer["access"].clone()
    };
    let local = access_at(noon)["local_time"].as_str().unwrap().to_owned();
    let (day, time) = local.split_once(' ').unwrap();
    let hour: i64 = time[..2].parse().unwrap();
    let eight = noon + 3600 * (8 - hour - if day == "Tue" { 24 } else { 0 });
    for (at, allowed) in [(eight - 3600, true), (eight, false), (eight + 3600, true)] {
        assert_eq!(access_at(at)["allowed"], allowed, "{}", access_at(at));
    }

    let nobody = ["http://a.localhost/", "--client=127.0.0.3", "--user=carl"];
    let (answer, told) = explain(&home, proxy.admin, &nobody);
    assert!(told.contains("no file of `htpasswd` has carl"), "{told}");
    assert_eq!(answer["access"]["checks"][0]["error"], "login-needed");
    let far = ["http://a.localhost/", "--client=203.0.113.9", "--user=anna"];
    let (answer, told) = explain(&home, proxy.admin, &far);
    assert_eq!(answer["access"]["allowed"], false, "{told}");
    assert!(
        told.contains("neither private nor in `allow_client`"),
        "{told}"
    );
    let (answer, told) = explain(&home, proxy.admin, &["http://films.localhost/"]);
    assert!(
        told.contains("rule 6 allows it, limited by films"),
        "{told}"
    );
    let rule = &answer["access"]["checks"][0]["rule"];
    assert_eq!(
        (&rule["number"], &rule["limits"][0]),
        (&6.into(), &"films".into()),
        "{answer}"
    );
    let (answer, _) = explain(&home, proxy.admin, &["http://live.localhost/"]);
    assert_eq!(answer["store"]["state"], "bypass", "{answer}");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_about_is_said() {
    let home = Home::new();
    let proxy = start(&home);
    let admin = format!("--admin={}", proxy.admin);
    for (arguments, said) in [
        (&["mailto:anna@a.test"][..], "begins with a scheme"),
        (&["ws://a.test/"], "scheme is neither http nor https"),
        (&["a.test"], "`a.test`: a URL begins with a scheme"),
        (&["http://a.test/", "--client=pupils"], "no IP address"),
        (
            &["http://a.test/", "--at=tomorrow"],
            "`tomorrow` is no time",
        ),
        (&["http:///x"], "http:///x"),
    ] {
        let own = ["explain", "--config=/dev/null", &admin];
        let outcome = home.hashcache(&[&own[..], arguments].concat(), &[]);
        assert_eq!(outcome.status, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(said), "{arguments:?}: {outcome:?}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_are_asked_about_the_connect_and_about_the_request_inside() {
    let home = Home::new();
    drop(authority(&home, &[]));
    home.file("users", USERS);
    let rules = "
        htpasswd = [\"users\"]
        [[access]]
        action = \"tunnel\"
        destinations = [\"bank.test\"]
        [[access]]
        action = \"deny\"
        methods = [\"DELETE\"]
        [[access]]
        action = \"deny\"
        destinations = [\"staff.test\"]
        users = [\"bert\"]
        methods = [\"GET\"]
    ";
    home.file("h.toml", rules);
    let hosts = ["bank.test", "a.test", "staff.test"].map(|host| format!("--intercept={host}"));
    let mut flags = vec![CONFIG, "--intercept-ca=ca"];
    flags.extend(hosts.iter().map(String::as_str));
    let proxy = Running::start(&home, &flags);
    // URL, flags; interception, outcome.
    for (arguments, interception, outcome) in [
        (
            &["https://bank.test/"][..],
            "tunnel",
            "passed on in a tunnel",
        ),
        (
            &["https://a.test/"],
            "intercept",
            "fetched from the next hop",
        ),
        (&["https://other.test/"], "tunnel", "passed on in a tunnel"),
        (
            &["https://a.test/", "--method=DELETE"],
            "intercept",
            "refused (rule-denied): rule 2 denies it",
        ),
        // The CONNECT is asked for the login, because a request inside cannot be.
        (
            &["https://staff.test/"],
            "intercept",
            "refused (login-needed): requests inside the connection may need the user",
        ),
        (
            &["https://staff.test/", "--user=bert"],
            "intercept",
            "refused (rule-denied): rule 3 denies it",
        ),
        (
            &["https://staff.test/", "--user=anna"],
            "intercept",
            "fetched from the next hop",
        ),
    ] {
        let (answer, told) = explain(&home, proxy.admin, arguments);
        let decision = &answer["interception"]["decision"];
        assert_eq!(decision, interception, "{arguments:?}: {told}");
        let happens = answer["outcome"].as_str().unwrap();
        assert!(happens.starts_with(outcome), "{arguments:?}: {told}");
    }
    proxy.end();
}
