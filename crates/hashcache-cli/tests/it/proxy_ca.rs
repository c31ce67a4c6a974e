//! The page `/ca` of the real proxy: what devices load from it, and how operators are warned before
//! the authority expires.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what these helpers do is part of the tests, and so is the time of this machine"
)]

use std::time::{Duration, SystemTime};

use hashcache_proxy::{CertificateAuthority, MakeOptions};
use hashcache_testkit::{Client, Response};

use crate::Home;
use crate::operation::Running;

const FLAGS: [&str; 3] = [
    "--config=/dev/null",
    "--intercept-ca=ca",
    "--intercept=a.test",
];

/// An authority in `ca` of this age.
fn authority(home: &Home, age: Duration) -> CertificateAuthority {
    let options = MakeOptions {
        name: "School".to_owned(),
        only: vec![],
        now: SystemTime::now() - age,
    };
    CertificateAuthority::make(&home.path().join("ca"), &options).unwrap()
}

async fn get(proxy: &Running, target: &str, accept: &str) -> Response {
    let mut client = Client::connect(proxy.listen).await.unwrap();
    let host = proxy.listen.to_string();
    let fields = [("Host", host.as_str()), ("Accept", accept)];
    client.get(target, &fields).await.unwrap()
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).unwrap()
}

#[tokio::test]
async fn devices_get_the_certificate_where_there_is_one_and_nowhere_else() {
    let home = Home::new();
    let authority = authority(&home, Duration::ZERO);
    let proxy = Running::start(&home, &FLAGS);
    let page = get(&proxy, "/ca", "text/html").await;
    assert_eq!(page.status, 200);
    assert!(text(&page).contains("Trust this cache"));
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'sha256-"), "{policy}");
    let door = get(&proxy, "/", "text/html").await;
    assert!(text(&door).contains("href=/ca"));
    // Also by the absolute URL, as a client of the proxy requests it.
    let whole = format!("http://{}/ca.crt", proxy.listen);
    for target in ["/ca.crt", &whole] {
        let certificate = get(&proxy, target, "*/*").await;
        assert_eq!(
            certificate.field("content-type"),
            Some("application/x-x509-ca-cert")
        );
        assert_eq!(certificate.body, authority.root_der());
    }
    assert_eq!(
        text(&get(&proxy, "/ca.pem", "*/*").await),
        authority.root_pem()
    );
    assert_eq!(get(&proxy, "/signer.pem", "*/*").await.status, 404);
    proxy.end();

    let proxy = Running::start(&home, &FLAGS[..1]);
    for target in ["/ca", "/ca.crt", "/ca.pem", "/ca.mobileconfig"] {
        assert_eq!(get(&proxy, target, "*/*").await.status, 404, "{target}");
    }
    assert!(!text(&get(&proxy, "/", "text/html").await).contains("/ca"));
    proxy.end();
}

#[tokio::test]
async fn in_the_clear_the_self_test_says_who_uses_the_proxy() {
    let home = Home::new();
    authority(&home, Duration::ZERO);
    let proxy = Running::start(&home, &FLAGS);
    let url = "http://trust-test.hashcache.internal/ok";
    let answer = get(&proxy, url, "*/*").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("access-control-allow-origin"), Some("*"));
    proxy.end();
    // Without an authority the proxy does not serve this host itself.
    let proxy = Running::start(&home, &FLAGS[..1]);
    assert_ne!(get(&proxy, url, "*/*").await.status, 200);
    proxy.end();
}

#[tokio::test]
async fn operators_are_told_of_the_end_of_the_authority() {
    const DAY: Duration = Duration::from_secs(86_400);
    const LIFE: Duration = Duration::from_secs(5 * 365 * 86_400);
    let metric = "hashcache_ca_expires_timestamp_seconds";
    for (age, said) in [
        (LIFE - 29 * DAY, "certificate authority expires soon"),
        (LIFE + DAY, "certificate authority has expired"),
    ] {
        let home = Home::new();
        let authority = authority(&home, age);
        let mut proxy = Running::start(&home, &FLAGS);
        proxy.says(said);
        let end = authority.not_after().duration_since(SystemTime::UNIX_EPOCH);
        let end = end.unwrap().as_secs().to_string();
        assert_eq!(proxy.figure(metric).await, end);
        proxy.end();
    }
}
