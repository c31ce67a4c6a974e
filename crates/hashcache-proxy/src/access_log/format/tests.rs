//! Lines of the three formats, with hostile values.

use serde_json::Value;

use super::super::tests::{SECOND, entry};
use super::super::{LoggedHop, RequestId};
use super::*;

/// The end of the requests of all lines.
const END: UnixMillis = UnixMillis(SECOND * 1000 + 357);

const ALL: [LogFormat; 3] = [LogFormat::Squid, LogFormat::Combined, LogFormat::Json];

fn style(format: LogFormat) -> LineStyle {
    LineStyle {
        format,
        query: QueryForm::Kept,
        target: TargetForm::Absolute,
        client: ClientForm::Address,
    }
}

fn line_in(style: LineStyle, entry: &LogEntry<'_>) -> String {
    let mut line = Vec::new();
    Formatter::new(style).push(&mut line, entry, END);
    String::from_utf8(line).unwrap()
}

fn line(format: LogFormat, entry: &LogEntry<'_>) -> String {
    line_in(style(format), entry)
}

fn json(entry: &LogEntry<'_>) -> Value {
    serde_json::from_str(&line(LogFormat::Json, entry)).unwrap()
}

fn origin_at(address: &str) -> LoggedHop<'static> {
    LoggedHop {
        address: Some(address.parse().unwrap()),
        peer: None,
        code: "HIER_DIRECT",
    }
}

fn parent(name: &str) -> LoggedHop<'_> {
    LoggedHop {
        address: Some("192.0.2.9:3128".parse().unwrap()),
        peer: Some(name),
        code: "FIRSTUP_PARENT",
    }
}

#[test]
fn a_hit_in_squids_form() {
    assert_eq!(
        line(LogFormat::Squid, &entry()),
        "1795297622.357    234 192.0.2.7 TCP_HIT/200 5120 GET http://a.test/x?y=1 - HIER_NONE/- \
         text/html\n"
    );
}

#[test]
fn a_failed_miss_in_squids_form_names_upstream() {
    let entry = LogEntry {
        outcome: Outcome::Miss,
        status: 502,
        next_hop: Some(origin_at("198.51.100.1:80")),
        error: Some("connection-refused"),
        content_type: None,
        aborted: true,
        ..entry()
    };
    assert_eq!(
        line(LogFormat::Squid, &entry),
        "1795297622.357    234 192.0.2.7 TCP_MISS_ABORTED/502 5120 GET http://a.test/x?y=1 - \
         HIER_DIRECT/198.51.100.1 -\n"
    );
}

#[test]
fn a_failed_miss_in_the_combined_form_names_the_error() {
    let entry = LogEntry {
        outcome: Outcome::Miss,
        status: 502,
        error: Some("connection-refused"),
        ..entry()
    };
    let line = line(LogFormat::Combined, &entry);
    let end = " \"curl/8\" id=00000000000000ff error=connection-refused\n";
    assert!(line.ends_with(end), "{line}");
}

#[test]
fn a_tunnel_in_squids_form() {
    let entry = LogEntry {
        outcome: Outcome::Tunnel,
        method: "CONNECT",
        authority: "a.test:443",
        path: "",
        next_hop: Some(parent("parent.test:3128")),
        content_type: None,
        ..entry()
    };
    let line = line(LogFormat::Squid, &entry);
    assert!(
        line.contains(" TCP_TUNNEL/200 5120 CONNECT a.test:443 - "),
        "{line}"
    );
    assert!(line.contains(" FIRSTUP_PARENT/192.0.2.9 -\n"), "{line}");
}

#[test]
fn a_head_that_could_not_be_read_in_squids_form() {
    let entry = LogEntry {
        outcome: Outcome::Own,
        status: 400,
        method: "",
        authority: "",
        path: "",
        error: Some("refused"),
        ..entry()
    };
    let line = line(LogFormat::Squid, &entry);
    assert!(
        line.ends_with(" NONE_NONE/400 5120 - error:invalid-request - HIER_NONE/- text/html\n"),
        "{line}"
    );
}

#[test]
fn a_hit_in_the_combined_form() {
    assert_eq!(
        line(LogFormat::Combined, &entry()),
        "192.0.2.7 - - [21/Nov/2026:21:47:02 +0000] \"GET http://a.test/x?y=1 HTTP/1.1\" 200 5120 \
         \"http://b.test/\" \"curl/8\" id=00000000000000ff\n"
    );
}

