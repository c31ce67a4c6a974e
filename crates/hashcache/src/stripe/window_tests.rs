//! A window with the records of two names that the index cannot tell apart.

#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::Config;
use crate::device::{Device, MemoryDevice};
use crate::policy::Located;
use crate::{Cache, Put};

type Hook = Box<dyn FnOnce() + Send>;

/// Calls a hook when the log is written or read at or behind an offset.
struct Hooked {
    inner: MemoryDevice,
    hook: Mutex<Option<(u64, Hook)>>,
    read_hook: Mutex<Option<(u64, Hook)>>,
}

fn call_once(hook: &Mutex<Option<(u64, Hook)>>, offset: u64) {
    let is_log = |hook: &mut (u64, Hook)| offset >= hook.0;
    let hook = hook.lock().unwrap().take_if(is_log);
    if let Some((_, hook)) = hook {
        hook();
    }
}

impl Hooked {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::from_bytes(bytes),
            hook: Mutex::default(),
            read_hook: Mutex::default(),
        })
    }
}

impl Device for Hooked {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)?;
        call_once(&self.read_hook, offset);
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)?;
        call_once(&self.hook, offset);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

fn open(device: &Arc<Hooked>) -> Cache {
    open_as(device, |_| ())
}

fn open_as(device: &Arc<Hooked>, change: impl FnOnce(&mut Config)) -> Cache {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let hour = Duration::from_secs(3600);
    let mut config = Config {
        segment_bytes: Some(1 << 20),
        hot_bytes_max: 0,
        memory_bytes: 16 << 20,
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(device)
    };
    change(&mut config);
    Cache::open(config).unwrap()
}

/// Names in the same shard that its index cannot tell apart.
fn alike(cache: &Cache) -> [[u8; 8]; 2] {
    alike_by(cache, 9)
}

/// Names in the same shard with the same tag of `tag_bits` bits and the same rows.
fn alike_by(cache: &Cache, tag_bits: u32) -> [[u8; 8]; 2] {
    let stripe = cache.first_stripe();
    let rows = stripe.index.shape.shard_rows;
    let place = |n: u64| {
        let key = stripe.medium.secret.name(&n.to_le_bytes());
        let rows = BTreeSet::from([key.first_row(rows), key.second_row(rows)]);
        (key.shard(), key.tag(tag_bits), rows)
    };
    let first = place(0);
    let other = (1..).find(|n| place(*n) == first).unwrap();
    [0, other].map(u64::to_le_bytes)
}

fn put(cache: &Cache, name: &[u8], content: &[u8]) {
    cache.put(name, Put::metadata(&b""[..]), content).unwrap();
}

fn get(cache: &Cache, name: &[u8]) -> Option<Vec<u8>> {
    let hit = cache.get(name).wait()?;
    hit.reader(0..u64::MAX).read_to_vec().ok()
}

#[test]
fn what_was_removed_while_it_was_written_is_not_found_through_another_name_of_its_window() {
    let device = Hooked::new(vec![0; 16 << 20]);
    let cache = open(&device);
    let [removed, other] = alike(&cache);
    put(&cache, &removed, b"removed");
    put(&cache, &other, b"other");
    let log = cache.first_stripe().medium.geometry.log_offset;
    let remove = {
        let cache = cache.clone();
        move || drop(cache.remove(&removed))
    };
    *device.hook.lock().unwrap() = Some((log, Box::new(remove)));
    assert!(cache.flush().wait());
    assert!(device.hook.lock().unwrap().is_none(), "nothing was written");
    assert_eq!(get(&cache, &removed), None);
    // The remove is durable, too.
    assert!(cache.flush().wait());
    let killed = open(&Hooked::new(device.inner.to_bytes()));
    assert_eq!(get(&killed, &removed), None);
    drop(cache);
}

#[test]
fn two_names_of_a_window_that_share_an_entry_are_both_found_and_damage_is_told_from_either() {
    let device = Hooked::new(vec![0; 16 << 20]);
    let cache = open(&device);
    let [one, other] = alike(&cache);
    put(&cache, &one, b"the content of one");
    put(&cache, &other, b"the content of the other");
    assert!(cache.flush().wait());
    for cache in [&cache, &open(&Hooked::new(device.inner.to_bytes()))] {
        assert_eq!(get(cache, &one), Some(b"the content of one".to_vec()));
        assert_eq!(
            get(cache, &other),
            Some(b"the content of the other".to_vec())
        );
        assert_eq!(cache.stats().false_reads, 0);
    }
    // Damage the header of one record, so that nothing in the window shows that it was there.
    let mut image = device.inner.to_bytes();
    let content = b"the content of one";
    let at = image.windows(content.len()).position(|it| it == content);
    let header = at.unwrap() / 512 * 512;
    image[header..header + 512].fill(0);
    let cache = open(&Hooked::new(image));
    assert_eq!(get(&cache, &one), None);
    assert_eq!(
        get(&cache, &other),
        Some(b"the content of the other".to_vec())
    );
    assert_eq!(cache.stats().false_reads, 1);
}

