//! Content in pages in a real store: what readers and followers get.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Hit, Keep, Paid, Put, ReadError};
use hashcache_wan::digest::Digest;
use hashcache_wan::pages::{PAGE_BYTES, Packer};

use super::content::{ContentReader, Payers};
use super::follow::{ContentFollower, IsEnd};
use super::metadata_tests::sample;
use super::put::{ContentWriter, PageWriter, page_memory};
use super::*;

fn cache() -> Cache {
    let config = Config {
        memory_bytes: 32 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
    };
    Cache::open(config).unwrap()
}

/// Text that zstd makes several times smaller, in which each place is another.
fn text(bytes: usize) -> Vec<u8> {
    let words = (0u32..).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761)).into_bytes());
    words.take(bytes).collect()
}

/// Metadata of a response whose content is going to be in pages.
fn announced(length: Option<u64>) -> Bytes {
    let response = StoredResponse {
        digest: Some(UNKNOWN_DIGEST),
        pages: Some(PageTable::announced(length)),
        ..sample()
    };
    response.encode().unwrap()
}

fn begin(cache: &Cache, name: &[u8], length: Option<u64>) -> ContentWriter {
    let put = Put {
        keep: Keep::Whole,
        ..Put::metadata(announced(length))
    };
    let writer = cache.intend(name).unwrap().writer(put).unwrap();
    let (own, shared) = page_memory(length);
    let memory = (cache.reserve(own).unwrap(), cache.reserve(shared).unwrap());
    ContentWriter::in_pages(writer, memory)
}

/// Adds content as `fetch` of the proxy does.
fn write(writer: &mut ContentWriter, packer: &mut Packer, mut content: &[u8], end: IsEnd) {
    let ContentWriter::Pages(pages) = writer else {
        panic!("it is in pages")
    };
    let mut flush = |pages: &mut PageWriter, end| {
        if pages.pack(packer, end).unwrap() {
            let (writer, stored) = pages.parts();
            writer.write(stored).unwrap();
            pages.note_stored();
        }
    };
    while !content.is_empty() {
        content = &content[pages.fill(content)..];
        flush(pages, IsEnd::No);
    }
    if end == IsEnd::Yes {
        flush(pages, IsEnd::Yes);
    }
}

/// Stores content in pages; it arrives in pieces of this size.
fn store(cache: &Cache, name: &[u8], content: &[u8], piece: usize) {
    let (length, mut packer) = (Some(content.len() as u64), Packer::new().unwrap());
    let mut writer = begin(cache, name, length);
    for piece in content.chunks(piece) {
        write(&mut writer, &mut packer, piece, IsEnd::No);
    }
    write(&mut writer, &mut packer, &[], IsEnd::Yes);
    assert_eq!(writer.written(), content.len() as u64);
    let digest = Some(Digest::from_content(content));
    writer.commit(&announced(length), digest).unwrap();
}

async fn stored(cache: &Cache, name: &[u8]) -> (Hit, StoredResponse) {
    let hit = find(cache, name).await.unwrap();
    let response = StoredResponse::decode(hit.metadata()).unwrap();
    (hit, response)
}

