//! Purges of a store in memory.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Config, Put};
use http::HeaderValue;

use super::*;

fn purger() -> Purger {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
    };
    let cache = Cache::open(config).unwrap();
    Purger::new(&cache, &Collapse::new(), Space::Own, &Arc::default())
}

fn target(url: &str) -> Target {
    Target::parse_url(url).unwrap()
}

/// Stores a response to `url` with these fields.
fn store(purger: &Purger, url: &str, fields: &[(&'static str, &'static str)]) {
    let mut response = HeaderMap::new();
    for (name, value) in fields {
        response.append(*name, HeaderValue::from_static(value));
    }
    let target = target(url);
    let put = Put {
        labels: labels_of(&purger.cache, purger.space, &target, &response),
        ..Put::metadata(&b"m"[..])
    };
    purger
        .cache
        .put(&purger.key(&target).unwrap(), put, b"content")
        .unwrap();
}

/// Which of `urls` are stored.
fn stored<'a>(purger: &Purger, urls: &[&'a str]) -> Vec<&'a str> {
    let found = |url: &str| purger.cache.get(&purger.key(&target(url)).unwrap()).wait();
    urls.iter()
        .copied()
        .filter(|url| found(url).is_some())
        .collect()
}

#[tokio::test]
async fn a_prefix_is_one_of_the_url_and_of_its_origin_alone() {
    let purger = purger();
    let urls = [
        "http://h/a/1",
        "http://h/a/*",
        "http://h/ab",
        "http://h:81/a/1",
        "https://h/a/1",
    ];
    urls.iter().for_each(|url| store(&purger, url, &[]));
    let prefix = [PurgeTarget::Prefix(target("http://h/a/"))];
    purger
        .purge(&prefix, PurgeEffect::Hard, BanQuota::Operator)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[2..]);
    purger
        .purge(
            &[PurgeTarget::Prefix(target("http://h/"))],
            PurgeEffect::Hard,
            BanQuota::Operator,
        )
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[3..]);
    purger
        .purge(
            &[PurgeTarget::Everything],
            PurgeEffect::Hard,
            BanQuota::Operator,
        )
        .await
        .unwrap();
    assert!(stored(&purger, &urls).is_empty());
}

#[tokio::test]
async fn a_group_and_a_label_are_their_origins_own_but_for_the_operator() {
    let purger = purger();
    let urls = ["http://h/1", "http://i/1", "http://h:81/1", "http://h/2"];
    for url in &urls[..3] {
        store(
            &purger,
            url,
            &[("cache-groups", "\"x\""), ("surrogate-key", "x y")],
        );
    }
    store(&purger, urls[3], &[("xkey", "x")]);
    let group = [PurgeTarget::Group(target("http://h/"), b"x".to_vec())];
    purger
        .purge(&group, PurgeEffect::Hard, BanQuota::Client)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[1..]);
    let label = |url: &str, label: &str| PurgeTarget::Label(target(url), label.into());
    let all = ["x", "y"].map(|it| label("http://h/other", it));
    purger
        .purge(&all, PurgeEffect::Hard, BanQuota::Client)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[1..3]);
    purger
        .purge(
            &[label("http://h:81/", "y")],
            PurgeEffect::Hard,
            BanQuota::Client,
        )
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[1..2]);
    let anywhere = [PurgeTarget::LabelAnywhere(b"y".to_vec())];
    purger
        .purge(&anywhere, PurgeEffect::Hard, BanQuota::Operator)
        .await
        .unwrap();
    assert!(stored(&purger, &urls).is_empty());
}

#[tokio::test]
async fn more_labels_than_there_is_room_for_are_taken_for_any_of_their_origin_alone() {
    let purger = purger();
    let many: String = (0..17).map(|n| format!("k{n} ")).collect();
    let many: &'static str = many.leak();
    let urls = ["http://h/1", "http://i/1", "http://i/2"];
    for url in &urls[..2] {
        store(&purger, url, &[("surrogate-key", many)]);
    }
    store(&purger, urls[2], &[("surrogate-key", "a")]);
    let label = |url: &str| [PurgeTarget::Label(target(url), b"other".to_vec())];
    for (url, left) in [("http://h/", 1), ("http://i/", 2)] {
        purger
            .purge(&label(url), PurgeEffect::Hard, BanQuota::Client)
            .await
            .unwrap();
        assert_eq!(stored(&purger, &urls), urls[left..]);
    }
    store(&purger, urls[1], &[("surrogate-key", many)]);
    let anywhere = [PurgeTarget::LabelAnywhere(b"other".to_vec())];
    purger
        .purge(&anywhere, PurgeEffect::Hard, BanQuota::Operator)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[2..]);
}

