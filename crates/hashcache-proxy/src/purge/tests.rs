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
    let prefix = [What::Prefix(target("http://h/a/"))];
    purger.purge(&prefix, Effect::Hard).await.unwrap();
    assert_eq!(stored(&purger, &urls), urls[2..]);
    purger
        .purge(&[What::Prefix(target("http://h/"))], Effect::Hard)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[3..]);
    purger
        .purge(&[What::Everything], Effect::Hard)
        .await
        .unwrap();
    assert!(stored(&purger, &urls).is_empty());
}

#[tokio::test]
async fn a_group_is_its_origins_own_and_a_label_everybodys() {
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
    let group = [What::Group(target("http://h/"), b"x".to_vec())];
    purger.purge(&group, Effect::Hard).await.unwrap();
    assert_eq!(stored(&purger, &urls), urls[1..]);
    purger
        .purge(&[What::Label(b"y".to_vec())], Effect::Hard)
        .await
        .unwrap();
    assert_eq!(stored(&purger, &urls), urls[3..]);
    purger
        .purge(&[What::Label(b"x".to_vec())], Effect::Hard)
        .await
        .unwrap();
    assert!(stored(&purger, &urls).is_empty());
}

#[tokio::test]
async fn groups_that_origins_invalidate_never_become_everything() {
    let purger = purger();
    store(&purger, "http://quiet/", &[]);
    for n in 0..3_000u32 {
        let target = target(&format!("http://h{n}/form"));
        purger.invalidate(&[target], &[b"g".to_vec()]);
    }
    assert!(purger.cache.rules() <= purger.cache.rules_max() / 2);
    assert_eq!(stored(&purger, &["http://quiet/"]).len(), 1);
    let ignored = purger.counts.each().find(|(name, _)| *name == "ignored");
    assert_eq!(ignored.unwrap().1, [3_000 - purger.cache.rules() as u64, 0]);
}

#[tokio::test]
async fn after_a_purge_nobody_joins_a_fetch_that_began_before() {
    use crate::collapse::Part;
    let purger = purger();
    let key = purger.key(&target("http://h/a")).unwrap();
    let join = || purger.collapse.join(&key, tokio::time::Instant::now());
    let all = [
        What::Url(target("http://h/a")),
        What::Prefix(target("http://h/")),
        What::Group(target("http://h/"), b"x".to_vec()),
        What::Label(b"x".to_vec()),
        What::Everything,
    ];
    for what in all {
        for effect in [Effect::Hard, Effect::Soft] {
            let first = join();
            assert!(matches!(join(), Part::Follower(_)));
            purger
                .purge(std::slice::from_ref(&what), effect)
                .await
                .unwrap();
            assert!(matches!(join(), Part::Leader(_)), "{what:?}");
            drop(first);
        }
    }
    purger
        .purge(&[What::Prefix(target("http://i/"))], Effect::Hard)
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
        .purge(&[What::Url(target("http://h/a"))], Effect::Soft)
        .await
        .unwrap();
    assert!(stale(&key) && stale(&variant));
    assert!(!stale(&purger.key(&target("http://h/ab")).unwrap()));
}
