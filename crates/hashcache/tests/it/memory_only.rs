//! Objects that are kept in memory alone: they are found, they are never written, and no older
//! version answers in their place when they are gone.

use hashcache::{Ban, Cache, Config, PAGE, Put, PutError, Storage, Update, Updated};

use super::support::{EVERY, MIB, Value, get, memory, open, quiet};

const NAME: &[u8] = b"http://example.org/";

fn put_in_memory(cache: &Cache, put: u64, bytes: usize) -> Result<(), PutError> {
    let value = Value::new(put, bytes);
    let put = Put {
        storage: Storage::Memory,
        ..Put::metadata(value.metadata())
    };
    cache.put(NAME, put, &value.content(NAME)).map(drop)
}

fn put_on_disk(cache: &Cache, put: u64) {
    let value = Value::new(put, 5_000);
    let put = Put::metadata(value.metadata());
    cache.put(NAME, put, &value.content(NAME)).unwrap();
}

fn number(cache: &Cache) -> Option<u64> {
    get(cache, NAME).map(|value| value.put)
}

#[test]
fn an_object_for_memory_is_found_and_not_written() {
    for policy in EVERY {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        put_in_memory(&cache, 1, 5_000).unwrap();
        assert_eq!(number(&cache), Some(1), "{policy:?}");
        let hit = cache.get(NAME).wait().unwrap();
        assert_eq!(hit.storage(), Storage::Memory);
        assert!(cache.flush().wait());
        assert_eq!(cache.stats().puts, 0, "{policy:?}");
        put_in_memory(&cache, 2, 100).unwrap();
        assert_eq!(number(&cache), Some(2), "{policy:?}");
        cache.close();
        assert_eq!(number(&open(quiet(device, policy))), None);
    }
}

#[test]
fn no_older_version_answers_when_the_one_in_memory_is_gone() {
    for policy in EVERY {
        for is_written in [false, true] {
            let device = memory(16 * MIB);
            let cache = open(quiet(device.clone(), policy));
            put_on_disk(&cache, 1);
            if is_written {
                assert!(cache.flush().wait());
            }
            put_in_memory(&cache, 2, 5_000).unwrap();
            assert_eq!(number(&cache), Some(2), "{policy:?} {is_written}");
            cache.close();
            let cache = open(quiet(device, policy));
            assert_eq!(number(&cache), None, "{policy:?} {is_written}");
        }
    }
}

#[test]
fn an_object_on_disk_replaces_the_one_in_memory() {
    for policy in EVERY {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        put_in_memory(&cache, 1, 5_000).unwrap();
        put_on_disk(&cache, 2);
        assert_eq!(number(&cache), Some(2), "{policy:?}");
        assert_eq!(cache.get(NAME).wait().unwrap().storage(), Storage::Disk);
        cache.close();
        assert_eq!(number(&open(quiet(device, policy))), Some(2));
    }
}

#[test]
fn a_put_for_memory_gives_way_to_what_came_after_it_began() {
    for policy in EVERY {
        let cache = open(quiet(memory(16 * MIB), policy));
        let put = Put {
            storage: Storage::Memory,
            ..Put::metadata("late")
        };
        let begin = || cache.intend(NAME).unwrap().writer(put.clone()).unwrap();
        let writer = begin();
        put_on_disk(&cache, 1);
        assert_eq!(writer.commit(), Err(PutError::Superseded));
        assert_eq!(number(&cache), Some(1));
        let writer = begin();
        cache.remove(NAME).wait().unwrap();
        assert_eq!(writer.commit(), Err(PutError::Superseded));
        assert_eq!(number(&cache), None);
        let writer = begin();
        let ban = Ban::prefix(b"http:");
        cache.remove_matching(&[ban]).wait().unwrap();
        assert_eq!(writer.commit(), Err(PutError::Superseded));
    }
}

#[test]
fn removes_bans_and_updates_apply_to_an_object_in_memory() {
    for policy in EVERY {
        let cache = open(quiet(memory(16 * MIB), policy));
        put_in_memory(&cache, 1, 5_000).unwrap();
        let hit = cache.get(NAME).wait().unwrap();
        let content = hit.whole_content();
        let update = Update::metadata("other");
        let updated = cache.update(NAME, hit.version(), update).wait();
        assert_eq!(updated, Updated::Done, "{policy:?}");
        let hit = cache.get(NAME).wait().unwrap();
        assert_eq!(hit.metadata(), &b"other"[..]);
        assert_eq!((hit.storage(), hit.revision()), (Storage::Memory, 1));
        assert_eq!(hit.whole_content(), content);
        let ban = Ban::prefix(b"http:");
        cache.remove_matching(&[ban]).wait().unwrap();
        assert_eq!(number(&cache), None, "{policy:?}");
        put_in_memory(&cache, 2, 5_000).unwrap();
        cache.remove(NAME).wait().unwrap();
        assert_eq!(number(&cache), None, "{policy:?}");
        assert_eq!(cache.stats().puts, 0);
    }
}

#[test]
fn more_than_a_page_is_not_kept_but_followers_see_all_of_it() {
    for length in [Some(PAGE as u64 + 1), None] {
        let cache = open(quiet(memory(16 * MIB), EVERY[0]));
        let put = Put {
            storage: Storage::Memory,
            length,
            ..Put::metadata("long")
        };
        let mut writer = cache.intend(NAME).unwrap().writer(put).unwrap();
        let follower = writer.follow(0);
        let reading = std::thread::spawn(move || follower.read_to_vec());
        let content: Vec<u8> = (0..PAGE + 1).map(|n| (n % 251) as u8).collect();
        for part in content.chunks(10_000) {
            writer.write(part).unwrap();
        }
        assert_eq!(writer.commit(), Err(PutError::Bypassed), "{length:?}");
        assert!(reading.join().unwrap().unwrap() == content);
        assert_eq!(number(&cache), None);
    }
}

#[test]
fn without_room_for_hot_objects_nothing_is_kept() {
    let config = Config {
        hot_bytes_max: 0,
        ..quiet(memory(16 * MIB), EVERY[0])
    };
    let cache = open(config);
    assert_eq!(put_in_memory(&cache, 1, 5_000), Err(PutError::Full));
    assert_eq!(number(&cache), None);
}
