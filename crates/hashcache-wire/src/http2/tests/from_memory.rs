//! Responses from memory mixed with responses from the service, on the same HTTP/2 connection.

use hashcache_base::share::Share;

use super::*;
use crate::memory_hit::{MemoryHits, MemoryResponse, PlainRequest, ResponseHead};

/// Answers each path `/mN` with N bytes of content, and records the end of each response.
#[derive(Default)]
struct Memory {
    ends: Ends,
    /// The charge for the content.
    share: Option<Share>,
}

impl MemoryHits for Memory {
    fn answer(
        &self,
        request: &PlainRequest<'_>,
        head: &mut ResponseHead<'_>,
    ) -> Option<MemoryResponse> {
        let (authority, size) = request.target.rsplit_once("/m")?;
        assert!(authority.ends_with("://a.test"), "{authority}");
        assert_eq!(request.authority, Some("a.test"));
        let content = of_size(size.parse().ok()?);
        head.begin();
        head.push(b"x-from", b"memory");
        head.push_length(content.len() as u64);
        head.end();
        let ends = Rc::clone(&self.ends);
        let cuts = (0..content.len()).step_by(20_000);
        let pieces = cuts.map(|at| content.slice(at..content.len().min(at + 20_000)));
        Some(MemoryResponse {
            content: pieces.collect(),
            charge: self
                .share
                .as_ref()
                .and_then(|share| share.take(content.len() as u64)),
            on_sent: Box::new(move |end| ends.borrow_mut().push(end)),
        })
    }
}

fn of_size(size: usize) -> Bytes {
    (0..size).map(|n| b"0123456789"[n % 10]).collect()
}

type Ends = Rc<RefCell<Vec<ExchangeEnd>>>;

/// The recorded ends are from the responses from memory.
fn serve_from_memory(allowance: Option<Allowance>) -> (DuplexStream, Served, Ends) {
    let memory = Memory {
        share: allowance.as_ref().map(|it| it.share().clone()),
        ..Memory::default()
    };
    let ends = Rc::clone(&memory.ends);
    let (kind, limits) = (Http2Kind::Client, Limits::default());
    let (pipe, served) = serve_as(kind, limits, allowance, Some(Rc::new(memory)));
    (pipe, served, ends)
}

#[tokio::test(start_paused = true)]
async fn what_memory_has_is_whole_and_the_service_gets_the_rest() {
    locally(async {
        let (pipe, served, ends) = serve_from_memory(None);
        let (mut sender, _connection) = client(pipe).await;
        let sizes = [5, 0, 70_000, 300_000];
        for size in sizes {
            let response = sender.send_request(get(&format!("m{size}"))).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers()["x-from"], "memory");
            let length = response.headers().get(CONTENT_LENGTH);
            // As for every empty response in HTTP/2.
            assert_eq!(length.is_some(), size > 0);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(body == of_size(size), "{size}");
        }
        let (mut head, mut with_content) = (get("m5"), get("m5"));
        *head.method_mut() = Method::HEAD;
        *with_content.body_mut() = Full::from("content");
        for request in [head, with_content] {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::NOT_FOUND);
        }
        assert_eq!(served.told.borrow().len(), 2);
        let ends = ends.borrow();
        assert_eq!(ends.len(), sizes.len());
        for (end, size) in ends.iter().zip(sizes) {
            assert!(end.complete && end.bytes_read > 0);
            assert!(end.bytes_written > size as u64, "{end:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_response_from_memory_is_sent_before_any_task_runs() {
    locally(async {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        client.write_all(&opening()).await.unwrap();
        client.write_all(&gets(8, "/m5")).await.unwrap();
        let (_stop, stopping) = watch::channel(false);
        let told = Rc::default();
        let service = move |cell, request| service(cell, request, Rc::clone(&told));
        let limits = Rc::new(Limits::default());
        let memory = Memory::default();
        let ends = Rc::clone(&memory.ends);
        let (_cache, allowance) = allowance(1 << 20);
        let mut serving = pin!(serve_http2(
            server,
            (&limits, &Http2Kind::Client),
            Some(&allowance),
            Some(Rc::new(memory)),
            service,
            stopping
        ));
        // Polled once as a task; tasks spawned by it do not run.
        let mut cx = Context::from_waker(Waker::noop());
        assert!(serving.as_mut().poll(&mut cx).is_pending());
        let mut bytes = vec![0; 4 << 10];
        let read = client.read(&mut bytes).await.unwrap();
        let last = frame(0, 1, 15, b"01234");
        assert!(bytes[..read].windows(last.len()).any(|it| it == last));
        assert_eq!(ends.borrow().len(), 8);
        assert!(allowance.share().take(1 << 20).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_pays_for_content_from_memory() {
    locally(async {
        let all = 1 << 20;
        let (_cache, allowance) = allowance(all);
        let share = allowance.share().clone();
        let (mut pipe, served, ends) = serve_from_memory(Some(allowance));
        // With a window of one byte, h2 and hyper hold some pieces, and the stream waits with the
        // rest.
        pipe.write_all(&opening_with_a_window_of_one())
            .await
            .unwrap();
        pipe.write_all(&gets(1, "/m300000")).await.unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        let since = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ends.borrow().is_empty(), "not all of it was sent");
        assert!(share.take(all - 300_000 - 120_000 - STREAM_BYTES).is_none());
        let reset = next_of(&mut pipe, 3).await;
        assert!(reset.is_some(), "RST_STREAM");
        let time = Limits::default().progress_time;
        assert!(since.elapsed() >= time && since.elapsed() < time + LINGER_TIME);
        assert!(!ends.borrow()[0].complete);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share.take(all).is_some());
        assert!(served.told.borrow().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_is_logged_once() {
    locally(async {
        let (mut pipe, served, ends) = serve_from_memory(None);
        pipe.write_all(&opening_with_a_window_of_one())
            .await
            .unwrap();
        pipe.write_all(&gets(3, "/m300000")).await.unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        // The first stream is reset with CANCEL; then the client disconnects.
        pipe.write_all(&frame(3, 0, 1, &8_u32.to_be_bytes()))
            .await
            .unwrap();
        drop(pipe);
        served.ending.await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ends = ends.borrow();
        assert_eq!(ends.len(), 3);
        assert!(ends.iter().all(|end| !end.complete));
    })
    .await;
}
