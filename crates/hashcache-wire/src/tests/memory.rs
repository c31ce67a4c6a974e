//! A connection reserves memory before it uses it, and releases it.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Reservation};
use hashcache_base::share::Allowance;

use super::*;

fn cache() -> Cache {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

/// Reserves all except less than `left` bytes.
fn spend(cache: &Cache, left: u64) -> Vec<Reservation> {
    let mut held = Vec::new();
    for bytes in [256 << 10, left] {
        while let Some(reservation) = cache.reserve(bytes) {
            held.push(reservation);
        }
    }
    held
}

fn used(cache: &Cache) -> u64 {
    cache.stats().memory_used_bytes
}

/// Runs `client` against a connection that reserves memory from `cache`.
async fn talk_within<CF: Future>(
    cache: &Cache,
    client: impl FnOnce(DuplexStream) -> CF,
) -> (Ending, CF::Output) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (_stop, stopping) = watch::channel(false);
    let cell = Cell::within(&Allowance::unbounded(cache), 0);
    let service = |request| echo(request, cell.clone());
    let limits = Rc::new(Limits::default());
    let serving = serve_connection(far, &limits, &cell, None, service, stopping);
    tokio::join!(serving, client(near))
}

fn request(padding: usize) -> String {
    let padding = "a".repeat(padding);
    format!("GET http://a/ HTTP/1.1\r\nHost: a\r\nX-Padding: {padding}\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn a_head_for_which_there_is_no_memory_is_answered_with_503() {
    let cache = cache();
    // Enough to serve a request on an ordinary connection.
    let held = spend(&cache, 48 << 10);
    let mut held = held.into_iter().rev();
    drop(held.next());
    let (ending, output) = talk_within(&cache, async |mut client: DuplexStream| {
        client.write_all(request(60_000).as_bytes()).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    assert_eq!(ending, Ending::Closed);
    assert_eq!(statuses(&output), [StatusCode::SERVICE_UNAVAILABLE]);
    drop(held);
    let before = used(&cache);
    let (_, output) = talk_within(&cache, async |mut client: DuplexStream| {
        client.write_all(request(60_000).as_bytes()).await.unwrap();
        let output = read_until(&mut client, ">").await;
        drop(client);
        output
    })
    .await;
    assert_eq!(statuses(&output), [StatusCode::OK]);
    assert_eq!(used(&cache), before);
}

#[tokio::test(start_paused = true)]
async fn a_large_head_that_is_not_complete_is_on_the_books() {
    let cache = cache();
    let before = used(&cache);
    let held = talk_within(&cache, async |mut client: DuplexStream| {
        client
            .write_all(&request(50_000).as_bytes()[..40_000])
            .await
            .unwrap();
        // Until the other side has read everything that it reads for now.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        used(&cache) - before
    });
    let (_, held) = held.await;
    assert!(held >= 40_000, "{held}");
    assert_eq!(used(&cache), before);
}

#[tokio::test(start_paused = true)]
async fn without_memory_for_a_request_the_answer_is_503_and_with_it_the_next_is_served() {
    let cache = cache();
    let held = spend(&cache, 1 << 10);
    let (ending, output) = talk_within(&cache, async |mut client: DuplexStream| {
        client.write_all(request(1).as_bytes()).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    assert_eq!(ending, Ending::NoMemory);
    assert_eq!(statuses(&output), [StatusCode::SERVICE_UNAVAILABLE]);
    drop(held);
    let (_, output) = talk_within(&cache, async |mut client: DuplexStream| {
        client.write_all(request(1).as_bytes()).await.unwrap();
        read_until(&mut client, ">").await
    })
    .await;
    assert_eq!(statuses(&output), [StatusCode::OK]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_keeps_nothing_between_two_requests() {
    let cache = cache();
    let before = used(&cache);
    let (_, after) = talk_within(&cache, async |mut client: DuplexStream| {
        client.write_all(request(1).as_bytes()).await.unwrap();
        read_until(&mut client, ">").await;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        used(&cache) - before
    })
    .await;
    assert_eq!(after, 0);
}
