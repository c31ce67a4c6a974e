//! Collapsed forwarding: many clients and one fetch, through the real proxy.

use std::time::Duration;

use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::followers::{Cutting, Expiry, Part, Play};

use crate::Home;
use crate::proxy_process::Proxy;

fn start(home: &Home) -> (Proxy, Play) {
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    let play = Play {
        proxy: proxy.address(),
        pid: Some(proxy.pid()),
        memory_bytes: 64 << 20,
        clients: 20,
        object_bytes: 4_000_000,
        cut_clients: 6,
        cut_bytes: 400_000,
        first_answer: Duration::from_millis(300),
    };
    (proxy, play)
}

fn assert_well(verdict: &Verdict) {
    assert!(verdict.is_well(), "{verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_at_once_share_one_fetch() {
    let home = Home::new();
    let (proxy, play) = start(&home);
    assert_well(&Part::OneFetch.play(&play).await);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_clients_share_one_fetch_of_a_page_that_is_late() {
    let home = Home::new();
    let (proxy, play) = start(&home);
    assert_well(&Part::Late.play(&play).await);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_at_once_for_a_stale_page_share_one_answer_whatever_it_is() {
    let home = Home::new();
    let (proxy, play) = start(&home);
    for expiry in Expiry::ALL {
        assert_well(&Part::Expired(expiry).play(&play).await);
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_is_mended_or_seen_by_every_client() {
    let home = Home::new();
    let (proxy, play) = start(&home);
    for cutting in Cutting::few(play.cut_bytes) {
        assert_well(&Part::Cut(cutting).play(&play).await);
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_is_nearly_done_goes_on_without_its_client() {
    let home = Home::new();
    let (proxy, play) = start(&home);
    assert_well(&Part::LeaveLate.play(&play).await);
    proxy.kill_well();
}
