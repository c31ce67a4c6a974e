//! Deadlines, and how connections close.

use std::time::Duration;

use http::header::CONTENT_LENGTH;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// Seconds until the server closes the connection if a client sends `parts`, a second apart.
async fn seconds_until_closed(parts: &[&[u8]]) -> (Ending, u64, String) {
    let before = Instant::now();
    let (ending, output) = talk(Limits::default(), echo, |mut client| async move {
        for part in parts {
            if client.write_all(part).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let output = rest_of(&mut client).await;
        (before.elapsed().as_secs(), output)
    })
    .await;
    (ending, output.0, output.1)
}

#[tokio::test(start_paused = true)]
async fn a_head_must_be_complete_in_time_and_is_not_answered_otherwise() {
    let (ending, seconds, output) = seconds_until_closed(&[b"G", b"E", b"T"]).await;
    assert_eq!(
        (ending, seconds, output.as_str()),
        (Ending::SlowHead, 10, "")
    );
    // At any speed of arrival.
    let (ending, seconds, _) = seconds_until_closed(&[b"G".as_slice(); 30]).await;
    assert_eq!(
        (ending, seconds),
        (Ending::SlowHead, 11),
        "noticed at the next byte"
    );
    // Also for the second head on a connection.
    let (ending, seconds, output) = seconds_until_closed(&[GET, b"", b"GET", b" "]).await;
    assert_eq!((ending, seconds), (Ending::SlowHead, 12));
    assert_eq!(statuses(&output), [200]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_rest_for_a_while() {
    let (ending, seconds, output) = seconds_until_closed(&[]).await;
    assert_eq!((ending, seconds, output.as_str()), (Ending::Idle, 60, ""));
    let (ending, seconds, output) = seconds_until_closed(&[b"", GET, b"", b"", b"", GET]).await;
    assert_eq!(
        (ending, seconds),
        (Ending::Idle, 65),
        "parked and unparked in between"
    );
    assert_eq!(statuses(&output), [200, 200]);
}

#[tokio::test(start_paused = true)]
async fn a_body_must_go_on_coming() {
    let post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1";
    let (_, seconds, output) = seconds_until_closed(&[post, b"2"]).await;
    assert_eq!(
        (seconds, statuses(&output)),
        (61, vec![StatusCode::BAD_REQUEST])
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_must_go_on_reading() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        whole(vec![b'x'; 1 << 20])
    };
    let before = Instant::now();
    let (ending, ()) = talk(Limits::default(), service, |mut client| async move {
        client.write_all(GET).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        client.read_exact(&mut [0; 100]).await.unwrap();
        // Held, and not read, for long enough.
        tokio::time::sleep(Duration::from_secs(100)).await;
    })
    .await;
    assert_eq!(
        (ending, before.elapsed().as_secs()),
        (Ending::SlowWrite, 130)
    );
}

/// The client may have closed only its side, so it counts as disconnected only after nothing was
/// sent to it for a long time.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_ends_its_request() {
    let (told, mut sent) = mpsc::unbounded_channel();
    let service = move |_, cell: Rc<Cell>| {
        cell.next_head();
        let told = told.clone();
        cell.on_sent(move |sent| told.send(sent.complete).unwrap());
        std::future::pending()
    };
    let (ending, ()) = talk(Limits::default(), service, |mut client| async move {
        client.write_all(GET).await.unwrap();
    })
    .await;
    assert_eq!(ending, Ending::Broken);
    assert_eq!(sent.recv().await, Some(false));
}

#[tokio::test(start_paused = true)]
async fn told_to_stop_a_connection_finishes_its_answer() {
    for (input, answers) in [(&b""[..], 0), (b"GET", 0), (GET, 1)] {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (stop, stopping) = watch::channel(false);
        let service = |_, cell: Rc<Cell>| async move {
            cell.next_head();
            tokio::time::sleep(Duration::from_secs(5)).await;
            whole("done")
        };
        let client = async |mut client: DuplexStream| {
            client.write_all(input).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.send(true).unwrap();
            rest_of(&mut client).await
        };
        let (ending, output) = tokio::join!(
            serve(far, Limits::default(), service, stopping),
            client(near)
        );
        assert_eq!((ending, statuses(&output).len()), (Ending::Closed, answers));
        assert!(
            answers == 0 || output.contains("Connection: close\r\n"),
            "{output}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn told_to_stop_a_new_connection_takes_the_request_that_is_on_its_way() {
    for (pause_ms, answers) in [(100, 1), (900, 1), (1_500, 0)] {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (stop, stopping) = watch::channel(false);
        let client = async |mut client: DuplexStream| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.send(true).unwrap();
            let stopped = Instant::now();
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            // Two requests: the second is not answered.
            let _ = client.write_all(&[GET, GET].concat()).await;
            let output = rest_of(&mut client).await;
            (output, stopped.elapsed())
        };
        let (ending, (output, took)) =
            tokio::join!(serve(far, Limits::default(), echo, stopping), client(near));
        assert_eq!((ending, statuses(&output).len()), (Ending::Closed, answers));
        assert!(answers == 0 || output.contains("Connection: close\r\n"));
        assert!(
            took <= Duration::from_millis(pause_ms.max(1_001)),
            "{took:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_is_readable_although_the_client_goes_on_sending() {
    let (mut client, socket) = tcp_pair().await;
    let (_stop, stopping) = watch::channel(false);
    let served = serve(socket, Limits::default(), echo, stopping);
    let client = async {
        client
            .write_all(b"POST /#a HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n")
            .await?;
        for _ in 0..40 {
            client.write_all(&[b'x'; 1000]).await?;
            tokio::task::yield_now().await;
        }
        let mut output = String::new();
        client.read_to_string(&mut output).await?;
        io::Result::Ok(output)
    };
    let (ending, output) = tokio::join!(served, client);
    assert_eq!(ending, Ending::Closed);
    assert_eq!(statuses(&output.expect("no reset")), [400]);
}

#[tokio::test(start_paused = true)]
async fn lingering_is_bounded() {
    // Bounded in time: this client never stops reading and never closes.
    let before = Instant::now();
    let (ending, mut client) = talk(Limits::default(), echo, |mut client| async move {
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        client
    })
    .await;
    assert_eq!((ending, before.elapsed().as_secs()), (Ending::Closed, 1));
    assert_eq!(statuses(&rest_of(&mut client).await), [200]);
    // Bounded in bytes: this client never stops sending.
    let before = Instant::now();
    talk(Limits::default(), echo, |mut client| async move {
        while client.write_all(b"\0nonsense").await.is_ok() {}
    })
    .await;
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// The result for an HTTP/1.0 client of a response that sends `part` and stops in this way after
/// `part` was read.
async fn http_1_0_answer(end: End) -> (Ending, io::Result<String>) {
    let (mut client, socket) = tcp_pair().await;
    let (_stop, stopping) = watch::channel(false);
    let (part_read, on) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
    let go_on = on.clone();
    let service = move |_, cell: Rc<Cell>| {
        let go_on = go_on.clone();
        async move {
            cell.next_head();
            let (body, mut answer) = live();
            body.send(Ok("part")).unwrap();
            if let End::Short = end {
                answer.headers_mut().insert(CONTENT_LENGTH, 9.into());
            }
            tokio::task::spawn_local(async move {
                go_on.notified().await;
                match end {
                    End::Whole | End::Short => {}
                    End::Fails => body.send(Err(io::ErrorKind::UnexpectedEof.into())).unwrap(),
                    End::Dropped => unreachable!("the connection went first"),
                }
            });
            answer
        }
    };
    let served = async {
        let served = serve(socket, Limits::default(), service, stopping);
        tokio::select! {
            ending = served => ending,
            () = part_read.notified(), if matches!(end, End::Dropped) => Ending::Broken,
        }
    };
    let client = async {
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut output = read_until(&mut client, "part").await;
        if let End::Dropped = end {
            part_read.notify_one();
        } else {
            on.notify_one();
        }
        client.read_to_string(&mut output).await?;
        Ok(output)
    };
    tokio::task::LocalSet::new()
        .run_until(async { tokio::join!(served, client) })
        .await
}

#[derive(Clone, Copy)]
enum End {
    Whole,
    Short,
    Fails,
    Dropped,
}

#[tokio::test]
async fn an_answer_that_ends_with_the_connection_is_whole_or_reset() {
    let (ending, output) = http_1_0_answer(End::Whole).await;
    assert_eq!(ending, Ending::Closed);
    assert!(output.unwrap().ends_with("\r\n\r\npart"));
    // With a length the client detects the truncation, and the received part is worth keeping.
    let (ending, output) = http_1_0_answer(End::Short).await;
    assert_eq!(ending, Ending::Broken);
    let output = output.unwrap();
    assert!(output.contains("Content-Length: 9\r\n") && output.ends_with("\r\n\r\npart"));
    for (end, expected) in [(End::Fails, Ending::Broken), (End::Dropped, Ending::Broken)] {
        let (ending, output) = http_1_0_answer(end).await;
        assert_eq!(ending, expected);
        assert_eq!(output.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test(start_paused = true)]
async fn a_chunked_answer_that_fails_has_no_last_chunk() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        let (body, answer) = live();
        body.send(Ok("part")).unwrap();
        body.send(Err(io::ErrorKind::UnexpectedEof.into())).unwrap();
        answer
    };
    let (ending, output) = talk(Limits::default(), service, |mut client| async move {
        client.write_all(GET).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    assert_eq!(ending, Ending::Broken);
    assert!(!output.contains("0\r\n\r\n"), "{output}");
}

/// As an upload, which is a separate task.
#[tokio::test(start_paused = true)]
async fn content_that_another_task_reads_has_its_deadline_and_the_client_may_leave_behind_it() {
    let service = |request: Request<ClientBody>, cell: Rc<Cell>| async move {
        cell.next_head();
        let reading = tokio::task::spawn_local(request.into_body().collect());
        match reading.await.unwrap() {
            Ok(_) => std::future::pending().await,
            Err(_) => refusal(cell.body_failure().unwrap()),
        }
    };
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n1";
    let local = tokio::task::LocalSet::new();
    let before = Instant::now();
    let silent = talk(Limits::default(), service, |mut client| async move {
        client.write_all(head).await.unwrap();
        let output = rest_of(&mut client).await;
        (output, before.elapsed().as_secs())
    });
    let (_, (output, seconds)) = local.run_until(silent).await;
    assert_eq!(
        (statuses(&output), seconds),
        (vec![StatusCode::BAD_REQUEST], 60)
    );
    let (mut client, socket) = tcp_pair().await;
    let (_stop, stopping) = watch::channel(false);
    let leaving = async {
        client.write_all(head).await.unwrap();
        client.write_all(b"23").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        socket2::SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(client);
    };
    let before = Instant::now();
    let served = serve(socket, Limits::default(), service, stopping);
    let (ending, ()) = local
        .run_until(async { tokio::join!(served, leaving) })
        .await;
    assert_eq!((ending, before.elapsed().as_secs()), (Ending::Broken, 1));
}