/// A cache was once emptied by sixteen requests with 256 made-up labels.
#[tokio::test]
async fn made_up_labels_are_refused_before_rules_become_wider_and_the_operator_has_room_left() {
    let purger = purger();
    let quiet = ["http://quiet/", "http://h/"];
    quiet.iter().for_each(|url| store(&purger, url, &[]));
    let (mut in_force, mut refused) = (0, 0);
    for request in 0..64 {
        let label =
            |n| PurgeTarget::Label(target("http://h/"), format!("{request}-{n}").into_bytes());
        let what: Vec<_> = (0..64).map(label).collect();
        match purger
            .purge(&what, PurgeEffect::Hard, BanQuota::Client)
            .await
        {
            Ok(()) => in_force += 1,
            Err(error) => {
                assert_eq!(error, PurgeError::TooManyRules);
                refused += 1;
            }
        }
    }
    assert!(in_force > 0 && refused > 0, "{in_force} and {refused}");
    assert!(purger.cache.bans() <= purger.cache.bans_max() / 4 * 3);
    assert_eq!(stored(&purger, &quiet), quiet);
    // Purges of URLs need no ban.
    let url = [PurgeTarget::Url(target("http://quiet/"))];
    purger
        .purge(&url, PurgeEffect::Hard, BanQuota::Client)
        .await
        .unwrap();
    let label = |n: usize| [PurgeTarget::LabelAnywhere(n.to_string().into_bytes())];
    purger
        .purge(&label(0), PurgeEffect::Hard, BanQuota::Operator)
        .await
        .unwrap();
    let mut operators = 1;
    while purger
        .purge(&label(operators), PurgeEffect::Hard, BanQuota::Operator)
        .await
        .is_ok()
    {
        operators += 1;
        assert!(operators < purger.cache.bans_max());
    }
    assert_eq!(stored(&purger, &quiet), quiet[1..]);
    // Purging everything always fits.
    purger
        .purge(
            &[PurgeTarget::Everything],
            PurgeEffect::Hard,
            BanQuota::Client,
        )
        .await
        .unwrap();
    assert!(stored(&purger, &quiet).is_empty());
    assert_eq!(purger.cache.bans(), 1);
}

#[tokio::test]
async fn groups_that_origins_invalidate_never_become_everything() {
    let purger = purger();
    store(&purger, "http://quiet/", &[]);
    for n in 0..3_000u32 {
        let target = target(&format!("http://h{n}/form"));
        let [.., high, low] = n.to_be_bytes();
        let client = Network::containing([10, 0, high, low].into());
        purger.invalidate(client, &[target], &[b"g".to_vec()]);
    }
    assert!(purger.cache.bans() <= purger.cache.bans_max() / 2);
    assert_eq!(stored(&purger, &["http://quiet/"]).len(), 1);
    let ignored = purger.counts.each().find(|(name, _)| *name == "ignored");
    // A ban on the group, and one on the label for too many labels.
    let made = purger.cache.bans() as u64 / 2;
    assert_eq!(ignored.unwrap().1, [3_000 - made, 0]);
}

