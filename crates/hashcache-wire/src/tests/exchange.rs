//! Messages in order, request bodies, interim responses, upgrades.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;

const GET: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order_and_a_refused_one_is_the_last() {
    let input = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
                 POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\
                 POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2;x=y\r\nde\r\n1\r\nf\r\n0\r\nT: u\r\n\r\n\
                 \r\nHEAD /4 HTTP/1.1\r\nHost: a\r\n\r\n\
                 GET /5#x HTTP/1.1\r\nHost: a\r\n\r\n\
                 GET /6 HTTP/1.1\r\nHost: a\r\n\r\n";
    let output = answer_to(input.as_bytes()).await;
    assert_eq!(statuses(&output), [200, 200, 200, 200, 400]);
    let places = [
        "<GET /1  0>",
        "<POST /2 abc 0>",
        "<POST /3 def 1>",
        "fragment in the",
    ];
    let places: Vec<_> = places
        .iter()
        .map(|told| output.find(told).expect(told))
        .collect();
    assert!(places.is_sorted(), "{output}");
    assert!(!output.contains("/6"));
}

#[tokio::test(start_paused = true)]
async fn where_the_bytes_are_cut_changes_nothing() {
    let input: &[u8] = b"\r\nPOST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        4\r\nWiki\r\n6;ext=1\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nTr: a\r\nU: b\r\n\r\n\
        PUT /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nGET / HTTP/1\
        POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
        GET /4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /5 HTTP/1.1\r\n\r\n";
    let dated = |text: String| {
        let lines = text.split("\r\n").filter(|line| !line.starts_with("Date"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let expected = dated(answer_to(input).await);
    assert_eq!(statuses(&expected), [200; 4]);
    assert!(
        expected.contains("<POST /1 Wikipedia in \\r\\n\\r\\nchunks. 2>"),
        "{expected}"
    );
    assert!(expected.contains("<PUT /2 GET / HTTP/1 0>"), "{expected}");

    let in_parts = |cuts: Vec<usize>| async move {
        let client = |mut client: DuplexStream| async move {
            let mut at = 0;
            for cut in cuts.into_iter().chain([input.len()]) {
                client.write_all(&input[at..cut]).await.unwrap();
                at = cut;
                // Lets the server read each part separately.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            rest_of(&mut client).await
        };
        dated(talk(Limits::default(), echo, client).await.1)
    };
    assert_eq!(
        in_parts((1..input.len()).collect()).await,
        expected,
        "byte by byte"
    );
    for cut in 1..input.len() {
        assert_eq!(in_parts(vec![cut]).await, expected, "cut at {cut}");
    }
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut cuts: Vec<_> = (0..8).map(|_| random.usize(0..input.len())).collect();
        cuts.sort_unstable();
        assert_eq!(in_parts(cuts).await, expected, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_without_meaning_fails_and_the_failure_can_be_answered() {
    for (chunks, reason) in [
        (
            "5\r\nabcdeGET /x HTTP/1.1\r\n",
            "chunk longer than its size",
        ),
        ("5\nabcde\r\n0\r\n\r\n", "malformed chunk size"),
        ("1;a\nb\r\nx\r\n0\r\n\r\n", "malformed chunk extension"),
        (
            "0\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
            "malformed trailer",
        ),
    ] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let output = answer_to((head.to_owned() + chunks + GET).as_bytes()).await;
        assert_eq!(statuses(&output), [400], "{output}");
        assert!(
            output.contains("Connection: close\r\n") && output.ends_with(reason),
            "{output}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_learns_what_the_request_does_not_say() {
    let (heads, mut seen) = mpsc::unbounded_channel();
    let service = move |_, cell: Rc<Cell>| {
        heads.send(cell.next_head()).unwrap();
        async { whole("") }
    };
    let before = Instant::now();
    let head = b"POST http://b/%41 HTTP/1.0\r\nContent-Length: 7\r\n\r\n";
    talk(Limits::default(), service, |mut client| async move {
        client.write_all(&head[..9]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.write_all(&head[9..]).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    let Some(RequestHead::Accepted(info)) = seen.recv().await else {
        panic!("refused");
    };
    assert_eq!(info.target, "http://b/%41");
    assert_eq!(info.form, RequestForm::Absolute);
    assert_eq!(info.version, http::Version::HTTP_10);
    assert_eq!(info.content, ContentFraming::Length(7));
    assert!(
        info.received < before + Duration::from_millis(500),
        "time of the first byte"
    );
}

#[tokio::test(start_paused = true)]
async fn interim_responses_stand_between_two_messages() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        let mut fields = HeaderMap::new();
        fields.insert("link", HeaderValue::from_static("</a>; rel=preload"));
        assert!(cell.send_interim(StatusCode::EARLY_HINTS, &fields));
        tokio::task::yield_now().await;
        assert!(cell.send_interim(StatusCode::PROCESSING, &HeaderMap::new()));
        assert!(!cell.send_interim(StatusCode::CONTINUE, &HeaderMap::new()));
        assert!(!cell.send_interim(StatusCode::OK, &HeaderMap::new()));
        let (body, answer) = live();
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            let sent = cell.send_interim(StatusCode::EARLY_HINTS, &HeaderMap::new());
            body.send(Ok(if sent { "late" } else { "ok" })).unwrap();
        });
        answer
    };
    let input = GET.repeat(3) + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let local = tokio::task::LocalSet::new();
    let (_, output) = local
        .run_until(talk(Limits::default(), service, |mut client| async move {
            client.write_all(input.as_bytes()).await.unwrap();
            rest_of(&mut client).await
        }))
        .await;
    assert_eq!(statuses(&output), [103, 102, 200].repeat(4));
    assert_eq!(
        output.matches("\r\n\r\n2\r\nok\r\n0\r\n\r\n").count(),
        4,
        "{output}"
    );
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n\
                 HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert_eq!(output.matches(hints).count(), 4, "{output}");
}

#[tokio::test(start_paused = true)]
async fn the_version_of_the_origin_is_not_passed_on() {
    let of_an_old_origin = |_: Request<ClientBody>, cell: Rc<Cell>| async move {
        cell.next_head();
        let (parts, mut response) = live();
        *response.version_mut() = http::Version::HTTP_10;
        parts.send(Ok("all")).unwrap();
        response
    };
    let (_, output) = talk(
        Limits::default(),
        of_an_old_origin,
        |mut client| async move {
            client.write_all(GET.as_bytes()).await.unwrap();
            rest_of(&mut client).await
        },
    )
    .await;
    assert!(output.starts_with("HTTP/1.1 200"), "{output}");
    // The last chunk shows that the content is complete; a closed connection would not.
    assert!(output.ends_with("\r\n3\r\nall\r\n0\r\n\r\n"), "{output}");
}

#[tokio::test(start_paused = true)]
async fn http_1_0_clients_get_no_interim_responses() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        assert!(!cell.send_interim(StatusCode::EARLY_HINTS, &HeaderMap::new()));
        whole("x")
    };
    let (_, output) = talk(Limits::default(), service, |mut client| async move {
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    assert_eq!(statuses(&output), [200]);
}

#[tokio::test(start_paused = true)]
async fn continue_is_sent_once_and_when_the_body_is_read() {
    let service = |request: Request<ClientBody>, cell: Rc<Cell>| async move {
        cell.next_head();
        assert!(cell.send_interim(StatusCode::EARLY_HINTS, &HeaderMap::new()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        whole(request.into_body().collect().await.unwrap().to_bytes())
    };
    let (_, output) = talk(Limits::default(), service, |mut client| async move {
        let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
                    Connection: close\r\nContent-Length: 3\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let interim = read_until(&mut client, "100 Continue\r\n\r\n").await;
        client.write_all(b"abc").await.unwrap();
        interim + &rest_of(&mut client).await
    })
    .await;
    assert_eq!(statuses(&output), [103, 100, 200]);
    assert!(output.ends_with("\r\n\r\nabc"));
}

#[tokio::test(start_paused = true)]
async fn connect_hands_over_the_socket_and_what_was_sent_ahead() {
    let (give, given) = oneshot::channel();
    let give = std::cell::RefCell::new(Some(give));
    let service = move |_, cell: Rc<Cell>| {
        let RequestHead::Accepted(head) = cell.next_head() else {
            panic!("refused")
        };
        let refused = head.target == "b:1";
        if !refused {
            give.take().unwrap().send(cell.upgraded()).unwrap();
        }
        async move {
            let mut answer = Response::new(Answer::Whole(None));
            if refused {
                *answer.status_mut() = StatusCode::FORBIDDEN;
            }
            answer
        }
    };
    let (ending, ()) = talk(Limits::default(), service, |mut client| async move {
        let refused = "CONNECT b:1 HTTP/1.1\r\nHost: b:1\r\n\r\n";
        let accepted = "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\nGET / HTTP/1.1\n\n\0early";
        client
            .write_all((refused.to_owned() + accepted).as_bytes())
            .await
            .unwrap();
        let answer = read_until(&mut client, "\r\n\r\n").await;
        assert_eq!(statuses(&answer), [403]);
        let answer = read_until(&mut client, "\r\n\r\n").await;
        assert_eq!(statuses(&answer), [200]);
        assert!(
            !answer.contains("Length") && !answer.contains("Encoding"),
            "{answer}"
        );
        let mut upgraded = given.await.unwrap().await.unwrap();
        assert_eq!(upgraded.read, "GET / HTTP/1.1\n\n\0early");
        upgraded.socket.write_all(b"pong\n").await.unwrap();
        assert_eq!(read_until(&mut client, "\n").await, "pong\n");
        client.write_all(b"ping\n").await.unwrap();
        assert_eq!(read_until(&mut upgraded.socket, "\n").await, "ping\n");
    })
    .await;
    assert_eq!(ending, Ending::Upgraded);
}

#[tokio::test(start_paused = true)]
async fn an_offered_upgrade_that_is_not_taken_changes_nothing() {
    let input = "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let output = answer_to((input.to_owned() + GET).as_bytes()).await;
    assert_eq!(statuses(&output), [200, 200]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_out_whole_although_an_upgrade_was_offered_and_content_left_unread() {
    let service = |request, cell: Rc<Cell>| async move {
        cell.next_head();
        drop(request);
        whole(vec![b'x'; 300_000])
    };
    let (ending, output) = talk(Limits::default(), service, |mut client| async move {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\
                    Content-Length: 100000\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        rest_of(&mut client).await
    })
    .await;
    assert_eq!(ending, Ending::Closed);
    let content = output.split("\r\n\r\n").nth(1).unwrap();
    assert_eq!(content.len(), 300_000);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_for_a_slow_answer_gets_its_turn() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        tokio::time::sleep(Duration::from_secs(1)).await;
        whole("x")
    };
    let before = Instant::now();
    let input = GET.repeat(2) + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let (_stop, stopping) = watch::channel(false);
    // In a separate task: progress of another task must not wake the connection.
    let client = tokio::spawn(async move {
        near.write_all(input.as_bytes()).await.unwrap();
        rest_of(&mut near).await
    });
    serve(far, Limits::default(), service, stopping).await;
    let output = client.await.unwrap();
    let seconds = before.elapsed().as_secs();
    assert_eq!((statuses(&output).len(), seconds), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn bytes_are_counted_per_exchange() {
    let (told, mut sent) = mpsc::unbounded_channel();
    let service = move |_, cell: Rc<Cell>| {
        cell.next_head();
        let told = told.clone();
        cell.on_sent(move |sent| told.send(sent).unwrap());
        async { whole("12345") }
    };
    let (_, output) = talk(Limits::default(), service, |mut client| async move {
        client.write_all(GET.as_bytes()).await.unwrap();
        let first = read_until(&mut client, "12345").await;
        client.write_all(GET.as_bytes()).await.unwrap();
        (first, rest_of(&mut client).await)
    })
    .await;
    for output in [output.0, output.1] {
        let expected = ExchangeEnd {
            bytes_read: GET.len() as u64,
            bytes_written: output.len() as u64,
            complete: true,
        };
        assert_eq!(sent.recv().await, Some(expected));
    }
    assert_eq!(sent.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn chunks_are_whole_wherever_the_client_stops_reading() {
    // The room in the pipe ends at each byte of the response in turn.
    for room in 1..200 {
        let (near, far) = tokio::io::duplex(room);
        let (_stop, stopping) = watch::channel(false);
        let service = |_, cell: Rc<Cell>| async move {
            cell.next_head();
            let (body, answer) = live();
            for part in ["abc", "defg", "h"] {
                body.send(Ok(part)).unwrap();
            }
            answer
        };
        let client = async |mut client: DuplexStream| {
            let (mut read, mut write) = tokio::io::split(&mut client);
            let asking = async {
                write.write_all(GET.as_bytes()).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let reading = async {
                let mut output = Vec::new();
                let mut byte = [0];
                while read.read(&mut byte).await.unwrap() > 0 {
                    output.push(byte[0]);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                output
            };
            tokio::join!(asking, reading).1
        };
        let (_, output) = tokio::join!(
            serve(far, Limits::default(), service, stopping),
            client(near)
        );
        let output = String::from_utf8(output).unwrap();
        let chunks = "\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n1\r\nh\r\n0\r\n\r\n";
        assert!(output.ends_with(chunks), "{room}: {output}");
    }
}

#[tokio::test(start_paused = true)]
async fn content_that_is_kept_from_an_earlier_request_is_not_that_of_the_next() {
    let kept = Rc::new(std::cell::RefCell::new(None));
    let service = |request: Request<ClientBody>, cell: Rc<Cell>| {
        let kept = Rc::clone(&kept);
        async move {
            cell.next_head();
            let mut content = request.into_body();
            if kept.borrow().is_none() {
                // The last chunk has arrived with the first, and was not polled.
                content.frame().await.unwrap().unwrap();
                *kept.borrow_mut() = Some(content);
                return whole("early");
            }
            let mut stale = kept.borrow_mut().take().unwrap();
            if let Some(Ok(frame)) = stale.frame().await {
                panic!("{frame:?}");
            }
            whole(content.collect().await.unwrap().to_bytes())
        }
    };
    let post = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (_, output) = talk(Limits::default(), service, |mut client| async move {
        let first = format!("{post}1\r\nx\r\n0\r\nt: u\r\n\r\n");
        client.write_all(first.as_bytes()).await.unwrap();
        let first = read_until(&mut client, "early").await;
        let next = format!("{post}3\r\nnew\r\n0\r\n\r\n");
        client.write_all(next.as_bytes()).await.unwrap();
        first + &read_until(&mut client, "new").await
    })
    .await;
    assert_eq!(statuses(&output), [200, 200]);
}

#[tokio::test(start_paused = true)]
async fn an_interim_response_goes_out_at_once() {
    let service = |_, cell: Rc<Cell>| async move {
        cell.next_head();
        // From a separate task, as a fetch does.
        tokio::task::spawn_local(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(cell.send_interim(StatusCode::EARLY_HINTS, &HeaderMap::new()));
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        whole("x")
    };
    let before = Instant::now();
    let local = tokio::task::LocalSet::new();
    let talk = talk(Limits::default(), service, |mut client| async move {
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "103 Early Hints\r\n\r\n").await;
        before.elapsed().as_secs()
    });
    assert_eq!(local.run_until(talk).await.1, 1);
}