#[test]
fn an_accelerator_logs_paths_in_the_combined_form() {
    let style = LineStyle {
        target: TargetForm::Path,
        ..style(LogFormat::Combined)
    };
    assert!(line_in(style, &entry()).contains("\"GET /x?y=1 HTTP/1.1\""));
}

#[test]
fn a_hit_in_json_has_the_keys_of_the_common_schema() {
    let entry = LogEntry {
        next_hop: Some(origin_at("[2001:db8::1]:80")),
        ..entry()
    };
    let expected = serde_json::json!({
        "@timestamp": "2026-11-21T21:47:02.123Z",
        "event.duration": 234_000_000,
        "hashcache.first_byte_ns": 1_000_000,
        "client.ip": "192.0.2.7",
        "client.port": 50_000,
        "http.request.method": "GET",
        "http.version": "1.1",
        "url.scheme": "http",
        "url.authority": "a.test",
        "url.original": "/x?y=1",
        "http.response.status_code": 200,
        "hashcache.outcome": "hit",
        "http.response.bytes": 5120,
        "hashcache.origin_bytes": 0,
        "server.ip": "2001:db8::1",
        "server.port": 80,
        "http.request.id": "00000000000000ff",
        "user_agent.original": "curl/8",
        "http.request.referrer": "http://b.test/",
        "http.response.mime_type": "text/html",
    });
    assert_eq!(json(&entry), expected);
}

#[test]
fn json_tells_error_peer_and_a_client_that_left() {
    let entry = LogEntry {
        error: Some("read-timeout"),
        next_hop: Some(parent("sibling.test")),
        aborted: true,
        outcome: Outcome::Miss,
        ..entry()
    };
    let json = json(&entry);
    assert_eq!(json["error.code"], "read-timeout");
    assert_eq!(json["hashcache.peer"], "sibling.test");
    assert_eq!(json["hashcache.aborted"], true);
    assert_eq!(json["hashcache.outcome"], "uri-miss");
}

#[test]
fn no_client_can_write_a_line_of_its_own() {
    let evil = "/x\r\n\u{85}\u{2028}1.2.3.4 \"\\\" TCP_HIT/200";
    let entry = LogEntry {
        method: "GE\nT\"",
        authority: "a\n.test",
        path: evil,
        next_hop: Some(parent("p\nq")),
        user_agent: Some(evil.as_bytes()),
        referer: Some(b"\"\n\xff\x1b[31m"),
        content_type: Some(b"a\nb \"c"),
        ..entry()
    };
    for format in ALL {
        let line = line(format, &entry);
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
        assert!(
            line.trim_end()
                .bytes()
                .all(|byte| (b' '..=b'~').contains(&byte)),
            "{line}"
        );
    }
    let json = json(&entry);
    assert_eq!(json["url.original"], evil);
    assert_eq!(json["user_agent.original"], evil);
    // The fields of Squid's form stay where they are.
    let squid = line(LogFormat::Squid, &entry);
    let fields: Vec<_> = squid.split_ascii_whitespace().collect();
    assert_eq!(fields.len(), 10, "{squid}");
    assert_eq!(fields[3], "TCP_HIT/200");
}

#[test]
fn names_and_passwords_are_not_logged() {
    let entry = LogEntry {
        authority: "user:secret@a.test",
        referer: Some(b"http://user:secret@b.test/"),
        ..entry()
    };
    let refused = LogEntry {
        authority: "",
        path: "http://user:secret@a.test/",
        ..entry.clone()
    };
    for format in ALL {
        for entry in [&entry, &refused] {
            let line = line(format, entry);
            assert!(
                !line.contains("secret") && !line.contains("user:"),
                "{line}"
            );
            assert!(line.contains("a.test"), "{line}");
        }
    }
}

#[test]
fn query_strings_are_left_out_if_asked_even_those_of_the_referer() {
    let entry = LogEntry {
        path: "/x?token=secret",
        referer: Some(b"http://b.test/?q=secret"),
        ..entry()
    };
    for format in ALL {
        let stripped = LineStyle {
            query: QueryForm::Stripped,
            ..style(format)
        };
        let line = line_in(stripped, &entry);
        assert!(!line.contains("secret"), "{line}");
        assert!(line.contains("/x?"), "{line}");
    }
}

#[test]
fn of_a_client_the_network_alone_is_written_if_asked() {
    for (client, network) in [
        ("192.0.2.7:50000", "192.0.2.0"),
        ("[::ffff:192.0.2.7]:50000", "192.0.2.0"),
        ("[2001:db8:1:2:3:4:5:6]:50000", "2001:db8:1::"),
    ] {
        let client = client.parse().unwrap();
        for format in ALL {
            let anonymous = LineStyle {
                client: ClientForm::Network,
                ..style(format)
            };
            let line = line_in(anonymous, &LogEntry { client, ..entry() });
            let mut words = line.split([' ', '"']);
            assert!(words.any(|word| word == network), "{line}");
            assert!(
                !line.contains(&client.ip().to_canonical().to_string()),
                "{line}"
            );
            assert!(!line.contains("50000"), "{line}");
        }
    }
}

