//! Streams of chunks: two ends, two stores, and a link between them.

use std::collections::HashMap;
use std::sync::Arc;

use hashcache::device::{DiskModel, MemoryDevice, Pace, ThrottleDevice};
use hashcache::{Cache, Config, PolicyKind, Put};
use hashcache_wan::chunk::{Event, Key, Known, Name, Near, OUTPUT_BYTES, Stream, Windows};
use hashcache_wan::error::Reason;

use super::support::{noise, text};

const KEY: Key = Key([7; 16]);
const MIB: usize = 1 << 20;

/// Where a receiver's extents lie.
trait Store {
    fn put(&mut self, name: Name, extent: &[u8]);
    fn get(&mut self, name: Name) -> Option<Vec<u8>>;
}

impl Store for HashMap<Name, Vec<u8>> {
    fn put(&mut self, name: Name, extent: &[u8]) {
        assert!(KEY.name(extent) == name);
        self.insert(name, extent.to_vec());
    }

    fn get(&mut self, name: Name) -> Option<Vec<u8>> {
        HashMap::get(self, &name).cloned()
    }
}

type Memory = HashMap<Name, Vec<u8>>;

/// One end of a stream, and what it received.
struct End {
    stream: Stream,
    windows: Windows,
    received: Vec<u8>,
    is_finished: bool,
    stored: usize,
}

impl End {
    fn new() -> Self {
        Self::with(Windows::both(Windows::BYTES_MAX))
    }

    fn with(windows: Windows) -> Self {
        Self {
            stream: Stream::new(KEY, windows),
            windows,
            received: Vec::new(),
            is_finished: false,
            stored: 0,
        }
    }

    fn check_memory(&self) {
        let held = self.stream.memory_bytes() as u64;
        assert!(held <= self.windows.memory_bytes(), "{held} bytes");
    }

    /// Takes `link` and returns what goes back.
    fn take(
        &mut self,
        link: &[u8],
        known: &Known,
        store: &mut dyn Store,
    ) -> Result<Vec<u8>, Reason> {
        let mut out = Vec::new();
        self.stream.push_link(link);
        loop {
            match self.stream.next(known, &mut out)? {
                Event::More => return Ok(out),
                Event::Wants(name) => {
                    let extent = store.get(name);
                    self.stream.give(extent.as_deref());
                }
                Event::Store(name, extent) => {
                    store.put(name, extent);
                    self.stored += extent.len();
                }
                Event::Content(content) => self.received.extend_from_slice(content),
                Event::Finished => self.is_finished = true,
            }
            self.check_memory();
        }
    }
}

/// Sends `content` over a new stream, and returns the bytes on the link in both directions.
fn send(content: &[u8], piece: usize, known: &Known, store: &mut dyn Store) -> (usize, End) {
    let (mut near, mut far) = (End::new(), End::new());
    let (nothing, mut no_store) = (Known::new(0), Memory::new());
    let (mut at, mut bytes) = (0, 0);
    loop {
        let mut link = Vec::new();
        let upto = content.len().min(at + piece);
        at += near
            .stream
            .push(&content[at..upto], known, &mut link)
            .unwrap();
        let is_end = at == content.len();
        if is_end {
            near.stream.finish(known, &mut link).unwrap();
        }
        // Questions and answers, until neither end has more to say.
        while !link.is_empty() {
            bytes += link.len();
            let back = far.take(&link, &nothing, store).unwrap();
            bytes += back.len();
            link = near.take(&back, known, &mut no_store).unwrap();
        }
        if is_end {
            assert!(far.is_finished);
            assert!(far.received == content);
            return (bytes, far);
        }
    }
}

