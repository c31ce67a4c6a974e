//! Dictionaries that lie in the engine: a hit's reader gives what the codec wants.

use std::ops::Range;
use std::sync::Arc;

use hashcache::device::{DiskModel, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Cache, Config, Hit, Put};
use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::encode::Encoder;

use super::support::{head, text};

fn read(hit: &Hit, range: Range<u64>) -> Vec<u8> {
    hit.reader(range).read_to_vec().unwrap()
}

#[test]
fn both_ends_read_the_dictionary_from_their_stores_even_when_it_is_replaced_meanwhile() {
    let store = || {
        let device = Arc::new(MemoryDevice::new(128 << 20));
        Cache::open(Config {
            memory_bytes: 32 << 20,
            ..Config::on_device(device)
        })
        .unwrap()
    };
    let (parent, child) = (store(), store());
    let old = text(1, 6 << 20);
    let new = [&old[..1_000_000], b"an insertion", &old[1_000_000..]].concat();
    for cache in [&parent, &child] {
        let mut writer = cache
            .intend(b"name")
            .unwrap()
            .writer(Put::metadata("old"))
            .unwrap();
        for piece in old.chunks(1 << 20) {
            while writer.write(piece).is_err() {
                assert!(cache.flush().wait());
            }
        }
        writer.commit().unwrap();
        assert!(cache.flush().wait());
    }
    let (sent, offered) = (
        parent.get(b"name").wait().unwrap(),
        child.get(b"name").wait().unwrap(),
    );
    let length = offered.content_len().unwrap();
    // The child stores the new version while it arrives.
    let mut writer = child
        .intend(b"name")
        .unwrap()
        .writer(Put::metadata("without digest"))
        .unwrap();
    let mut encoder = Encoder::new(head(&new, Some(&old)), length);
    let mut decoder = Decoder::new(Offer {
        offered: Some(length),
        named_max: 0,
    });
    let (mut at, mut sent_bytes) = (0, 0);
    let mut encoder_ended = false;
    while !encoder_ended {
        if let Some(range) = encoder.wants() {
            encoder.give(&read(&sent, range));
        }
        let mut frames = Vec::new();
        at += encoder.push(&new[at..], &mut frames).unwrap();
        if at == new.len() {
            encoder_ended = true;
            let ended = std::mem::replace(&mut encoder, Encoder::new(head(b"", None), 0));
            ended.finish(&mut frames).unwrap();
        }
        sent_bytes += frames.len();
        decoder.push(&frames);
        loop {
            match decoder.next().unwrap() {
                Event::More => break,
                Event::Head(_) => {}
                Event::Wants(range) => decoder.give(&read(&offered, range)),
                Event::Content(bytes) => {
                    while writer.write(bytes).is_err() {
                        assert!(child.flush().wait());
                    }
                }
                Event::End(digest) => {
                    assert!(encoder_ended);
                    let metadata = digest.0.to_vec();
                    let writer = std::mem::replace(
                        &mut writer,
                        child
                            .intend(b"other")
                            .unwrap()
                            .writer(Put::metadata(""))
                            .unwrap(),
                    );
                    writer.commit_with(metadata).unwrap();
                }
            }
        }
    }
    assert!(sent_bytes < 5_000, "{sent_bytes}");
    let stored = child.get(b"name").wait().unwrap();
    let digest = hashcache_wan::digest::Digest::from_content(&new);
    assert_eq!(stored.metadata(), &digest.0[..]);
    assert!(read(&stored, 0..u64::MAX) == new);
}

#[test]
fn a_dictionary_costs_at_most_five_reads_a_megabyte_at_either_end() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let disk = ThrottleDevice::new(device, DiskModel::HDD_7200, Pace::Modelled, 1);
    let disk = Arc::new(disk);
    let open = || {
        Cache::open(Config {
            memory_bytes: 32 << 20,
            hot_bytes_max: 0,
            ..Config::on_device(disk.clone())
        })
        .unwrap()
    };
    let cache = open();
    let old = text(1, 9 << 20);
    let put = Put {
        length: Some(old.len() as u64),
        ..Put::metadata("")
    };
    let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
    for piece in old.chunks(1 << 20) {
        while writer.write(piece).is_err() {
            assert!(cache.flush().wait());
        }
    }
    writer.commit().unwrap();
    assert!(cache.flush().wait());
    cache.close();
    let cache = open();
    let before = disk.figures().reads;
    let hit = cache.get(b"name").wait().unwrap();
    let mut encoder = Encoder::new(head(&old, Some(&old)), old.len() as u64);
    let (mut at, mut frames) = (0, Vec::new());
    while at < old.len() {
        if let Some(range) = encoder.wants() {
            encoder.give(&read(&hit, range));
        }
        at += encoder.push(&old[at..], &mut frames).unwrap();
    }
    let reads = disk.figures().reads - before;
    println!("{reads} reads for {} bytes", old.len());
    assert!(reads * 1_000_000 <= 5 * old.len() as u64, "{reads} reads");
}
