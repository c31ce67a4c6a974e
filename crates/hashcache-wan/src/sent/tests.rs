//! Which objects are found, which never are, and how much memory the table takes.

use super::*;
use crate::sketch::Sketcher;

const ORIGIN: &str = "http://origin.test/";

fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

fn sketch(content: &[u8]) -> Sketch {
    let mut sketcher = Sketcher::default();
    sketcher.push(content);
    sketcher.sketch()
}

fn object(key: &str, content: &[u8]) -> SentObject {
    SentObject {
        key: key.as_bytes().into(),
        digest: Digest::from_content(content),
        length: content.len() as u64,
    }
}

fn wanted(key: &str, length: Option<u64>) -> Wanted<'_> {
    Wanted {
        key: key.as_bytes(),
        origin_bytes: ORIGIN.len(),
        length,
    }
}

fn found<'a>(sent: &'a Sent, content: &[u8], key: &str) -> Option<&'a [u8]> {
    let length = Some(content.len() as u64);
    let object = sent.find(&sketch(content), &wanted(key, length));
    object.map(|object| &*object.key)
}

#[test]
fn an_object_is_found_by_similar_content_under_another_name() {
    let mut sent = Sent::new(1 << 20, 14);
    for n in 0..500 {
        let content = content(n, 20_000);
        let key = format!("{ORIGIN}app.{n:03}.js");
        sent.insert(object(&key, &content), &sketch(&content));
    }
    for n in 0..500 {
        let mut content = content(n, 20_000);
        content.splice(10_000..10_010, *b"an edit here");
        let found = found(&sent, &content, "http://origin.test/app.new.js");
        assert_eq!(found, Some(format!("{ORIGIN}app.{n:03}.js").as_bytes()));
    }
    let other = content(1_000, 20_000);
    assert_eq!(found(&sent, &other, "http://origin.test/x"), None);
}

#[test]
fn a_long_object_is_found_although_a_short_one_shares_more_of_its_fingerprints() {
    let mut sent = Sent::new(1 << 20, 14);
    let (common, long) = (content(1, 700_000), content(2, 12_000_000));
    let short = [&common[..], &content(3, 700_000)].concat();
    let key = |name: &str| format!("{ORIGIN}{name}");
    sent.insert(object(&key("old/worker.js"), &long), &sketch(&long));
    sent.insert(object(&key("new/other.js"), &short), &sketch(&short));
    let new = [&common[..], &long].concat();
    let begun = sketch(&new[..ASKED_BYTES]);
    let name = key("new/worker.js");
    let found = sent.find(&begun, &wanted(&name, Some(new.len() as u64)));
    let found = found.map(|object| &*object.key);
    assert_eq!(found, Some(key("old/worker.js").as_bytes()));
}

#[test]
fn another_origin_is_never_found_not_even_one_whose_name_begins_alike() {
    let mut sent = Sent::new(1 << 20, 14);
    let content = content(1, 20_000);
    for key in [
        "https://origin.test/a.js",
        "http://origin.test.evil/a.js",
        "http://origin.test:8080/a.js",
        "http://origin.tes",
        "",
    ] {
        sent.insert(object(key, &content), &sketch(&content));
    }
    assert_eq!(found(&sent, &content, "http://origin.test/a.js"), None);
    let short = Wanted {
        key: b"http://",
        origin_bytes: 9,
        length: None,
    };
    assert_eq!(sent.find(&sketch(&content), &short), None);
}

#[test]
fn of_objects_that_begin_alike_the_one_of_similar_length_and_name_is_found() {
    let mut sent = Sent::new(1 << 20, 14);
    let start = content(1, 300_000);
    for (name, bytes) in [
        ("worker.1.js", 900_000),
        ("main.1.js", 300_000),
        ("all.map", 3_000_000),
    ] {
        let content = [&start[..], &content(bytes as u64, bytes)].concat();
        sent.insert(
            object(&format!("{ORIGIN}{name}"), &content),
            &sketch(&content),
        );
    }
    let find = |name: &str, length| {
        let key = format!("{ORIGIN}{name}");
        let object = sent.find(&sketch(&start), &wanted(&key, length));
        String::from_utf8_lossy(&object.unwrap().key[ORIGIN.len()..]).into_owned()
    };
    assert_eq!(find("worker.2.js", None), "worker.1.js");
    assert_eq!(find("main.2.js", None), "main.1.js");
    assert_eq!(find("x", Some(1_250_000)), "worker.1.js");
    assert_eq!(find("x", Some(3_300_000)), "all.map");
}

#[test]
fn only_the_newest_object_of_a_key_is_found_and_none_that_was_forgotten() {
    let mut sent = Sent::new(1 << 20, 14);
    let (old, new) = (content(1, 20_000), content(2, 20_000));
    let key = format!("{ORIGIN}a");
    sent.insert(object(&key, &old), &sketch(&old));
    sent.insert(object(&key, &new), &sketch(&new));
    assert_eq!(found(&sent, &old, &key), None);
    assert_eq!(found(&sent, &new, &key), Some(key.as_bytes()));
    sent.forget(key.as_bytes());
    sent.forget(b"never known");
    assert_eq!(found(&sent, &new, &key), None);
}

#[test]
fn the_table_never_takes_more_memory_than_it_was_given() {
    let mut random = fastrand::Rng::with_seed(3);
    for bytes_max in [0, 100, 5_000, 70_000, 1 << 20] {
        let mut sent = Sent::new(bytes_max, 9);
        for n in 0..20_000_u32 {
            // Keys of all lengths, some of them again and again.
            let key = format!("{:0>width$}", n % 15_000, width = random.usize(5..300));
            let mut sketcher = Sketcher::default();
            sketcher.push(&n.to_le_bytes().repeat(100));
            let object = SentObject {
                key: key.as_bytes().into(),
                digest: Digest([0; 32]),
                length: 5_000,
            };
            sent.insert(object, &sketcher.sketch());
            if n % 500 == 0 {
                let least = WAYS * size_of::<Slot>();
                let list = sent.objects.capacity() * OBJECT_BYTES;
                let took = size_of_val(&*sent.index) + list + sent.key_bytes;
                assert!(took <= bytes_max.max(least), "{took} of {bytes_max}");
            }
        }
    }
}

#[test]
fn a_table_of_a_mebibyte_holds_four_thousand_objects_with_usual_keys() {
    let mut sent = Sent::new(1 << 20, 9);
    for n in 0..20_000_u64 {
        let content = content(n, 6_000);
        let key = format!("{ORIGIN}{n:0>52}");
        sent.insert(object(&key, &content), &sketch(&content));
    }
    assert!(sent.len() > 4_000, "{}", sent.len());
    // The newest ones can all be found.
    let is_found = |n: &u64| found(&sent, &content(*n, 6_000), ORIGIN).is_some();
    let count = (16_000..20_000).filter(is_found).count();
    assert!(count > 3_960, "{count} of 4,000");
}

#[test]
fn numbers_of_objects_may_wrap() {
    let mut sent = Sent::new(20_000, 9);
    sent.first = u32::MAX - 20;
    for n in 0..200 {
        let content = content(n, 6_000);
        let key = format!("{ORIGIN}{n}");
        sent.insert(object(&key, &content), &sketch(&content));
        assert_eq!(found(&sent, &content, ORIGIN), Some(key.as_bytes()));
    }
}