#[test]
fn any_content_arrives_in_any_pieces() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        // Parts of few sources, so that much of it is known in many ways.
        let mut content = Vec::new();
        for _ in 0..random.usize(..6) {
            let source = match random.u64(..4) {
                0 => noise(random.u64(..3), 200_000),
                which => text(which, 300_000),
            };
            let from = random.usize(..source.len());
            content.extend_from_slice(&source[from..random.usize(from..source.len())]);
        }
        let piece = [1 + random.usize(..500), 5_000, 65_536, 400_000][random.usize(..4)];
        send(&content, piece, &known, &mut store);
    }
}

#[test]
fn what_was_sent_before_costs_little_and_stores_nothing() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let content = noise(1, 5 * MIB);
    let (first, _) = send(&content, 100_000, &known, &mut store);
    assert!(first < content.len() * 101 / 100, "{first} bytes of noise");
    let (second, far) = send(&content, 64_000, &known, &mut store);
    assert!(second < content.len() / 1_000, "{second} bytes");
    assert!(far.stored < 16 << 10, "{} bytes", far.stored);
    let edited = [&content[..MIB], b"an insertion", &content[MIB..]].concat();
    let (third, _) = send(&edited, 64_000, &known, &mut store);
    assert!(third < second + 10_000, "{third} bytes");
}

#[test]
fn content_that_pauses_everywhere_is_still_found_later() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let content = noise(1, 400_000);
    let (mut near, mut far) = (End::new(), End::new());
    for piece in content.chunks(1_000) {
        let mut link = Vec::new();
        near.stream.push(piece, &known, &mut link).unwrap();
        near.stream.flush(&mut link).unwrap();
        let back = far.take(&link, &Known::new(0), &mut store).unwrap();
        near.take(&back, &known, &mut Memory::new()).unwrap();
        assert!(content.starts_with(&far.received));
        assert_eq!(far.received.len() % 1_000, 0);
    }
    let mut link = Vec::new();
    near.stream.finish(&known, &mut link).unwrap();
    far.take(&link, &Known::new(0), &mut store).unwrap();
    assert!(far.received == content);
    let (second, _) = send(&content, 64_000, &known, &mut store);
    assert!(second < 4_000, "{second} bytes");
}

#[test]
fn a_pause_in_known_content_costs_what_was_sent_of_the_chunk_and_not_the_rest_of_it() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let content = noise(1, 1_000_000);
    send(&content, 64_000, &known, &mut store);
    let (mut near, mut far) = (End::new(), End::new());
    for piece in content.chunks(10_000) {
        let mut link = Vec::new();
        near.stream.push(piece, &known, &mut link).unwrap();
        near.stream.flush(&mut link).unwrap();
        let back = far.take(&link, &Known::new(0), &mut store).unwrap();
        near.take(&back, &known, &mut Memory::new()).unwrap();
    }
    let mut link = Vec::new();
    near.stream.finish(&known, &mut link).unwrap();
    far.take(&link, &Known::new(0), &mut store).unwrap();
    assert!(far.received == content);
    // A hundred times half a chunk of 2.5 KiB, as long ones are met more often.
    let literal = near.stream.carried()[1].literal;
    assert!(literal < 160_000, "{literal} bytes");
}

#[test]
fn a_receiver_that_has_lost_extents_asks_for_them_and_no_one_relies_on_them_again() {
    let content = [text(1, 2 * MIB), noise(2, 2 * MIB)].concat();
    for keeps in [0, 2, 7] {
        let (known, mut store) = (Known::new(MIB), Memory::new());
        send(&content, 100_000, &known, &mut store);
        store.retain(|name, _| name.0[0] % 8 < keeps);
        let (second, _) = send(&content, 100_000, &known, &mut store);
        assert!(
            second > 100_000 && second < content.len() * 11 / 10,
            "{second}"
        );
        // Sent as answers, they are known no more: literals put them into the store again.
        send(&content, 100_000, &known, &mut store);
        let (fourth, _) = send(&content, 100_000, &known, &mut store);
        assert!(fourth < content.len() / 500, "{fourth} bytes");
    }
}

