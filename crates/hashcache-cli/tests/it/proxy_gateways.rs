//! Gateways of the real proxy: files and directories of FTP servers, and items of Gopher servers,
//! as clients get them by HTTP.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::time::Duration;

use hashcache_testkit::{
    BodyEnd, Client, FtpFault, FtpFile, FtpServer, GopherServer, Origin, Response, Script,
};
use tokio::time::timeout;

use crate::Home;
use crate::proxy_process::Proxy;

const FILES: [(&str, &[u8]); 3] = [
    ("pub/a b.txt", b"0123456789"),
    ("pub/deep/page.html", b"<p>hello"),
    ("README", b"read me"),
];

struct Gateway {
    proxy: Proxy,
    home: Home,
}

impl Gateway {
    fn start(config: &str) -> Self {
        let home = Home::new();
        let file = home.file("hashcache.toml", config);
        let flags = [
            format!("--config={}", file.display()),
            format!("--access-log={}", home.path().join("access.log").display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let proxy = Proxy::start(&home.path().join("cache.img"), &flags).unwrap();
        Self { proxy, home }
    }

    fn both() -> Self {
        Self::start("gateways = [\"ftp\", \"gopher\"]\n")
    }

    async fn ask(&self, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        client.request(method, url, fields).await.unwrap();
        client.read_response(method).await.unwrap()
    }

    async fn get(&self, url: &str) -> Response {
        self.ask("GET", url, &[]).await
    }

    /// The log, once it has `lines` lines.
    async fn log(&self, lines: usize) -> String {
        let path = self.home.path().join("access.log");
        for _ in 0..200 {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.lines().count() >= lines {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{lines} lines are not in {}", path.display());
    }
}

fn text(response: &Response) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

async fn ftp(fault: FtpFault) -> FtpServer {
    FtpServer::start(&FILES, fault).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_fetched_once_and_then_comes_from_the_cache() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::None).await);
    let url = server.url("/pub/a%20b.txt");
    let first = gateway.get(&url).await;
    assert_eq!((first.status, text(&first)), (200, "0123456789"));
    assert_eq!(first.field("Content-Length"), Some("10"));
    assert_eq!(first.field("Content-Type"), Some("text/plain"));
    let modified = "Tue, 02 Jan 2024 03:04:05 GMT";
    assert_eq!(first.field("Last-Modified"), Some(modified));
    // curl says the type of the transfer.
    let second = gateway.get(&format!("{url};type=i")).await;
    assert_eq!((second.status, text(&second)), (200, "0123456789"));
    assert!(second.field("Cache-Status").unwrap().contains("hit"));
    let commands = [
        "USER anonymous",
        "PASS anonymous@",
        "TYPE I",
        "SIZE pub/a b.txt",
        "MDTM pub/a b.txt",
        "EPSV",
        "RETR pub/a b.txt",
        "QUIT",
    ];
    server.wait_for_no_session().await;
    assert_eq!(server.commands(), commands);
    let log = gateway.log(2).await;
    assert!(
        log.contains(&url) && log.contains("HIER_DIRECT/127.0.0.1"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_validated_by_its_time() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::None).await);
    let url = server.url("/README");
    assert_eq!(gateway.get(&url).await.status, 200);
    let reload = [("Cache-Control", "no-cache")];
    let same = gateway.ask("GET", &url, &reload).await;
    assert_eq!((same.status, text(&same)), (200, "read me"));
    assert_eq!(server.count("RETR"), 1);
    let file = FtpFile {
        content: b"read this".to_vec(),
        modified: "20240203040506",
    };
    server.put("README", file);
    let other = gateway.ask("GET", &url, &reload).await;
    assert_eq!((other.status, text(&other)), (200, "read this"));
    assert_eq!(server.count("RETR"), 2);
    // An older file is another one too.
    let file = FtpFile {
        content: b"read that".to_vec(),
        modified: "20200203040506",
    };
    server.put("README", file);
    assert_eq!(text(&gateway.ask("GET", &url, &reload).await), "read that");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_of_zero_does_not_end_a_response() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::SizeZero).await);
    let full = gateway.get(&server.url("/pub/a%20b.txt")).await;
    assert_eq!((full.status, text(&full)), (200, "0123456789"));
    let file = FtpFile {
        content: Vec::new(),
        modified: "20240203040506",
    };
    server.put("empty", file);
    let empty = gateway.get(&server.url("/empty")).await;
    assert_eq!((empty.status, text(&empty)), (200, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn head_and_ranges_are_answered() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::None).await);
    let url = server.url("/pub/a%20b.txt");
    let head = gateway.ask("HEAD", &url, &[]).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("Content-Length"), Some("10"));
    assert_eq!(server.count("RETR"), 0);
    let part = gateway.ask("GET", &url, &[("Range", "bytes=3-5")]).await;
    assert_eq!((part.status, text(&part)), (206, "345"));
    assert_eq!(part.field("Content-Range"), Some("bytes 3-5/10"));
    let none = gateway.ask("GET", &url, &[("Range", "bytes=10-")]).await;
    assert_eq!(none.status, 416);
    let old = ftp(FtpFault::Old).await;
    let url = old.url("/pub/a%20b.txt");
    let whole = gateway.ask("GET", &url, &[("Range", "bytes=3-5")]).await;
    assert!(matches!(
        (whole.status, text(&whole)),
        (200, "0123456789") | (206, "345")
    ));
    let head = gateway.ask("HEAD", &old.url("/none"), &[]).await;
    assert_eq!(head.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_a_page_of_links() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::None).await);
    let page = gateway.get(&server.url("/pub/")).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
    let html = text(&page);
    assert!(
        html.contains("<a href=\"/pub/a%20b.txt\">a b.txt</a><td>2024-01-02 03:04<td>10"),
        "{html}"
    );
    assert!(html.contains("<a href=\"/pub/deep/\">deep/</a>"), "{html}");
    assert!(
        html.contains("<a href=\"/\">Parent directory</a>"),
        "{html}"
    );
    let again = gateway.get(&server.url("/pub/")).await;
    assert!(again.field("Cache-Status").unwrap().contains("hit"));
    assert_eq!(server.count("MLSD"), 1);
    // Without its slash it is found too, with the same links; an old server is asked by LIST.
    let old = ftp(FtpFault::Old).await;
    for server in [&server, &old] {
        let page = gateway.get(&server.url("/pub")).await;
        assert_eq!(page.status, 200);
        assert!(text(&page).contains("<a href=\"/pub/a%20b.txt\">a b.txt</a>"));
    }
    assert_eq!(old.count("LIST"), 1);
    assert_eq!(gateway.get(&server.url("/nowhere/")).await.status, 404);
    let root = gateway.get(&server.url("")).await;
    assert!(text(&root).contains("<a href=\"/README\">README</a>"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_or_forbidden_has_a_status() {
    let (gateway, server) = (Gateway::both(), ftp(FtpFault::None).await);
    let missing = gateway.get(&server.url("/none.txt")).await;
    assert_eq!(missing.status, 404);
    assert!(text(&missing).contains("no such file"));
    let busy = ftp(FtpFault::Busy).await;
    let refused = gateway.get(&busy.url("/README")).await;
    assert_eq!(refused.status, 502);
    assert!(
        refused
            .field("Proxy-Status")
            .unwrap()
            .contains("destination_unavailable")
    );
    let other = ftp(FtpFault::OtherProtocol).await;
    assert_eq!(gateway.get(&other.url("/README")).await.status, 502);
    for path in ["/a%0d%0aDELE%20README", "/a%00", "/pub/%0A/"] {
        assert_eq!(gateway.get(&server.url(path)).await.status, 400, "{path}");
    }
    assert_eq!(server.count("DELE"), 0);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = gateway.ask(method, &server.url("/README"), &[]).await;
        assert_eq!(answer.status, 501, "{method}");
    }
    let low = format!("ftp://{}:25/README", server.address().ip());
    assert_eq!(gateway.get(&low).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_used_and_neither_stored_nor_logged() {
    let gateway = Gateway::both();
    let login = Some(("user@x", "se:cret"));
    let server = FtpServer::start_for(login, &FILES, FtpFault::None)
        .await
        .unwrap();
    let url = server.url("/README");
    let asked = gateway.get(&url).await;
    assert_eq!(asked.status, 401);
    assert!(
        asked
            .field("WWW-Authenticate")
            .unwrap()
            .starts_with("Basic realm=")
    );
    assert!(text(&asked).contains("Login &lt;incorrect&gt;"));
    let with_login = url.replace("ftp://", "ftp://user%40x:se%3Acret@");
    for _ in 0..2 {
        let answer = gateway.get(&with_login).await;
        assert_eq!((answer.status, text(&answer)), (200, "read me"));
    }
    let basic = [("Authorization", "Basic dXNlckB4OnNlOmNyZXQ=")];
    assert_eq!(gateway.ask("GET", &url, &basic).await.status, 200);
    assert_eq!(server.count("RETR"), 3);
    // 255 begins a command of Telnet, whose rules the control connection follows.
    let telnet = url.replace("ftp://", "ftp://a%ff%f4:b@");
    assert_eq!(gateway.get(&telnet).await.status, 400);
    assert_eq!(gateway.get(&url).await.status, 401);
    let log = gateway.log(5).await;
    assert!(
        !log.contains("se%3Acret") && !log.contains("user%40x"),
        "{log}"
    );
    let injected = url.replace("ftp://", "ftp://user:a%0d%0aDELE%20README@");
    assert_eq!(gateway.get(&injected).await.status, 400);
    assert_eq!(server.count("DELE"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_comes_from_the_server_itself() {
    let gateway = Gateway::both();
    let passive = ftp(FtpFault::NoExtendedPassive).await;
    assert_eq!(gateway.get(&passive.url("/README")).await.body, b"read me");
    assert_eq!(passive.count("PASV"), 1);
    // The address in the reply is not used, so a server cannot make the proxy connect elsewhere.
    let foreign = ftp(FtpFault::ForeignAddress).await;
    assert_eq!(gateway.get(&foreign.url("/README")).await.body, b"read me");
    let low = ftp(FtpFault::LowPort).await;
    assert_eq!(gateway.get(&low.url("/README")).await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_is_not_stored_as_complete() {
    let gateway = Gateway::both();
    for fault in [
        FtpFault::Cut,
        FtpFault::CutSilently,
        FtpFault::OldAndCut,
        FtpFault::Grown,
    ] {
        let server = ftp(fault).await;
        let url = server.url("/pub/a%20b.txt");
        for round in 1..=2 {
            let mut client = Client::connect(gateway.proxy.address()).await.unwrap();
            let answer = client.get(&url, &[]).await;
            let is_complete =
                answer.is_ok_and(|it| it.status == 200 && it.end == BodyEnd::Complete);
            assert!(!is_complete, "{fault:?}");
            assert!(server.count("RETR") >= round, "{fault:?}");
        }
    }
    let server = ftp(FtpFault::Cut).await;
    assert_eq!(gateway.get(&server.url("/pub/")).await.status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_session() {
    let gateway = Gateway::both();
    let large = vec![b'x'; 16 << 20];
    let files: [(&str, &[u8]); 1] = [("large", &large)];
    let server = FtpServer::start(&files, FtpFault::Hung).await.unwrap();
    let mut client = Client::connect(gateway.proxy.address()).await.unwrap();
    let url = server.url("/large");
    client.request("GET", &url, &[]).await.unwrap();
    let asked = async {
        while server.count("RETR") == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(30), asked).await.unwrap();
    drop(client);
    // Silence alone would end it after a minute.
    let ended = timeout(Duration::from_secs(30), server.wait_for_no_session()).await;
    ended.expect("the session ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_costs_no_more_than_the_limit() {
    let limits = "gateways = [\"ftp\"]\n[limits]\nfirst_byte_time = \"1s\"\n\
                  between_bytes_time = \"1s\"\n";
    let gateway = Gateway::start(limits);
    let mute = ftp(FtpFault::Mute).await;
    assert_eq!(gateway.get(&mute.url("/README")).await.status, 504);
    let hung = ftp(FtpFault::Hung).await;
    let mut client = Client::connect(gateway.proxy.address()).await.unwrap();
    let answer = client.get(&hung.url("/pub/a%20b.txt"), &[]).await;
    let is_complete = answer.is_ok_and(|it| it.status == 200 && it.end == BodyEnd::Complete);
    assert!(!is_complete);
    for server in [mute, hung] {
        let ended = server.wait_for_no_session();
        timeout(Duration::from_secs(30), ended)
            .await
            .expect("the session ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_are_off_unless_the_operator_turns_them_on() {
    let off = Gateway::start("");
    let server = ftp(FtpFault::None).await;
    let refused = off.get(&server.url("/README")).await;
    assert_eq!(refused.status, 501);
    assert!(
        text(&refused).contains("--gateways ftp"),
        "{}",
        text(&refused)
    );
    assert_eq!(off.get("gopher://127.0.0.1/").await.status, 501);
    assert_eq!(off.get("wais://127.0.0.1/").await.status, 400);
    assert_eq!(server.commands(), [""; 0]);
    let one = Gateway::start("gateways = [\"gopher\"]\n");
    assert_eq!(one.get(&server.url("/README")).await.status, 501);
    let denied = Gateway::start("gateways = [\"ftp\"]\ndeny_destination = [\"127.0.0.1\"]\n");
    assert_eq!(denied.get(&server.url("/README")).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_is_asked_for_ftp_urls_if_a_route_says_so() {
    let parent = Origin::start(|_| Script::response(200, &[], "from the parent"));
    let (parent, server) = (parent.await.unwrap(), ftp(FtpFault::None).await);
    let address = parent.address();
    let peer = format!(
        "gateways = [\"ftp\"]\n[[peer]]\nname = \"p\"\nkind = \"parent\"\n\
         url = \"http://{address}\"\n"
    );
    let url = server.url("/README");
    let direct = Gateway::start(&peer);
    assert_eq!(direct.get(&url).await.body, b"read me");
    assert_eq!(parent.request_count(), 0);
    let routed = Gateway::start(&format!("{peer}[[route]]\nscheme = \"ftp\"\n"));
    assert_eq!(routed.get(&url).await.body, b"from the parent");
    assert_eq!(parent.requests()[0].target(), url);
    let only = Gateway::start(&format!("direct = \"never\"\n{peer}"));
    assert_eq!(only.get(&url).await.body, b"from the parent");
    assert_eq!(server.count("RETR"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn gopher_menus_and_files_are_served() {
    let answers = [
        (
            "",
            "iWelcome\t\t\t0\r\n1Sub <menu>\t/sub\tgopher.test\t70\r\n.\r\n",
        ),
        ("/a.txt", "line\r\n.\r\n"),
        ("/a.bin", "\x01\x02\r\n.\r\n"),
        ("/find\ta b", "0Found\t/a.txt\tgopher.test\t7070\r\n.\r\n"),
    ];
    let server = GopherServer::start(&answers).await.unwrap();
    // A range of ports is not enough.
    assert_eq!(Gateway::both().get(&server.url("/")).await.status, 403);
    let base = server.url("");
    let (_, port) = base.rsplit_once(':').unwrap();
    let gateway = Gateway::start(&format!(
        "gateways = [\"gopher\"]\nallow_port = [\"{port}\"]\n"
    ));
    let menu = gateway.get(&server.url("/")).await;
    assert_eq!(menu.status, 200);
    let html = text(&menu);
    assert!(
        html.contains("<a href=\"gopher://gopher.test/1%2Fsub\">Sub &lt;menu&gt;</a>"),
        "{html}"
    );
    let file = gateway.get(&server.url("/0/a.txt")).await;
    assert_eq!((file.status, text(&file)), (200, "line\r\n"));
    assert_eq!(gateway.get(&server.url("/0/a.txt")).await.body, b"line\r\n");
    let binary = gateway.get(&server.url("/9/a.bin")).await;
    assert_eq!(binary.body, b"\x01\x02\r\n.\r\n");
    // A request that needs no answer from the server makes no connection to it.
    let before = server.connections();
    let form = gateway.get(&server.url("/7/find")).await;
    assert!(text(&form).contains("<input name=q>"));
    assert_eq!(
        (form.status, form.field("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    assert_eq!(gateway.get(&server.url("/2/phone-book")).await.status, 501);
    assert_eq!(server.connections(), before);
    let found = gateway.get(&server.url("/7/find?q=a+b")).await;
    assert!(text(&found).contains("gopher://gopher.test:7070/0%2Fa.txt"));
    assert_eq!(gateway.get(&server.url("/0/none")).await.status, 404);
    let before = server.connections();
    for path in ["/0a%0d%0ab", "/0%09%09", &format!("/0{}", "a".repeat(256))] {
        assert_eq!(gateway.get(&server.url(path)).await.status, 400, "{path}");
    }
    // Connections are accepted in their order, so this one is the last.
    assert_eq!(gateway.get(&server.url("/0/last")).await.status, 404);
    assert_eq!(
        server.connections(),
        before + 1,
        "a connection without a line"
    );
    let lines = ["", "/a.txt", "/a.bin", "/find\ta b", "/none", "/last"];
    assert_eq!(server.lines(), lines);
    assert_eq!(gateway.get("gopher://127.0.0.1:25/").await.status, 403);
}
