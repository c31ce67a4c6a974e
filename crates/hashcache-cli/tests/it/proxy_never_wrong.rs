//! The real proxy killed under load: it may forget, it must not lie.

use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::never_wrong::{self, Fill, Options, READINESS, SPEED};

use crate::Home;
use crate::proxy_process::Restarted;

const OPTIONS: Options = Options {
    kills: 2,
    objects: 600,
    connections: 16,
    seed: 7,
    // Much longer than the second before a kill in which objects may be lost.
    round_millis: (2000, 2400),
    large_bytes: (1_000_000, 4_000_000),
};

/// Speed is judged only on an otherwise idle machine, by `cargo campaign never-wrong`.
fn assert_well(verdicts: &[Verdict]) {
    let judged = |verdict: &&Verdict| ![READINESS, SPEED].contains(&verdict.name.as_str());
    let well = verdicts.iter().filter(judged).all(Verdict::is_well);
    let told: Vec<String> = verdicts.iter().map(Verdict::to_string).collect();
    assert!(well, "{}", told.join("\n"));
}

#[tokio::test]
async fn a_proxy_that_is_killed_under_load_forgets_little_and_tells_no_lie() {
    let home = Home::new();
    let mut victim = Restarted {
        cache: &home.path().join("cache"),
        running: None,
    };
    let verdicts = never_wrong::play(&mut victim, &OPTIONS, |_| ()).await;
    assert_well(&verdicts.unwrap());
}

#[tokio::test]
async fn what_was_delivered_before_a_kill_is_there_after_it() {
    let home = Home::new();
    let mut victim = Restarted {
        cache: &home.path().join("cache"),
        running: None,
    };
    let fill = Fill {
        rate: 200,
        seconds: 2,
    };
    assert_well(
        &never_wrong::fill(&mut victim, &OPTIONS, &fill)
            .await
            .unwrap(),
    );
}