#[test]
fn a_store_that_gives_something_else_changes_no_byte() {
    let content = noise(1, 3 * MIB);
    let (known, mut store) = (Known::new(MIB), Memory::new());
    send(&content, 100_000, &known, &mut store);
    for (at, extent) in store.values_mut().enumerate() {
        match at % 3 {
            0 => extent[100] ^= 1,
            1 => extent.truncate(5_000),
            _ => {}
        }
    }
    send(&content, 100_000, &known, &mut store);
}

#[test]
fn each_direction_ends_by_itself() {
    let (mut near, mut far) = (End::new(), End::new());
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let mut link = Vec::new();
    near.stream.push(b"a request", &known, &mut link).unwrap();
    near.stream.finish(&known, &mut link).unwrap();
    far.take(&link, &known, &mut store).unwrap();
    assert!(far.is_finished && far.received == b"a request");
    let mut link = Vec::new();
    far.stream.push(b"an answer", &known, &mut link).unwrap();
    far.stream.flush(&mut link).unwrap();
    near.take(&link, &known, &mut store).unwrap();
    assert!(!near.is_finished && near.received == b"an answer");
    let after_end = near.stream.push(b"more", &known, &mut Vec::new());
    assert!(after_end.is_err());
}

#[test]
fn a_sender_stops_at_the_window_and_a_receiver_refuses_more() {
    let known = Known::new(MIB);
    let mut near = End::new();
    let content = noise(1, 5 * MIB);
    let mut link = Vec::new();
    let taken = near.stream.push(&content, &known, &mut link).unwrap();
    assert_eq!(taken as u64, Windows::BYTES_MAX);
    assert_eq!(near.stream.room(), 0);

    // A receiver whose near end takes nothing has a bound too: it is never asked for events.
    let mut far = End::new();
    let back = far.take(&link, &known, &mut Memory::new()).unwrap();
    near.take(&back, &known, &mut Memory::new()).unwrap();
    assert!(near.stream.room() > 0);
    // Acknowledgements of what was never sent.
    let mut end = End::new();
    let ack = [&[0x16][..], &1_u64.to_le_bytes()].concat();
    assert!(end.take(&ack, &known, &mut Memory::new()).is_err());
    // Questions about what is not held, and too many of them.
    let ask =
        |offset: u64, length: u8| [&[0x14][..], &offset.to_le_bytes(), &[length, 0, 0]].concat();
    assert!(
        End::new()
            .take(&ask(0, 1), &known, &mut Memory::new())
            .is_err()
    );
    let mut end = End::new();
    end.stream
        .push(&content[..100], &known, &mut Vec::new())
        .unwrap();
    end.stream.flush(&mut Vec::new()).unwrap();
    end.take(&ask(0, 100), &known, &mut Memory::new()).unwrap();
    assert!(end.take(&ask(0, 100), &known, &mut Memory::new()).is_err());
}

#[test]
fn small_blocks_and_questions_have_bounds() {
    let known = Known::new(MIB);
    // Someone types, and nobody acknowledges.
    let type_until_full = |near: &mut End| {
        let (mut link, mut typed) = (Vec::new(), 0);
        while near.stream.room() > 0 {
            typed += near.stream.push(b"x", &known, &mut link).unwrap();
            near.stream.flush(&mut link).unwrap();
        }
        near.check_memory();
        (link, typed)
    };
    let mut near = End::new();
    let (link, typed) = type_until_full(&mut near);
    assert_eq!(typed, 1024);
    // After an honest receiver has answered, the near end continues.
    let mut far = End::new();
    let back = far.take(&link, &known, &mut Memory::new()).unwrap();
    near.take(&back, &known, &mut Memory::new()).unwrap();
    assert!(far.received == vec![b'x'; typed] && near.stream.room() > 0);
    let (more, _) = type_until_full(&mut near);

    // A receiver whose near end takes nothing refuses more blocks than that.
    let mut full = End::new();
    full.stream.set_near(Near::Full);
    full.take(&link, &known, &mut Memory::new()).unwrap();
    let refused = full.take(&more, &known, &mut Memory::new()).unwrap_err();
    assert_eq!(refused, Reason::Limit("window"));
}

