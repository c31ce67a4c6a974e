//! Greedy clients against the real proxy, while another client uses it.
//!
//! `cargo campaign hostile` does the same in full, also through TLS and with hostile origins in
//! HTTP/2.

use std::time::Duration;

use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::hostile::{Attack, Needs, Play};
use hashcache_testkit::{ContentOptions, ContentOrigin};

use crate::Home;
use crate::proxy_process::Proxy;

/// So many parts of 100 of an attack, against half of the memory that the campaign gives. How long
/// an answer takes is not judged: other tests run on the same machine.
async fn play(attack: Attack, percent: u32) {
    let verdict = verdict_of(attack, percent).await;
    assert!(verdict.is_well(), "{verdict}");
}

async fn verdict_of(attack: Attack, percent: u32) -> Verdict {
    let home = Home::new();
    let origin = ContentOrigin::start_thread(ContentOptions::default()).expect("an origin");
    let memory = format!("--memory={MEMORY_MIB}MiB");
    let accelerate = format!("--accelerate=http://{}", origin.address());
    let mut flags = vec!["--listen=h2c://127.0.0.1:0", memory.as_str()];
    if attack.needs() == Needs::Accelerator {
        flags.push(&accelerate);
    }
    let proxy = Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts");
    let play = Play {
        proxy: proxy.address(),
        http2: proxy.second_address().expect("a listener for HTTP/2"),
        shake: None,
        origin_shake: None,
        admin: proxy.admin(),
        pid: proxy.pid(),
        resident_max: (MEMORY_MIB + BESIDE_MIB) << 20,
        percent,
        time: Duration::from_secs(3),
        slower_max: None,
    };
    let verdict = attack.play(&play, &origin).await;
    proxy.kill_well();
    verdict
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_closed_windows_leave_memory_to_others() {
    play(Attack::ClosedWindows, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_not_read_leave_memory_to_others() {
    play(Attack::UnreadStreams, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_that_are_not_read_leave_connections_to_others() {
    play(Attack::UnreadDownloads, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_that_are_not_read_leave_memory_to_others() {
    play(Attack::UnreadStored, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_give_way_to_others() {
    play(Attack::SlowHeads, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_admin_connections_do_not_keep_a_monitor_waiting() {
    play(Attack::IdleAdmin, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_request_values_evict_no_variants_of_others() {
    // One URL in 64 has a nonce under which both clients have the same tag; two in a row seldom.
    if !verdict_of(Attack::MadeUpVariants, 100).await.is_well() {
        play(Attack::MadeUpVariants, 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_of_languages_costs_no_more_than_its_bytes() {
    play(Attack::LongLanguages, 100).await;
}

const MEMORY_MIB: u64 = 32;
/// The program text of a build for tests counts as resident memory, and is larger than in a
/// release.
const BESIDE_MIB: u64 = 48;