async fn read(mut reader: ContentReader) -> Result<Vec<u8>, ReadError> {
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await {
        let piece = piece?;
        assert!(!piece.is_empty() && piece.len() <= PAGE_BYTES);
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

#[tokio::test]
async fn content_in_pages_is_small_and_every_range_of_it_comes_back() {
    let cache = cache();
    for (length, piece) in [
        (1, 1),
        (3000, 7),
        (65_536, 65_536),
        (1_000_000, 10_001),
        (0, 1),
    ] {
        let content = text(length);
        store(&cache, b"name", &content, piece);
        let (hit, response) = stored(&cache, b"name").await;
        assert_eq!(response.content_len(&hit), Some(length as u64));
        assert_eq!(response.digest, Some(Digest::from_content(&content)));
        let kept = hit.content_len().unwrap();
        assert!(
            length < 3000 || kept * 2 < length as u64,
            "{kept} of {length}"
        );
        let ends = [
            0,
            1,
            length / 2,
            length.saturating_sub(1),
            length,
            length + 5,
            65_535,
            65_536,
            65_537,
        ];
        for from in ends {
            for to in ends.into_iter().filter(|to| from <= *to) {
                let range = from as u64..to as u64;
                let reader = ContentReader::new(&hit, response.pages.as_ref(), range);
                let expected = &content[from.min(length)..to.min(length)];
                assert!(
                    read(reader).await.unwrap() == expected,
                    "{from}..{to} of {length}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_damaged_page_is_missing_content_and_the_object_is_removed() {
    let cache = cache();
    let content = text(200_000);
    store(&cache, b"good", &content, 4096);
    let (hit, response) = stored(&cache, b"good").await;
    let mut pages = hit.reader(0..u64::MAX).read_to_vec().unwrap();
    let second = response
        .pages
        .as_ref()
        .unwrap()
        .stored_range(&(65_536..65_537));
    pages[usize::try_from(second.start).unwrap() + 100] ^= 1;
    cache
        .put(b"bad", Put::metadata(hit.metadata().clone()), &pages)
        .unwrap();
    let (hit, response) = stored(&cache, b"bad").await;
    let reader = |range| ContentReader::new(&hit, response.pages.as_ref(), range);
    // The pages beside it are right.
    assert!(read(reader(131_072..200_000)).await.unwrap() == content[131_072..]);
    assert!(read(reader(0..65_536)).await.unwrap() == content[..65_536]);
    let mut whole = reader(0..200_000);
    assert!(whole.next().await.unwrap().unwrap() == content[..65_536]);
    let missing = Some(Err(ReadError::Missing { offset: 65_536 }));
    assert_eq!(whole.next().await, missing);
    assert_eq!(whole.next().await, None);
    assert!(find(&cache, b"bad").await.is_none());
    // Pages that end too early are no content either.
    let (hit, response) = stored(&cache, b"good").await;
    let short = hit.reader(0..u64::MAX).read_to_vec().unwrap();
    let put = Put::metadata(hit.metadata().clone());
    cache.put(b"short", put, &short[..short.len() - 1]).unwrap();
    let (hit, _) = stored(&cache, b"short").await;
    let reader = ContentReader::new(&hit, response.pages.as_ref(), 0..200_000);
    assert_eq!(
        read(reader).await,
        Err(ReadError::Missing { offset: 196_608 })
    );
}

/// The content that a follower returns without waiting.
fn poll(follower: &mut ContentFollower) -> Poll<Option<Result<Bytes, ReadError>>> {
    follower.poll_next(&mut Context::from_waker(Waker::noop()))
}

fn drain(follower: &mut ContentFollower, into: &mut Vec<u8>) -> Poll<Option<ReadError>> {
    loop {
        match poll(follower) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error)),
            Poll::Ready(Some(Ok(piece))) => into.extend_from_slice(&piece),
        }
    }
}

#[tokio::test]
async fn followers_get_content_as_it_comes_wherever_they_begin_and_however_slow_they_are() {
    let cache = cache();
    let content = text(700_000);
    let mut packer = Packer::new().unwrap();
    let mut writer = begin(&cache, b"name", None);
    let stream = writer.stream();
    let mut random = fastrand::Rng::with_seed(5);
    // Where each began, and what it has.
    let mut followers = vec![(0, writer.follow(0), Vec::new())];
    let mut rest = &content[..];
    while !rest.is_empty() {
        let now = random.usize(1..40_000).min(rest.len());
        write(&mut writer, &mut packer, &rest[..now], IsEnd::No);
        rest = &rest[now..];
        let come = content.len() - rest.len();
        assert_eq!(stream.written(), come as u64);
        // The first one keeps up; what has arrived is there at once.
        let (_, first, has) = &mut followers[0];
        assert_eq!(drain(first, has), Poll::Pending);
        assert!(has[..] == content[..come]);
        let from = random.usize(0..content.len());
        let follower = stream.follow(from as u64).unwrap();
        followers.push((from, follower, Vec::new()));
        for (_, follower, has) in &mut followers {
            // A step or two, or none for a long time.
            for _ in 0..random.usize(0..3) {
                if let Poll::Ready(Some(piece)) = poll(follower) {
                    has.extend_from_slice(&piece.unwrap());
                }
            }
        }
    }
    write(&mut writer, &mut packer, &[], IsEnd::Yes);
    let (_, first, has) = &mut followers[0];
    assert_eq!(drain(first, has), Poll::Pending, "it is not committed");
    writer.commit(&announced(None), None).unwrap();
    assert!(followers.len() > 30);
    for (from, mut follower, mut has) in followers {
        let mut poll_piece = |context: &mut Context<'_>| follower.poll_next(context);
        while let Some(piece) = poll_fn(&mut poll_piece).await {
            has.extend_from_slice(&piece.unwrap());
        }
        assert!(has == content[from..], "{from}");
    }
    let (hit, response) = stored(&cache, b"name").await;
    let reader = ContentReader::new(&hit, response.pages.as_ref(), 0..u64::MAX);
    assert!(read(reader).await.unwrap() == content);
}

#[tokio::test]
async fn a_follower_that_keeps_up_lets_the_writer_go_on() {
    let cache = cache();
    let (content, mut packer) = (text(3_000_000), Packer::new().unwrap());
    let mut writer = begin(&cache, b"name", None);
    let mut follower = writer.follow(0);
    let mut has = Vec::new();
    let is_ready = |writer: &ContentWriter| {
        let mut context = Context::from_waker(Waker::noop());
        writer.poll_room(&mut context, 100_000).is_ready()
    };
    for piece in content.chunks(50_000) {
        assert!(is_ready(&writer));
        write(&mut writer, &mut packer, piece, IsEnd::No);
        assert_eq!(drain(&mut follower, &mut has), Poll::Pending);
    }
    // One that waits for content far ahead.
    let mut ahead = writer.stream().follow(5_960_000).unwrap();
    drop(follower);
    for piece in content.chunks(50_000) {
        assert!(poll(&mut ahead).is_pending());
        assert!(is_ready(&writer));
        write(&mut writer, &mut packer, piece, IsEnd::No);
    }
    assert!(matches!(poll(&mut ahead), Poll::Ready(Some(Ok(_)))));
    // A follower that does not keep up makes the writer wait; when the follower is dropped, the
    // writer continues.
    let mut written = 0;
    while is_ready(&writer) {
        write(&mut writer, &mut packer, &content[..50_000], IsEnd::No);
        written += 1;
        assert!(written < 100, "nothing makes it wait");
    }
    drop(ahead);
    assert!(is_ready(&writer));
}

#[tokio::test]
async fn content_that_is_too_long_for_a_table_reaches_its_followers_and_is_not_stored() {
    let cache = cache();
    let (mut writer, mut packer) = (begin(&cache, b"long", None), Packer::new().unwrap());
    let mut follower = writer.follow(0);
    let (page, pages) = (
        vec![7; PAGE_BYTES],
        PACKED_BYTES_MAX / PAGE_BYTES as u64 + 3,
    );
    let mut received = 0;
    let mut read = |follower: &mut ContentFollower| {
        let mut content = Vec::new();
        let ended = drain(follower, &mut content);
        assert!(content.iter().all(|byte| *byte == 7));
        received += content.len() as u64;
        ended
    };
    for _ in 0..pages {
        write(&mut writer, &mut packer, &page, IsEnd::No);
        assert_eq!(read(&mut follower), Poll::Pending);
    }
    write(&mut writer, &mut packer, &[], IsEnd::Yes);
    assert!(!writer.is_stored());
    assert!(writer.commit(&announced(None), None).is_err());
    assert_eq!(read(&mut follower), Poll::Ready(None));
    assert_eq!(received, pages * PAGE_BYTES as u64);
    assert!(find(&cache, b"long").await.is_none());
}

#[tokio::test]
async fn a_write_that_is_given_up_is_an_error_and_nothing_is_stored() {
    let cache = cache();
    let content = text(100_000);
    let mut packer = Packer::new().unwrap();
    let mut writer = begin(&cache, b"name", None);
    let mut follower = writer.follow(0);
    write(&mut writer, &mut packer, &content, IsEnd::No);
    let stream = writer.stream();
    assert!(!writer.keep());
    let mut has = Vec::new();
    let aborted = ReadError::Aborted { offset: 100_000 };
    assert_eq!(drain(&mut follower, &mut has), Poll::Ready(Some(aborted)));
    assert!(has == content, "what had come is right");
    assert!(stream.follow(0).is_none());
    assert!(find(&cache, b"name").await.is_none());
}

#[tokio::test]
async fn content_of_pages_is_paid_for_as_long_as_it_is_held() {
    let cache = cache();
    store(&cache, b"name", &text(300_000), 4096);
    let (hit, response) = stored(&cache, b"name").await;
    // How much is held, and how much may be.
    let held = Arc::new(Mutex::new((0, 130_000)));
    struct Held(Arc<Mutex<(u64, u64)>>, u64);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.lock().unwrap().0 -= self.1;
        }
    }
    let account = Arc::clone(&held);
    let pages = move |bytes| {
        let mut held = account.lock().unwrap();
        let fits = held.0 + bytes <= held.1;
        fits.then(|| {
            held.0 += bytes;
            Arc::new(Held(Arc::clone(&account), bytes)) as Paid
        })
    };
    let payers = Payers {
        stored: Arc::new(|_| Some(Arc::new(()) as Paid)),
        pages: Arc::new(pages),
    };
    let reader = ContentReader::new(&hit, response.pages.as_ref(), 0..300_000);
    let mut reader = reader.paid_by(&payers);
    let mut next = || reader.poll_next(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(first))) = next() else {
        panic!("there is room for one")
    };
    assert_eq!(held.lock().unwrap().0, 65_536);
    assert_eq!(next(), Poll::Pending, "two would be 131,072 bytes");
    drop(first);
    assert_eq!(held.lock().unwrap().0, 0);
    assert!(matches!(next(), Poll::Ready(Some(Ok(_)))));
}
