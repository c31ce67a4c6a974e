//! A window that holds the records of two names which the index cannot tell apart.

#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::Config;
use crate::device::{Device, MemoryDevice};
use crate::{Cache, Put};

type Hook = Box<dyn FnOnce() + Send>;

/// Calls a hook when the log is being written to.
struct Hooked {
    inner: MemoryDevice,
    hook: Mutex<Option<(u64, Hook)>>,
}

impl Hooked {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::from_bytes(bytes),
            hook: Mutex::default(),
        })
    }
}

impl Device for Hooked {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)?;
        let is_log = |hook: &mut (u64, Hook)| offset >= hook.0;
        let hook = self.hook.lock().unwrap().take_if(is_log);
        if let Some((_, hook)) = hook {
            hook();
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

fn open(device: &Arc<Hooked>) -> Cache {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let hour = Duration::from_hours(1);
    Cache::open(Config {
        segment_bytes: Some(1 << 20),
        hot_bytes_max: 0,
        memory_bytes: 16 << 20,
        batch_delay: hour,
        sync_interval: hour,
        open_patience: hour,
        ..Config::on_device(device)
    })
    .unwrap()
}

/// Names of one shard with the same tag and the same rows.
fn alike(cache: &Cache) -> [[u8; 8]; 2] {
    let stripe = cache.first_stripe();
    let rows = stripe.index.shape.shard_rows;
    let place = |n: u64| {
        let key = stripe.medium.secret.name(&n.to_le_bytes());
        let rows = BTreeSet::from([key.first_row(rows), key.second_row(rows)]);
        (key.shard(), key.tag(9), rows)
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
    // The remove is durable too.
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
    // The header of one, so that nothing in the window says that it was there.
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
