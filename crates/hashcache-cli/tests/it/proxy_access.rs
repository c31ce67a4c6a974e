//! Access rules through the real proxy: on every way on which a request can be answered.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::IpAddr;

use hashcache_testkit::{Client, Origin, Response, Script};
use rustix::process::Signal;

use crate::explain::explain;
use crate::operation::{Running, told};
use crate::{Home, Outcome};

const CONFIG: &str = "--config=h.toml";
/// All of 127.0.0.0/8 is this machine, so each address is another client.
const PUPIL: [u8; 4] = [127, 0, 0, 2];
const STAFF: [u8; 4] = [127, 0, 0, 3];

async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=600")];
    Origin::start(move |_| Script::response(200, &fields, "page"))
        .await
        .unwrap()
}

async fn client(proxy: &Running, from: [u8; 4]) -> Client {
    Client::connect_from(IpAddr::from(from), proxy.listen)
        .await
        .unwrap()
}

async fn get(proxy: &Running, from: [u8; 4], url: &str) -> Response {
    client(proxy, from).await.get(url, &[]).await.unwrap()
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_gets_a_page_that_names_rule_reason_and_contact() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        contact = \"Ms <Abara>\"
        [networks]
        pupils = [\"127.0.0.2\"]
        [[access]]
        name = \"no games\"
        action = \"deny\"
        clients = [\"pupils\"]
        destinations = [\"127.0.0.0/8\"]
        reason = \"Not now.\"";
    home.file("h.toml", config);
    let proxy = Running::start(&home, &[CONFIG]);
    let url = origin.url("/a");
    // For another client it becomes a hit in memory, which is no way around the rule.
    for _ in 0..3 {
        assert_eq!(get(&proxy, STAFF, &url).await.status, 200);
    }
    let page = get(&proxy, PUPIL, &url).await;
    assert_eq!(page.status, 403);
    let said = text(&page);
    for part in [
        "no games",
        "Not now.",
        "ask Ms <Abara>",
        "403 (rule-denied)",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(
        page.field("Proxy-Status")
            .unwrap()
            .contains("http_request_denied")
    );
    let accept = [("Accept", "text/html")];
    let page = client(&proxy, PUPIL)
        .await
        .get(&url, &accept)
        .await
        .unwrap();
    assert!(
        text(&page).contains("ask Ms &lt;Abara&gt;"),
        "{}",
        text(&page)
    );
    let mut asking = client(&proxy, PUPIL).await;
    asking
        .request("CONNECT", "127.0.0.1:443", &[])
        .await
        .unwrap();
    let connect = asking.read_response("CONNECT").await.unwrap();
    assert_eq!(connect.status, 403);
    assert!(
        connect
            .field("Content-Type")
            .unwrap()
            .starts_with("text/plain")
    );
    // The pages of the proxy itself are for all that it serves.
    let own = format!("http://{}/proxy.pac", proxy.listen);
    assert_eq!(get(&proxy, PUPIL, &own).await.status, 200);
    assert_eq!(origin.request_count(), 1);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_decides_about_the_next_request_of_a_connection_that_is_kept() {
    let (home, origin) = (Home::new(), origin().await);
    let config = home.file("h.toml", "");
    let mut proxy = Running::start(&home, &[CONFIG]);
    let url = origin.url("/a");
    let mut kept = client(&proxy, PUPIL).await;
    for _ in 0..3 {
        assert_eq!(kept.get(&url, &[]).await.unwrap().status, 200);
    }
    fs::write(
        &config,
        "[[access]]\naction = \"deny\"\nclients = [\"127.0.0.2\"]\n",
    )
    .unwrap();
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    let page = kept.get(&url, &[]).await.unwrap();
    assert_eq!(page.status, 403);
    assert!(text(&page).contains("rule 1"), "{}", text(&page));
    assert_eq!(get(&proxy, STAFF, &url).await.status, 200);
    // A rule without other conditions refuses the client as a whole.
    let own = format!("http://{}/", proxy.listen);
    assert_eq!(get(&proxy, PUPIL, &own).await.status, 403);
    fs::write(
        &config,
        "[[access]]\naction = \"deny\"\nclients = [\"pupils\"]\n",
    )
    .unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.says("configuration not reloaded");
    assert!(
        line.contains("h.toml:1: access: there is no network called `pupils`"),
        "{line}"
    );
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 403);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_leaves_requests_to_the_rules_behind_it() {
    let (home, origin) = (Home::new(), origin().await);
    let port = origin.address().port();
    let config = home.file(
        "h.toml",
        &format!(
            "[[access]]
            name = \"exam\"
            action = \"deny\"
            clients = [\"127.0.0.2\"]
            except = [
                {{ destinations = [\"learn.localhost\"] }},
                {{ destinations = [\"mail.localhost\"], ports = [{port}], methods = [\"GET\"] }},
            ]
            [[access]]
            name = \"no mail\"
            action = \"deny\"
            destinations = [\"mail.localhost\"]
            except = {{ clients = [\"127.0.0.2\"] }}"
        ),
    );
    let mut proxy = Running::start(&home, &[CONFIG]);
    let url = |host: &str| format!("http://{host}.localhost:{port}/a");
    for (host, client, status) in [
        ("learn", PUPIL, 200),
        ("mail", PUPIL, 200),
        ("www", PUPIL, 403),
        ("learn", STAFF, 200),
        ("mail", STAFF, 403),
        ("www", STAFF, 200),
    ] {
        // The second time a stored response is there.
        for _ in 0..3 {
            let page = get(&proxy, client, &url(host)).await;
            assert_eq!(page.status, status, "{host} for {client:?}");
        }
    }
    let mut connecting = client(&proxy, PUPIL).await;
    let mail = format!("mail.localhost:{port}");
    connecting.request("CONNECT", &mail, &[]).await.unwrap();
    let connect = connecting.read_response("CONNECT").await.unwrap();
    assert_eq!(connect.status, 403);
    for (host, by) in [
        ("www", "rule 1 (\"exam\") denies it"),
        ("learn", "no access rule matches"),
    ] {
        let (_, told) = explain(&home, proxy.admin, &[&url(host), "--client=127.0.0.2"]);
        assert!(told.contains(by), "{told}");
    }
    let wrong = "[[access]]\naction = \"deny\"\nexcept = [\n  { ports = [80] },\n  \
                 { clients = [\"pupils\"] },\n]\n";
    fs::write(&config, wrong).unwrap();
    proxy.signal(Signal::HUP);
    let line = proxy.says("configuration not reloaded");
    let fault = "h.toml:5: access: except: there is no network called `pupils`";
    assert!(line.contains(fault), "{line}");
    fs::write(
        &config,
        "[[access]]\naction = \"deny\"\nexcept = { ports = [1] }\n",
    )
    .unwrap();
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    assert_eq!(get(&proxy, PUPIL, &url("learn")).await.status, 403);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn private_networks_can_be_taken_away_and_nobody_else_comes_in() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        [[access]]
        action = \"allow\"
        clients = [\"127.0.0.3\"]
        [[access]]
        action = \"deny\"";
    home.file("h.toml", config);
    let proxy = Running::start(&home, &[CONFIG]);
    let url = origin.url("/a");
    assert_eq!(get(&proxy, STAFF, &url).await.status, 200);
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 403);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_cache_neither_looks_up_nor_stores() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        [[access]]
        action = \"no-cache\"
        clients = [\"127.0.0.2\"]";
    home.file("h.toml", config);
    let proxy = Running::start(&home, &[CONFIG]);
    let url = origin.url("/a");
    for count in [1, 2] {
        let page = get(&proxy, PUPIL, &url).await;
        assert_eq!((page.status, origin.request_count()), (200, count));
        let status = page.field("Cache-Status").unwrap();
        assert!(
            status.contains("fwd=bypass") && !status.contains("stored"),
            "{status}"
        );
    }
    for _ in 0..3 {
        assert_eq!(get(&proxy, STAFF, &url).await.status, 200);
    }
    assert_eq!(origin.request_count(), 3);
    get(&proxy, PUPIL, &url).await;
    assert_eq!(origin.request_count(), 4);
    // Nothing stored may answer, and the client wants nothing else.
    let only = [("Cache-Control", "only-if-cached")];
    let page = client(&proxy, PUPIL).await.get(&url, &only).await.unwrap();
    assert_eq!((page.status, origin.request_count()), (504, 4));
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_judged_by_its_registry() {
    let (home, origin) = (Home::new(), origin().await);
    let port = origin.address().port();
    let config = format!(
        "mirror = [\"npm=http://127.0.0.1:{port}/\"]
        [[access]]
        action = \"deny\"
        clients = [\"127.0.0.2\"]
        ports = [{port}]"
    );
    home.file("h.toml", &config);
    let proxy = Running::start(&home, &[CONFIG]);
    let url = format!("http://{}/mirror/npm/left-pad", proxy.listen);
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 403);
    assert_ne!(get(&proxy, STAFF, &url).await.status, 403);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_decides_by_its_names_and_a_reload_reads_it_again() {
    let (home, origin) = (Home::new(), origin().await);
    let config = "
        [[list]]
        name = \"ads\"
        files = [\"ads\"]
        [[access]]
        action = \"deny\"
        lists = [\"ads\"]";
    home.file("h.toml", config);
    let list = home.file("ads", "127.0.0.1\n|| nonsense\n");
    let mut proxy = Running::start(&home, &[CONFIG]);
    let line = proxy.says("lines of a list are no entries");
    assert!(
        line.contains("count=1") && line.contains("first=\"2\""),
        "{line}"
    );
    let url = origin.url("/a");
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 403);
    fs::write(&list, "127.0.0.9\nother.example\n").unwrap();
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 200);
    fs::remove_file(&list).unwrap();
    proxy.signal(Signal::HUP);
    proxy.says("list not read again, the old one stays in effect");
    proxy.says("configuration reloaded");
    assert_eq!(get(&proxy, PUPIL, &url).await.status, 200);
    // An operator who reloads hears of it again.
    proxy.signal(Signal::HUP);
    let said = proxy.says_up_to("configuration reloaded");
    assert!(said.contains("list not read again"), "{said}");
    proxy.end();
    // At a start there is no old one.
    let refused = refused_with(&home);
    let (what, hint) = told(&refused);
    assert!(what.contains("cannot read ads of the list `ads`"), "{what}");
    assert!(hint.contains("must be able to read"), "{hint}");
}

#[test]
fn a_list_that_looks_broken_at_the_start_is_warned_about() {
    let home = Home::new();
    let config = "
        [[list]]
        name = \"ads\"
        files = [\"good\", \"empty\", \"page\"]
        [[access]]
        action = \"deny\"
        lists = [\"ads\"]";
    home.file("h.toml", config);
    home.file("good", "a.example\n");
    home.file("empty", "");
    home.file("page", "<html>\n<p>\nexample\n");
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    let expected = "\
warning: empty of the list `ads` looks broken: it has 0 entries, and 0 lines that are none
warning: page of the list `ads` looks broken: it has 1 entries, and 2 lines that are none
";
    assert_eq!(checked.stderr, expected);
    let mut proxy = Running::start(&home, &[CONFIG]);
    for file in ["empty", "page"] {
        let line = proxy.says("a file of a list looks broken");
        assert!(line.contains(&format!("file={file} ")), "{line}");
    }
    proxy.end();
}

fn refused_with(home: &Home) -> Outcome {
    let outcome = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_eq!(outcome.status, Some(1), "{outcome:?}");
    outcome
}

#[test]
fn wrong_rules_are_refused_with_their_lines() {
    let home = Home::new();
    let config = "
[[access]]
action = \"deny\"

[[access]]
action = \"allow\"
clients = [\"198.51.100.0/24\"]
";
    home.file("h.toml", config);
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_eq!(checked.status, Some(1), "{checked:?}");
    let (what, hint) = told(&checked);
    let expected = "hashcache: h.toml:5: access: the rule can never match: `rule 1` before it has \
                    no conditions";
    assert_eq!(what, expected);
    assert!(hint.contains("move this one up"), "{hint}");
    home.file(
        "h.toml",
        "accelerate = \"http://127.0.0.1:1\"\n[[access]]\naction = \"deny\"\n",
    );
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert!(
        told(&checked).0.contains("only in a forward proxy"),
        "{checked:?}"
    );
}

#[test]
fn a_check_warns_of_rules_that_most_likely_say_something_else() {
    let home = Home::new();
    let hash = "$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.";
    home.file(
        "users",
        &format!("anna:{hash}\nbert:{}\n", hash.replace("$04$", "$10$")),
    );
    let config = "
        htpasswd = [\"users\"]
        [[group]]
        name = \"staff\"
        users = [\"anna\", \"ana\", \"bret\"]
        [[access]]
        action = \"allow\"
        groups = [\"staff\"]";
    home.file("h.toml", config);
    let checked = home.hashcache(&["config", "check", "h.toml"], &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    let expected = "\
warning: access rules name users that no file of `htpasswd` has: `ana`, `bret`
warning: 1 passwords have a bcrypt cost below 10: use `htpasswd -B -C 10`
";
    assert_eq!(checked.stderr, expected);
    // A file with a wrong line is an error, and nobody in it is missed.
    home.file("users", "anna\n");
    let refused = refused_with(&home).stderr;
    assert!(
        refused.contains("users:1: there is no `user:hash`"),
        "{refused}"
    );
    assert!(!refused.contains("warning"), "{refused}");
}