#[test]
fn an_older_version_is_not_found_behind_a_damaged_one_that_another_lookup_forgets_meanwhile() {
    let device = Hooked::new(vec![0; 16 << 20]);
    let cache = open(&device);
    let name = 0u64.to_le_bytes();
    for content in ["the older content", "the newer content"] {
        put(&cache, &name, content.as_bytes());
        assert!(cache.flush().wait());
    }
    let key = cache.first_stripe().medium.secret.name(&name);
    let mut image = device.inner.to_bytes();
    let content = b"the newer content";
    let at = image.windows(content.len()).position(|it| it == content);
    let header = at.unwrap() / 512 * 512;
    image[header..header + 512].fill(0);
    cache.close();
    let device = Hooked::new(image);
    let cache = open(&device);
    let candidates = |cache: &Cache| {
        let stripe = cache.first_stripe();
        let shard = stripe.shard(key);
        let Located::Log(found) = stripe.locate(&shard, key) else {
            return Vec::new();
        };
        found.as_slice().to_vec()
    };
    let [newer, _older] = candidates(&cache)[..] else {
        panic!("two versions in one row")
    };
    let forget = {
        let cache = cache.clone();
        move || {
            let stripe = cache.first_stripe();
            let head = stripe.log.head();
            let mut shard = stripe.shard(key);
            shard.policy.log_mut().unwrap().forget(key, newer, head);
        }
    };
    let log = cache.first_stripe().medium.geometry.log_offset;
    *device.read_hook.lock().unwrap() = Some((log, Box::new(forget)));
    assert_eq!(get(&cache, &name), None);
    assert!(
        device.read_hook.lock().unwrap().is_none(),
        "nothing was read"
    );
    assert_eq!(candidates(&cache), []);
}

#[test]
fn a_span_of_a_byte_with_the_longest_name_is_found_wherever_in_its_window_it_begins() {
    let device = Hooked::new(vec![0; 16 << 20]);
    let cache = open(&device);
    let content = [7; (64 << 10) + 1];
    let name = |n: u8| [&[n][..], &[b'n'; 4095]].concat();
    for n in 0..16 {
        put(&cache, &name(n), &content);
        // So that the next record starts elsewhere in a window.
        put(&cache, &[n], &vec![0; usize::from(n) * 512]);
    }
    assert!(cache.flush().wait());
    for n in 0..16 {
        let hit = cache.get(&name(n)).wait().expect("a hit");
        let last = hit.reader(64 << 10..u64::MAX).read_to_vec();
        assert_eq!(last.ok(), Some(vec![7]), "name {n}");
    }
    assert_eq!(cache.stats().damaged, 0);
}

#[test]
fn the_page_of_another_name_with_an_equal_tag_is_not_read_in_vain() {
    let config = |config: &mut Config| {
        config.grouped = true;
        config.hot_bytes_max = 4 << 20;
    };
    let device = Hooked::new(vec![0; 32 << 20]);
    let cache = open_as(&device, config);
    let [wanted, other] = alike_by(&cache, 11);
    let page = |group: u64, names: &[[u8; 8]]| {
        for name in names {
            let put = Put {
                group,
                ..Put::metadata(&b""[..])
            };
            cache.put(name, put, &name.repeat(2048)).unwrap();
        }
        assert!(cache.flush().wait());
    };
    let sibling = |n: u64| (1 << 40 | n).to_le_bytes();
    let own: Vec<_> = (0..4)
        .map(sibling)
        .chain([wanted])
        .chain((4..8).map(sibling))
        .collect();
    page(1, &own);
    let others: Vec<_> = [other].into_iter().chain((10..20).map(sibling)).collect();
    page(2, &others);
    cache.close();
    let cache = open_as(&Hooked::new(device.inner.to_bytes()), config);
    // `wanted` does not become hot with its page, because the entry of `other` could be its
    // replacement.
    assert_eq!(get(&cache, &own[0]), Some(own[0].repeat(2048)));
    let before = cache.stats();
    assert_eq!(get(&cache, &wanted), Some(wanted.repeat(2048)));
    let after = cache.stats();
    assert_eq!(after.false_reads - before.false_reads, 1);
    assert_eq!(after.reads - before.reads, 2);
    // Neither the page of the other name is read, nor the rest of the own page, which is hot.
    assert_eq!(after.prefetched, before.prefetched);
    let read = after.read_bytes - before.read_bytes;
    assert!(read < 64 << 10, "{read} bytes");
    // An object with a unique tag loads its page.
    assert_eq!(get(&cache, &others[1]), Some(others[1].repeat(2048)));
    assert_eq!(cache.stats().prefetched - after.prefetched, 9);
}
