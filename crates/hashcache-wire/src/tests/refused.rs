//! Requests with no meaning or with two meanings, and the status of each response.

use super::*;

/// `H` represents a valid Host line, `|` CRLF.
const REFUSED: &[(&str, u16)] = &[
    // Line ends and control characters.
    ("GET / HTTP/1.1\nHost: a\n\n", 400),
    ("GET / HTTP/1.1|Host: a\n|", 400),
    ("GET / HTTP/1.1|HX: a\rb||", 400),
    ("GET / HTTP/1.1\r|H|", 400),
    ("|||||GET / HTTP/1.1|H|", 400),
    ("\nGET / HTTP/1.1|H|", 400),
    ("GET / HTTP/1.1|HX: a\0b||", 400),
    ("GET / HTTP/1.1|HX: a\x01b||", 400),
    ("GET / HTTP/1.1|HX: a\x7fb||", 400),
    ("GET /\0 HTTP/1.1|H|", 400),
    ("\x16\x03\x01\x02\0", 400),
    // The request line.
    (" GET / HTTP/1.1|H|", 400),
    ("GET  / HTTP/1.1|H|", 400),
    ("GET /  HTTP/1.1|H|", 400),
    ("GET / HTTP/1.1 |H|", 400),
    ("GET\t/ HTTP/1.1|H|", 400),
    ("GET /\tHTTP/1.1|H|", 400),
    ("GET / a HTTP/1.1|H|", 400),
    ("G(T / HTTP/1.1|H|", 400),
    ("G\u{e9}T / HTTP/1.1|H|", 400),
    ("/ HTTP/1.1|H|", 400),
    ("GET|H|", 400),
    ("GET /|H|", 400),
    ("GET / http/1.1|H|", 400),
    ("GET / HTTP/1.10|H|", 400),
    ("GET / HTTP/11|H|", 400),
    ("GET / HTTP/1.|H|", 400),
    ("GET / HTTP/1.x|H|", 400),
    ("GET / HTTP/0.9|H|", 505),
    ("GET / HTTP/3.0|H|", 505),
    ("PRI * HTTP/2.0||SM||", 505),
    // Targets.
    ("GET /a#b HTTP/1.1|H|", 400),
    ("GET http://a/#b HTTP/1.1|H|", 400),
    ("GET a HTTP/1.1|H|", 400),
    ("GET a:80 HTTP/1.1|H|", 400),
    ("GET * HTTP/1.1|H|", 400),
    ("OPTIONS ** HTTP/1.1|H|", 400),
    ("GET http:/a/ HTTP/1.1|H|", 400),
    ("GET http:///a HTTP/1.1|H|", 400),
    ("GET http://?a HTTP/1.1|H|", 400),
    ("GET http://u@a/ HTTP/1.1|H|", 400),
    ("GET http://a:b@c/ HTTP/1.1|H|", 400),
    ("GET http://a:0/ HTTP/1.1|H|", 400),
    ("GET http://a:65536/ HTTP/1.1|H|", 400),
    ("GET http://a:+80/ HTTP/1.1|H|", 400),
    ("GET http://a:080000/ HTTP/1.1|H|", 400),
    ("GET http://[::1/ HTTP/1.1|H|", 400),
    ("GET http://[::g]/ HTTP/1.1|H|", 400),
    ("GET http://[::1]x/ HTTP/1.1|H|", 400),
    ("GET http://a\\b/ HTTP/1.1|H|", 400),
    ("GET http://a%2fb/ HTTP/1.1|H|", 400),
    ("GET file:///a HTTP/1.1|H|", 400),
    ("GET ws://a/ HTTP/1.1|H|", 400),
    ("GET ftp:///a HTTP/1.1|H|", 400),
    ("CONNECT / HTTP/1.1|H|", 400),
    ("CONNECT a HTTP/1.1|H|", 400),
    ("CONNECT a: HTTP/1.1|H|", 400),
    ("CONNECT a:0 HTTP/1.1|H|", 400),
    ("CONNECT http://a:80/ HTTP/1.1|H|", 400),
    ("CONNECT a:443 HTTP/1.1|HContent-Length: 1||x", 400),
    ("CONNECT a:443 HTTP/1.1|HContent-Length: 0, 1||", 400),
    ("CONNECT a:443 HTTP/1.0|Content-Length: 5||abcde", 400),
    ("CONNECT a:443 HTTP/1.1|HHost: b||", 400),
    ("CONNECT a:443 HTTP/1.1|HTransfer-Encoding: chunked||", 400),
    // Field lines.
    ("GET / HTTP/1.1|HX : a||", 400),
    ("GET / HTTP/1.1|HX\t: a||", 400),
    ("GET / HTTP/1.1|HX: a| b||", 400),
    ("GET / HTTP/1.1|HX: a|\tb||", 400),
    ("GET / HTTP/1.1| X: a|H|", 400),
    ("GET / HTTP/1.1|H: a||", 400),
    ("GET / HTTP/1.1|HX||", 400),
    ("GET / HTTP/1.1|HX(: a||", 400),
    ("GET / HTTP/1.1|H\u{e9}: a||", 400),
    // Host.
    ("GET / HTTP/1.1||", 400),
    ("GET http://a/ HTTP/1.1||", 400),
    ("GET / HTTP/1.1|Host:||", 400),
    ("GET / HTTP/1.1|HHost: a||", 400),
    ("GET / HTTP/1.1|Host: a|Host:||", 400),
    ("GET / HTTP/1.0|Host:||", 400),
    ("OPTIONS * HTTP/1.1|Host: ||", 400),
    ("GET / HTTP/1.1|HHOST: b||", 400),
    ("GET / HTTP/1.0|HHost: b||", 400),
    ("GET / HTTP/1.1|Host: a, b||", 400),
    ("GET / HTTP/1.1|Host: a b||", 400),
    ("GET / HTTP/1.1|Host: a/b||", 400),
    ("GET / HTTP/1.1|Host: u@a||", 400),
    ("GET / HTTP/1.1|Host: a:b||", 400),
    ("GET / HTTP/1.1|Host: http://a||", 400),
    ("GET / HTTP/1.1|Host: [1]||", 400),
    // Content-Length.
    ("POST / HTTP/1.1|HContent-Length:||", 400),
    ("POST / HTTP/1.1|HContent-Length: -1||", 400),
    ("POST / HTTP/1.1|HContent-Length: +1||x", 400),
    ("POST / HTTP/1.1|HContent-Length: 1 1||x", 400),
    ("POST / HTTP/1.1|HContent-Length: 0x1||x", 400),
    ("POST / HTTP/1.1|HContent-Length: 1.0||x", 400),
    ("POST / HTTP/1.1|HContent-Length: 5, 05||abcde", 400),
    ("POST / HTTP/1.1|HContent-Length: 5, 6||abcde", 400),
    ("POST / HTTP/1.1|HContent-Length: 5,,5||abcde", 400),
    ("POST / HTTP/1.1|HContent-Length: 5,||abcde", 400),
    (
        "POST / HTTP/1.1|HContent-Length: 5|Content-Length: 05||abcde",
        400,
    ),
    (
        "POST / HTTP/1.1|HContent-Length: 5|content-length: 6||abcde",
        400,
    ),
    (
        "POST / HTTP/1.1|HContent-Length: 18446744073709551616||",
        400,
    ),
    (
        "POST / HTTP/1.1|HContent-Length: 9223372036854775808||",
        400,
    ),
    // Transfer-Encoding.
    (
        "POST / HTTP/1.1|HContent-Length: 5|Transfer-Encoding: chunked||0||",
        400,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: chunked|Content-Length: 5||0||",
        400,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: gzip|Content-Length: 5||0||",
        400,
    ),
    ("POST / HTTP/1.0|HTransfer-Encoding: chunked||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding:||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: ,chunked||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: chunked,||0||", 400),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: chunked, chunked||0||",
        400,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: chunked|Transfer-Encoding: chunked||0||",
        400,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: chunked, identity||0||",
        400,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: chunked|Transfer-Encoding: identity||0||",
        400,
    ),
    ("POST / HTTP/1.1|HTransfer-Encoding: chunked;q=1||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: \"chunked\"||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: chunked foo||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: \u{b}chunked||0||", 400),
    ("POST / HTTP/1.1|HTransfer-Encoding: xchunked||0||", 501),
    ("POST / HTTP/1.1|HTransfer-Encoding: identity||", 501),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: gzip, chunked||0||",
        501,
    ),
    (
        "POST / HTTP/1.1|HTransfer-Encoding: gzip|Transfer-Encoding: chunked||0||",
        501,
    ),
    // The rest.
    ("POST / HTTP/1.1|HExpect: 200-ok|Content-Length: 1||x", 417),
    (
        "POST / HTTP/1.1|HExpect: 100-continue, x|Content-Length: 1||x",
        417,
    ),
    ("POST / HTTP/1.1|HExpect:|Content-Length: 1||x", 417),
    ("GET / HTTP/1.1|HConnection: Host||", 400),
    ("GET / HTTP/1.1|HConnection: close, content-length||", 400),
    ("GET / HTTP/1.1|HConnection: cache-control,x||", 400),
    ("GET / HTTP/1.1|HConnection: Authorization||", 400),
    ("GET / HTTP/1.1|HConnection: x|Connection: Cookie||", 400),
    ("GET / HTTP/1.1|HConnection:\tvia ||", 400),
];