#[tokio::test]
async fn after_a_purge_nobody_joins_a_fetch_that_began_before() {
    use crate::collapse::{Requester, Role};
    let purger = purger();
    let key = purger.key(&target("http://h/a")).unwrap().into();
    let join = || {
        purger
            .collapse
            .join(&key, Requester::Anybody, tokio::time::Instant::now())
    };
    let all = [
        PurgeTarget::Url(target("http://h/a")),
        PurgeTarget::Prefix(target("http://h/")),
        PurgeTarget::Group(target("http://h/"), b"x".to_vec()),
        PurgeTarget::Label(target("http://h/"), b"x".to_vec()),
        PurgeTarget::LabelAnywhere(b"x".to_vec()),
        PurgeTarget::Everything,
    ];
    for what in all {
        for effect in [PurgeEffect::Hard, PurgeEffect::Soft] {
            let first = join();
            assert!(matches!(join(), Role::Follower(_)));
            purger
                .purge(std::slice::from_ref(&what), effect, BanQuota::Operator)
                .await
                .unwrap();
            assert!(matches!(join(), Role::Leader(_)), "{what:?}");
            drop(first);
        }
    }
    purger
        .purge(
            &[PurgeTarget::Prefix(target("http://i/"))],
            PurgeEffect::Hard,
            BanQuota::Operator,
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_soft_purge_of_a_url_makes_its_variants_stale_and_no_other() {
    let purger = purger();
    store(&purger, "http://h/a", &[]);
    store(&purger, "http://h/ab", &[]);
    let key = purger.key(&target("http://h/a")).unwrap();
    let variant = [&key[..], b"\0v123"].concat();
    purger
        .cache
        .put(&variant, Put::metadata(&b"m"[..]), b"content")
        .unwrap();
    let stale = |key: &[u8]| purger.cache.get(key).wait().unwrap().is_made_stale();
    assert!(!stale(&key));
    purger
        .purge(
            &[PurgeTarget::Url(target("http://h/a"))],
            PurgeEffect::Soft,
            BanQuota::Operator,
        )
        .await
        .unwrap();
    assert!(stale(&key) && stale(&variant));
    assert!(!stale(&purger.key(&target("http://h/ab")).unwrap()));
}

/// A POST of the client with this last octet to `url`, whose response invalidates `group`.
fn posted(purger: &Purger, client: u8, url: &str, group: &str) {
    let client = Network::containing([192, 0, 2, client].into());
    purger.invalidate(client, &[target(url)], &[group.into()]);
}

#[tokio::test]
async fn one_origin_that_invalidates_groups_leaves_room_to_others() {
    let purger = purger();
    let group = [("cache-groups", "\"g\"")];
    for n in 0..4200 {
        posted(&purger, 1, "http://evil/", &format!("group {n}"));
    }
    assert!(purger.cache.bans() <= 64, "{}", purger.cache.bans());
    let urls = ["http://h/1", "http://evil/1"];
    urls.iter().for_each(|url| store(&purger, url, &group));
    posted(&purger, 2, "http://h/", "g");
    assert_eq!(stored(&purger, &urls), urls[1..]);
    posted(&purger, 1, "http://evil/", "g");
    assert!(stored(&purger, &urls).is_empty(), "nor is its own lost");
}

#[tokio::test]
async fn clients_are_forgotten_with_the_bans_that_their_requests_have_caused() {
    let purger = purger();
    let known = |purger: &Purger| purger.turn.lock().unwrap().clients.len();
    // Many clients, in rounds after each of which no ban is left; and far more than there is room
    // for.
    for round in 0..4u8 {
        for n in 0..3_000u32 {
            let [.., high, low] = n.to_be_bytes();
            let client = Network::containing([10, round, high, low].into());
            let target = target(&format!("http://h{round}-{n}/"));
            purger.invalidate(client, &[target], &[b"g".to_vec()]);
        }
        let bans = purger.cache.bans();
        assert!(known(&purger) <= bans.max(CLIENTS_KEPT), "{bans} bans");
        let everything = [PurgeTarget::Everything];
        let purge = purger.purge(&everything, PurgeEffect::Hard, BanQuota::Operator);
        purge.await.unwrap();
    }
    assert!(known(&purger) <= 2 * purger.cache.bans_max());
}

#[tokio::test]
async fn one_client_that_posts_to_many_origins_leaves_room_to_others() {
    let purger = purger();
    for n in 0..4200 {
        posted(
            &purger,
            1,
            &format!("http://n{}.evil/", n / 3),
            &format!("{n}"),
        );
    }
    let most = purger.cache.bans_max();
    assert!(purger.cache.bans() <= most / 8, "{}", purger.cache.bans());
    store(&purger, "http://h/1", &[("cache-groups", "\"g\"")]);
    posted(&purger, 2, "http://h/", "g");
    assert!(stored(&purger, &["http://h/1"]).is_empty());
}

#[tokio::test]
async fn an_unsafe_request_whose_client_leaves_while_it_waits_invalidates_all_the_same() {
    let device = unsettled::tests::Stopped::new();
    let cache = Cache::open(Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::clone(&device) as _)
    })
    .unwrap();
    let purger = Purger::new(&cache, &Collapse::new(), Space::Own, &Arc::default());
    let url = |n: usize| format!("http://h/{n}");
    (0..=PER_CLIENT).for_each(|n| store(&purger, &url(n), &[]));
    assert!(cache.flush().wait());
    device.stop(true);
    let client = Network::containing([192, 0, 2, 1].into());
    let last = url(PER_CLIENT);
    let run = async {
        for n in 0..PER_CLIENT {
            purger.invalidate(client, &[target(&url(n))], &[]);
        }
        let request = (purger.clone()).invalidate_in_turn(client, vec![target(&last)], vec![]);
        tokio::select! {
            biased;
            () = request => panic!("it went before its turn"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(stored(&purger, &[&last]).len(), 1);
        device.stop(false);
        while !stored(&purger, &[&last]).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn an_unsafe_request_is_not_answered_once_its_invalidation_may_be_lost() {
    let purger = purger();
    store(&purger, "http://h/1", &[]);
    let client = Network::containing([192, 0, 2, 1].into());
    let invalidation = || {
        let targets = vec![target("http://h/1")];
        purger.clone().invalidate_in_turn(client, targets, vec![])
    };
    invalidation().await;
    purger.cache.clone().close();
    tokio::select! {
        biased;
        () = invalidation() => panic!("its client was answered"),
        () = tokio::task::yield_now() => {}
    }
    assert!(!purger.invalidate_for_peer(client, target("http://h/1")));
}