#[test]
fn damage_gives_no_wrong_byte_and_no_end_before_the_end() {
    let contents = [text(1, 150_000), noise(2, 120_000)];
    // A first stream, so that the second one has references.
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let mut links = Vec::new();
    for content in &contents {
        send(&content[..100_000], 50_000, &known, &mut store);
        let mut stream = Stream::new(KEY, Windows::both(u64::MAX));
        let mut link = Vec::new();
        for piece in content.chunks(20_000) {
            stream.push(piece, &known, &mut link).unwrap();
            stream.flush(&mut link).unwrap();
        }
        stream.finish(&known, &mut link).unwrap();
        links.push((content, link));
    }
    let mut finished = 0;
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (content, link) = &links[random.usize(..2)];
        let mut link = link.clone();
        match random.u8(..4) {
            0 => link.truncate(random.usize(..link.len())),
            1 => {
                let at = random.usize(..link.len());
                link.drain(at..link.len().min(at + random.usize(1..3_000)));
            }
            2 => {
                let at = random.usize(..link.len());
                let part = link[at..link.len().min(at + random.usize(1..3_000))].to_vec();
                let to = random.usize(..link.len());
                link.splice(to..to, part);
            }
            _ => {
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..link.len());
                    link[at] ^= 1 << random.u8(..8);
                }
            }
        }
        let mut far = End::new();
        for piece in link.chunks(random.usize(1_000..90_000)) {
            if far.take(piece, &known, &mut store).is_err() {
                break;
            }
        }
        assert!(content.starts_with(&far.received), "seed {seed}");
        if far.is_finished {
            finished += 1;
            assert!(far.received == **content, "seed {seed}");
        }
    }
    assert!(finished < 2_000, "{finished} were not damaged");
}

/// Extents in the engine, in groups of 1 MiB as the proxy stores them.
struct Engine {
    cache: Cache,
    extents: u64,
}

impl Store for Engine {
    fn put(&mut self, name: Name, extent: &[u8]) {
        let group = 1 + self.extents / 16;
        self.extents += 1;
        let put = || Put {
            length: Some(extent.len() as u64),
            group,
            ..Put::metadata("")
        };
        while self.cache.put(&KEY.object(name), put(), extent).is_err() {
            assert!(self.cache.flush().wait());
        }
    }

    fn get(&mut self, name: Name) -> Option<Vec<u8>> {
        let hit = self.cache.get(&KEY.object(name)).wait()?;
        hit.reader(0..u64::MAX).read_to_vec().ok()
    }
}

#[test]
fn what_was_received_is_sent_back_as_references() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let (far_known, mut near_store) = (Known::new(MIB), Memory::new());
    let content = noise(3, 2 * MIB);
    let (mut near, mut far) = (End::new(), End::new());
    for piece in content.chunks(60_000) {
        let mut link = Vec::new();
        near.stream.push(piece, &known, &mut link).unwrap();
        let back = far.take(&link, &far_known, &mut store).unwrap();
        near.take(&back, &known, &mut near_store).unwrap();
    }
    let mut link = Vec::new();
    near.stream.finish(&known, &mut link).unwrap();
    let back = far.take(&link, &far_known, &mut store).unwrap();
    near.take(&back, &known, &mut near_store).unwrap();
    assert!(far.is_finished && far.received == content);
    let mut link = Vec::new();
    let taken = far.stream.push(&content, &far_known, &mut link).unwrap();
    assert_eq!(taken, content.len());
    far.stream.finish(&far_known, &mut link).unwrap();
    assert!(link.len() < 10_000, "{} bytes", link.len());
    let back = near.take(&link, &known, &mut near_store).unwrap();
    assert!(near.is_finished && near.received == content);
    assert!(near.stream.is_done());
    assert!(!far.stream.is_done());
    far.take(&back, &far_known, &mut store).unwrap();
    assert!(far.stream.is_done());
    let [received, sent] = far.stream.carried();
    assert!(sent.referred > sent.literal * 50, "{sent:?}");
    assert_eq!(received.literal, content.len() as u64);
}

