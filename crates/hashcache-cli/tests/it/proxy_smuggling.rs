//! Ambiguous requests and responses, through the real proxy in both of its modes.

use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::origin_faults::{self, FAULTS};
use hashcache_testkit::scenario::shared_answers;
use hashcache_testkit::scenario::smuggling::{self, Cut, Place, SHAPES};

use crate::Home;
use crate::proxy_process::Proxy;

fn assert_well(verdicts: &[Verdict]) {
    let faults: Vec<String> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_well())
        .map(Verdict::to_string)
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn send_all_shapes(accelerates: bool) {
    let origin = smuggling::echo_origin().await.expect("an origin starts");
    let (home, accelerate) = (
        Home::new(),
        format!("--accelerate=http://{}", origin.address()),
    );
    let flags: &[&str] = if accelerates { &[&accelerate] } else { &[] };
    let proxy = Proxy::start(&home.path().join("cache"), flags).expect("the proxy starts");
    let place = Place {
        proxy: proxy.address(),
        accelerates,
        origin: &origin,
    };
    assert_well(&smuggling::play_all(&place, SHAPES, &[Cut::Whole, Cut::At(50)]).await);
    proxy.kill_well();
}

async fn answer_with_all_faults(accelerates: bool) {
    let origin = origin_faults::faulty_origin(FAULTS)
        .await
        .expect("an origin starts");
    let (home, accelerate) = (
        Home::new(),
        format!("--accelerate=http://{}", origin.address()),
    );
    let flags: &[&str] = if accelerates { &[&accelerate] } else { &[] };
    let proxy = Proxy::start(&home.path().join("cache"), flags).expect("the proxy starts");
    let place = Place {
        proxy: proxy.address(),
        accelerates,
        origin: &origin,
    };
    assert_well(&origin_faults::play_all(&place, FAULTS).await);
    proxy.kill_well();
}

#[tokio::test]
async fn a_forward_proxy_gives_every_request_one_meaning_or_none() {
    send_all_shapes(false).await;
}

#[tokio::test]
async fn an_accelerator_gives_every_request_one_meaning_or_none() {
    send_all_shapes(true).await;
}

#[tokio::test]
async fn a_forward_proxy_tells_nothing_half_or_false_as_whole() {
    answer_with_all_faults(false).await;
}

#[tokio::test]
async fn an_accelerator_tells_nothing_half_or_false_as_whole() {
    answer_with_all_faults(true).await;
}

#[tokio::test]
async fn what_one_client_s_request_brought_about_is_not_told_to_another() {
    let origin = shared_answers::start_origin().await.unwrap();
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache"), &[]).unwrap();
    let place = Place {
        proxy: proxy.address(),
        accelerates: false,
        origin: &origin,
    };
    assert_well(&shared_answers::play_all(&place).await);
    proxy.kill_well();
}