#[test]
fn no_line_is_long() {
    let long = "\u{1}".repeat(100_000);
    let bytes = Some(long.as_bytes());
    let entry = LogEntry {
        method: &long,
        authority: &long,
        path: &long,
        user_agent: bytes,
        referer: bytes,
        content_type: bytes,
        ..entry()
    };
    for format in ALL {
        assert!(line(format, &entry).len() < 80_000);
    }
}

#[test]
fn the_date_follows_the_clock() {
    let mut formatter = Formatter::new(style(LogFormat::Combined));
    for (second, date) in [
        (SECOND, "21/Nov/2026:21:47:02"),
        (SECOND, "21/Nov/2026:21:47:02"),
        (SECOND + 1, "21/Nov/2026:21:47:03"),
        (951_782_400, "29/Feb/2000:00:00:00"),
        (951_868_799, "29/Feb/2000:23:59:59"),
        (951_868_800, "01/Mar/2000:00:00:00"),
        (4_107_542_400, "01/Mar/2100:00:00:00"),
        (4_107_542_399, "28/Feb/2100:23:59:59"),
        (1_798_761_599, "31/Dec/2026:23:59:59"),
        (1_798_761_600, "01/Jan/2027:00:00:00"),
        (0, "01/Jan/1970:00:00:00"),
    ] {
        let mut line = Vec::new();
        formatter.push(
            &mut line,
            &LogEntry {
                start: UnixMillis(second * 1000),
                ..entry()
            },
            END,
        );
        let line = String::from_utf8(line).unwrap();
        assert!(line.contains(date), "{second}: {line}");
    }
}

#[test]
fn every_outcome_has_a_code_that_readers_of_squids_log_know() {
    let codes = [
        (Outcome::Hit, "TCP_HIT"),
        (Outcome::MemoryHit, "TCP_MEM_HIT"),
        (Outcome::NegativeHit, "TCP_NEGATIVE_HIT"),
        (Outcome::StaleHit, "TCP_STALE_HIT"),
        (Outcome::StaleIfError, "TCP_REFRESH_FAIL_OLD"),
        (Outcome::Revalidated, "TCP_REFRESH_UNMODIFIED"),
        (Outcome::Collapsed, "TCP_CF_HIT"),
        (Outcome::Miss, "TCP_MISS"),
        (Outcome::VaryMiss, "TCP_MISS"),
        (Outcome::Stale, "TCP_REFRESH_MODIFIED"),
        (Outcome::StaleFailed, "TCP_REFRESH_FAIL_ERR"),
        (Outcome::Request, "TCP_CLIENT_REFRESH_MISS"),
        (Outcome::Bypass, "TCP_MISS"),
        (Outcome::Method, "TCP_MISS"),
        (Outcome::Partial, "TCP_MISS"),
        (Outcome::Tunnel, "TCP_TUNNEL"),
        (Outcome::Denied, "TCP_DENIED"),
        (Outcome::Own, "NONE_NONE"),
    ];
    for (outcome, code) in codes {
        let line = line(LogFormat::Squid, &LogEntry { outcome, ..entry() });
        assert!(line.contains(&format!(" {code}/200 ")), "{line}");
    }
}

#[test]
fn a_hit_on_the_clients_own_copy_is_an_ims_hit() {
    for outcome in [Outcome::Hit, Outcome::MemoryHit] {
        let entry = LogEntry {
            outcome,
            status: 304,
            ..entry()
        };
        assert!(line(LogFormat::Squid, &entry).contains(" TCP_IMS_HIT/304 "));
    }
}

#[test]
fn an_ipv4_client_on_an_ipv6_socket_is_an_ipv4_client() {
    let entry = LogEntry {
        client: "[::ffff:192.0.2.9]:1".parse().unwrap(),
        ..entry()
    };
    assert_eq!(json(&entry)["client.ip"], "192.0.2.9");
}

#[test]
fn request_ids_read_the_same_in_the_log_and_on_the_page() {
    let id = RequestId(0x0123_4567_89ab_cdef);
    let entry = LogEntry {
        request_id: id,
        ..entry()
    };
    assert_eq!(json(&entry)["http.request.id"], id.to_string());
}