#[test]
fn two_ends_that_are_full_do_not_wait_for_each_other() {
    let known = Known::new(MIB);
    let windows = Windows::both(0);
    let content = noise(4, MIB);
    let mut ends = [End::with(windows), End::with(windows)];
    let mut links = [Vec::new(), Vec::new()];
    for (end, link) in ends.iter_mut().zip(&mut links) {
        let taken = end.stream.push(&content, &known, link).unwrap();
        assert_eq!(taken as u64, windows.send);
        end.stream.flush(link).unwrap();
        end.stream.set_near(Near::Full);
    }
    let [mut first, mut second] = ends;
    second.take(&links[0], &known, &mut Memory::new()).unwrap();
    first.take(&links[1], &known, &mut Memory::new()).unwrap();
    assert!(first.received.is_empty() && second.received.is_empty());
    // One takes content again: its acknowledgement passes the other one's content.
    second.stream.set_near(Near::Takes);
    let back = second.take(&[], &known, &mut Memory::new()).unwrap();
    first.take(&back, &known, &mut Memory::new()).unwrap();
    assert!(first.received.is_empty() && first.stream.room() > 0);
    assert!(second.received == content[..windows.send as usize]);
}

#[test]
fn questions_wait_while_the_output_is_full() {
    let content = noise(5, 2 * MIB);
    let (known, mut store) = (Known::new(MIB), Memory::new());
    send(&content, 100_000, &known, &mut store);
    let (mut near, mut far) = (End::new(), End::new());
    let mut link = Vec::new();
    near.stream.push(&content, &known, &mut link).unwrap();
    near.stream.finish(&known, &mut link).unwrap();
    let asked = far.take(&link, &Known::new(0), &mut Memory::new()).unwrap();
    near.stream.push_link(&asked);
    let mut largest = 0;
    loop {
        let mut out = Vec::new();
        let event = near.stream.next(&known, &mut out).unwrap();
        assert!(matches!(event, Event::More | Event::Store(..)));
        near.check_memory();
        largest = largest.max(out.len());
        if out.is_empty() {
            break;
        }
        far.take(&out, &Known::new(0), &mut Memory::new()).unwrap();
    }
    assert!(far.is_finished && far.received == content);
    assert!(largest < OUTPUT_BYTES + (300 << 10), "{largest} bytes");
}

#[test]
fn the_smallest_windows_carry_everything_in_little_memory() {
    let windows = Windows::both(0);
    assert!(windows.memory_bytes() < 5 * MIB as u64);
    let known = Known::new(MIB);
    let content = [text(1, MIB), noise(6, MIB)].concat();
    let (mut near, mut far) = (End::with(windows), End::with(windows));
    let mut at = 0;
    while at < content.len() {
        let mut link = Vec::new();
        let upto = content.len().min(at + 40_000);
        let push = near.stream.push(&content[at..upto], &known, &mut link);
        let taken = push.unwrap();
        at += taken;
        if taken == 0 {
            near.stream.flush(&mut link).unwrap();
        }
        near.check_memory();
        let back = far.take(&link, &Known::new(0), &mut Memory::new()).unwrap();
        near.take(&back, &known, &mut Memory::new()).unwrap();
    }
    let mut link = Vec::new();
    near.stream.finish(&known, &mut link).unwrap();
    far.take(&link, &Known::new(0), &mut Memory::new()).unwrap();
    assert!(far.received == content);
}