fn written_out(short: &str) -> String {
    let (line, fields) = short.split_once('|').unwrap_or((short, ""));
    let fields = match fields.strip_prefix('H') {
        // `Host` and `HOST` are written out.
        Some(rest) if !rest.starts_with("ost") => format!("Host: example.org|{rest}"),
        _ => fields.replace("|H|", "|Host: example.org||"),
    };
    let joined = if short.contains('|') {
        format!("{line}|{fields}")
    } else {
        short.to_owned()
    };
    joined.replace('|', "\r\n")
}

#[tokio::test(start_paused = true)]
async fn a_request_without_one_meaning_is_refused_with_our_page_and_the_last() {
    assert!(REFUSED.len() >= 60);
    for (short, status) in REFUSED {
        // The second request must never be read as a request, for any meaning of the first.
        let input = written_out(short) + "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let output = answer_to(input.as_bytes()).await;
        assert_eq!(
            statuses(&output),
            [*status],
            "{short:?} was answered {output:?}"
        );
        assert!(
            output.contains("Connection: close\r\n"),
            "{short:?}: {output:?}"
        );
        assert!(!output.contains("/smuggled"), "{short:?}: {output:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_unusual_and_clear_is_accepted() {
    for (input, told) in [
        ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "<GET /  0>"),
        (
            "\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "<GET /  0>",
        ),
        ("GET / HTTP/1.0\r\n\r\n", "<GET /  0>"),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", "<GET /  0>"),
        (
            "PUT / HTTP/1.9\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "<PUT /  0>",
        ),
        (
            "get /%2f//../a?b=%00'\" HTTP/1.1\r\nHost:a\r\n\r\n",
            "<get /%2f//../a?b=%00\\'\\\"  0>",
        ),
        (
            "GET /\u{e9} HTTP/1.1\r\nHost: a:80 \r\n\r\n",
            "<GET /\\xc3\\xa9  0>",
        ),
        (
            "GET HTTP://A:80/x HTTP/1.1\r\nHost: b\r\n\r\n",
            "<GET HTTP://A:80/x  0>",
        ),
        (
            "GET http://[::1]:8080?q HTTP/1.1\r\nHost: [::1]\r\n\r\n",
            "<GET http://[::1]:8080?q  0>",
        ),
        (
            "GET ftp://u@h/x HTTP/1.1\r\nHost: h\r\n\r\n",
            "<GET ftp://u@h/x  0>",
        ),
        ("OPTIONS * HTTP/1.1\r\nHost: a:\r\n\r\n", "<OPTIONS *  0>"),
        ("CONNECT a:443 HTTP/1.0\r\n\r\n", ""),
        (
            "GET / HTTP/1.1\r\nhOST: a\r\nX:\r\n!#$%&'*+-.^_`|~: \u{ff}\t;\r\n\r\n",
            "<GET /  0>",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0002\r\n\r\nab",
            "<GET / ab 0>",
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tChunked \r\n\r\n0\r\n\r\n",
            "<PUT /  0>",
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nConnection: te\r\nContent-Length: 0\r\n\r\n",
            "<PUT /  0>",
        ),
    ] {
        let output = answer_to(input.as_bytes()).await;
        assert_eq!(
            statuses(&output),
            [200],
            "{input:?} was answered {output:?}"
        );
        assert!(output.ends_with(told), "{input:?} was answered {output:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_of_any_bytes_reaches_the_service_as_it_is() {
    let output = answer_to(b"GET /\xff\"<>|^`{}\\?\xe4<> HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(statuses(&output), [200]);
    let told = "<GET /\\xff\\\"<>|^`{}\\\\?\\xe4<>  0>";
    assert!(output.ends_with(told), "{output}");
}

/// The fields that hyper, and so the origin, gets from a request with a repeated field.
#[tokio::test(start_paused = true)]
async fn what_is_said_twice_in_one_way_is_passed_on_once() {
    for (input, expected) in [
        (
            "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 2, 2\r\nHOST: A\r\nZ:\r\n\r\nab",
            "host=a x=y content-length=2 z= [ab]",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length:2 \r\n\r\nab",
            "host=a content-length=2 [ab]",
        ),
        ("GET http://b/ HTTP/1.1\r\nHost:\r\nX: y\r\n\r\n", "x=y []"),
        ("CONNECT b:443 HTTP/1.1\r\n\r\n", " []"),
        (
            "CONNECT b:443 HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\nX: y\r\n\r\n",
            "x=y []",
        ),
        (
            "CONNECT b:443 HTTP/1.0\r\nContent-Length: 0\r\nHost: b\r\n\r\n",
            "host=b []",
        ),
        (
            "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\nHost: B:443\r\nContent-Length: 0, 0\r\n\r\n",
            "host=b:443 []",
        ),
    ] {
        let told = |request: Request<ClientBody>, cell: Rc<Cell>| async move {
            let RequestHead::Accepted(info) = cell.next_head() else {
                return refusal(Failure::Internal("refused"));
            };
            let fields = request.headers().iter();
            let fields = fields.map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
            let fields = fields.collect::<Vec<_>>().join(" ");
            if info.form == RequestForm::Authority {
                assert_eq!(info.content, ContentFraming::None);
                // Not a tunnel, so the connection continues as after a GET.
                let mut response = whole(format!("{fields} []"));
                *response.status_mut() = StatusCode::FORBIDDEN;
                return response;
            }
            let content = request.into_body().collect().await.unwrap().to_bytes();
            whole(format!("{fields} [{}]", content.escape_ascii()))
        };
        // The next request shows where this request stops.
        let input = format!("{input}GET /next HTTP/1.1\r\nHost: next\r\nConnection: close\r\n\r\n");
        let (_, output) = talk(Limits::default(), told, |mut client| async move {
            client.write_all(input.as_bytes()).await.unwrap();
            rest_of(&mut client).await
        })
        .await;
        assert!(
            output.contains(&format!("\r\n\r\n{expected}")),
            "{expected}: {output}"
        );
        if output.starts_with("HTTP/1.0") {
            // The server closes the connection.
            continue;
        }
        assert_eq!(statuses(&output).len(), 2, "{output}");
        assert!(
            output.ends_with("host=next connection=close []"),
            "{output}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn limits_are_exact_and_answered_with_414_for_the_target_and_431_for_the_rest() {
    let head = |target: usize, fields: usize, bytes: usize| {
        let mut head = format!("GET /{} HTTP/1.1\r\nHost: a\r\n", "x".repeat(target - 1));
        head.push_str(&"A: b\r\n".repeat(fields - 2));
        let filler = bytes - head.len() - "Z: \r\n\r\n".len();
        head + "Z: " + &"z".repeat(filler) + "\r\n\r\n"
    };
    let limits = Limits::default();
    let (target, fields, bytes) = (limits.target_bytes, limits.head_fields, limits.head_bytes);
    for (input, status) in [
        (head(target, fields, bytes), 200),
        (head(target + 1, fields, bytes), 414),
        (format!("GET /{}", "x".repeat(bytes)), 414),
        (head(target, fields + 1, bytes), 431),
        (head(target, fields, bytes + 1), 431),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(bytes)),
            431,
        ),
        // Many fields, then few on the same connection, then many again.
        (
            head(9, 150, 4000) + &head(9, 9, 4000) + &head(9, 200, 4000),
            200,
        ),
    ] {
        let output = answer_to(input.as_bytes()).await;
        let all = statuses(&output);
        assert!(
            all.iter().all(|&got| got == status),
            "{all:?}, not {status}"
        );
        assert_eq!(all.len(), input.matches("GET ").count());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_head_is_answered_without_content() {
    let output = answer_to(b"HEAD /#a HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(statuses(&output), [400]);
    assert!(output.ends_with("\r\n\r\n"), "{output:?}");
    let output = answer_to(b"GET /#a HTTP/1.0\r\nHost: a\r\n\r\n").await;
    assert!(output.starts_with("HTTP/1.0 400 "), "{output:?}");
}