#[test]
fn no_window_is_so_small_that_both_ends_wait_for_each_other() {
    let (known, mut store) = (Known::new(MIB), Memory::new());
    let old = noise(7, 2 * MIB);
    send(&old, 64_000, &known, &mut store);
    for window in [0, 300_000, 360_000, 500_000, 1 << 20] {
        for new in [0, 3_000, 60_000, 130_000] {
            let windows = Windows::both(window);
            let (mut near, mut far) = (End::with(windows), End::with(windows));
            // A block of literals, then known content without a pause.
            let content = [noise(8 + new as u64, new), old.clone()].concat();
            let mut at = 0;
            while at < content.len() {
                let mut link = Vec::new();
                let push = near.stream.push(&content[at..], &known, &mut link);
                let taken = push.unwrap();
                at += taken;
                // As the caller does when there is no room.
                let is_flushed = taken == 0 && !near.stream.awaits_acknowledgement();
                if is_flushed {
                    near.stream.flush(&mut link).unwrap();
                }
                assert!(taken > 0 || is_flushed, "{window}, {new}: stuck at {at}");
                let back = far.take(&link, &Known::new(0), &mut store).unwrap();
                near.take(&back, &known, &mut Memory::new()).unwrap();
            }
        }
    }
}

#[test]
fn a_block_with_more_steps_than_chunks_is_refused() {
    let mut stream = Stream::new(KEY, Windows::both(0));
    // A literal of two bytes and the end of an extent, again and again.
    let steps = [0x08, 0x03].repeat(200);
    let mut block = vec![0x11, 144, 1, 0];
    block.extend((steps.len() as u16).to_le_bytes());
    block.extend([1, 0, 0]);
    block.extend([0; 8]);
    block.extend(steps);
    block.push(0);
    stream.push_link(&block);
    let event = stream.next(&Known::new(0), &mut Vec::new());
    assert!(matches!(event, Err(Reason::Limit("steps"))));
}

#[test]
fn a_run_of_chunks_costs_at_most_a_seek_for_sixteen_of_them() {
    for (policy, grouped, hot_bytes_max) in [
        (PolicyKind::Log, false, 0),
        (PolicyKind::Log, false, 4 << 20),
        (PolicyKind::Log, true, 0),
        // What one read brings of a group is kept until it is asked for.
        (PolicyKind::Log, true, 4 << 20),
        (PolicyKind::LogLru, false, 0),
        (PolicyKind::SetMemLru, false, 0),
        (PolicyKind::Set, false, 0),
    ] {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let disk = ThrottleDevice::new(device, DiskModel::HDD_7200, Pace::Modelled, 1);
        let disk = Arc::new(disk);
        let open = || Engine {
            cache: Cache::open(Config {
                policy,
                grouped,
                memory_bytes: 32 << 20,
                hot_bytes_max,
                ..Config::on_device(disk.clone())
            })
            .unwrap(),
            extents: 0,
        };
        let content = noise(1, 20 * MIB);
        let known = Known::new(4 * MIB);
        let mut store = open();
        send(&content, 100_000, &known, &mut store);
        assert!(store.cache.flush().wait());
        let written = disk.figures();
        store.cache.close();
        let mut store = open();
        let before = disk.figures();
        let (bytes, _) = send(&content, 100_000, &known, &mut store);
        let figures = disk.figures();
        let chunks = content.len() as u64 / 2_048;
        let (reads, seeks) = (figures.reads - before.reads, figures.seeks - before.seeks);
        println!(
            "{policy:?} grouped {grouped} hot {hot_bytes_max}: {chunks} chunks, {reads} reads, \
             {seeks} seeks, {} seeks to write, {bytes} bytes on the link, index {} bytes",
            written.seeks,
            store.cache.stats().index_bytes,
        );
        if policy == PolicyKind::Log {
            assert!(bytes < content.len() / 1_000, "{bytes} bytes");
            assert!(seeks * 16 <= chunks, "{seeks} seeks for {chunks} chunks");
        }
    }
}
