//! Request heads that both ways of a hit must answer alike: made at random, or taken from the table
//! of requests with two meanings.
//!
//! Every head has two spellings that mean the same. The usual one has a field more that no server
//! looks at, which keeps it off the shortest way.

use hashcache_testkit::scenario::smuggling::{Shape, written_out};
use hyper::Request;
use hyper::header::HeaderValue;

/// The objects that are asked for; all are in memory before a conversation begins.
pub const PATHS: [&str; 7] = [
    "/size/10",
    "/size/0",
    "/size/8192",
    "/size/70000/etag",
    "/size/10/aged",
    "/size/10/via/told/twice",
    "/size/30/etag?x=1&y=%2F",
];

/// How the clients of a proxy name its objects.
pub struct Names {
    pub scheme: &'static str,
    /// The authority of the objects.
    pub authority: String,
    /// Clients send the whole URL: the proxy is a forward proxy.
    pub is_absolute: bool,
}

impl Names {
    pub fn target(&self, path: &str) -> String {
        self.in_form(self.is_absolute, path)
    }

    fn in_form(&self, is_absolute: bool, path: &str) -> String {
        if is_absolute {
            format!("{}://{}{path}", self.scheme, self.authority)
        } else {
            path.to_owned()
        }
    }
}

/// Requests for one connection, sent at once.
#[derive(Default)]
pub struct Requests {
    /// As they may take the shortest way.
    pub short: Vec<u8>,
    /// As they take the usual way.
    pub usual: Vec<u8>,
    /// The methods of the responses.
    pub methods: Vec<String>,
}

impl Requests {
    fn push(&mut self, method: &str, line: &str, fields: &[u8]) {
        for (bytes, more) in [(&mut self.short, &b""[..]), (&mut self.usual, USUAL)] {
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(more);
            bytes.extend_from_slice(fields);
        }
        self.methods.push(method.to_owned());
    }

    /// A plain request for each of these paths.
    pub fn plain<'a>(names: &Names, paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut requests = Self::default();
        for path in paths {
            requests.push_plain(names, path);
        }
        requests
    }

    fn push_plain(&mut self, names: &Names, path: &str) {
        let line = format!("GET {} HTTP/1.1\r\n", names.target(path));
        let fields = format!("Host: {}\r\n\r\n", names.authority);
        self.push("GET", &line, fields.as_bytes());
    }

    /// Adds a last request, after which the connection closes.
    pub fn closed(mut self, names: &Names) -> Self {
        let line = format!("GET {} HTTP/1.1\r\n", names.target(PATHS[0]));
        let fields = format!(
            "Host: {}\r\nX-Usual: 1\r\nConnection: close\r\n\r\n",
            names.authority
        );
        self.push("GET", &line, fields.as_bytes());
        self
    }

    /// A shape of the table, with a plain request behind it.
    pub fn of_shape(shape: &Shape, names: &Names) -> Self {
        let method = shape.method();
        // A successful POST invalidates what is stored.
        let first = match &method[..] {
            "GET" | "HEAD" => PATHS[6],
            _ => "/size/10/changed",
        };
        let word = |word: &str| match word {
            "t" => names.target(first),
            "p" => names.target(PATHS[2]),
            "s" => names.target(PATHS[1]),
            "h" => names.authority.clone(),
            "path" => first.to_owned(),
            _ => unreachable!("{word}"),
        };
        let mut requests = Self {
            short: written_out(shape.bytes, word),
            usual: written_out(&usual_shape(shape.bytes), word),
            methods: vec![method],
        };
        if shape.means_two() {
            requests.methods.push("GET".to_owned());
        }
        requests.push_plain(names, PATHS[0]);
        requests
    }
}

/// The bytes of a shape with the additional field at the beginning of each head.
fn usual_shape(bytes: &[u8]) -> Vec<u8> {
    let mut usual = Vec::new();
    let mut is_request_line = false;
    for (at, &byte) in bytes.iter().enumerate() {
        let is_target = |word: &&[u8]| bytes[at..].starts_with(word);
        is_request_line |= [&b"{t}"[..], b"{p}", b"{s}", b"{path}"]
            .iter()
            .any(is_target);
        usual.push(byte);
        if byte == b'|' && std::mem::take(&mut is_request_line) {
            usual.extend_from_slice(b"X-Usual: 1|");
        }
    }
    usual
}

const USUAL: &[u8] = b"X-Usual: 1\r\n";

/// Makes heads at random.
pub struct Grammar {
    pub random: fastrand::Rng,
}

impl Grammar {
    /// One to five requests.
    pub fn requests(&mut self, names: &Names) -> Requests {
        let mut requests = Requests::default();
        for _ in 0..self.random.usize(1..=5) {
            self.push(&mut requests, names);
        }
        requests
    }

    fn push(&mut self, requests: &mut Requests, names: &Names) {
        let method = match self.random.u8(..20) {
            0 => "HEAD",
            1 => "OPTIONS",
            _ => "GET",
        };
        let path = self.one(&PATHS);
        let is_absolute = names.is_absolute != self.happens(12);
        let mut target = names.in_form(is_absolute, path);
        if is_absolute && self.happens(6) {
            // Scheme and authority have no case.
            let at = target.len() - path.len();
            target[..at].make_ascii_uppercase();
        }
        let version = if self.happens(30) { "1.0" } else { "1.1" };
        // An empty line before a request means nothing.
        let before = if self.happens(10) { "\r\n" } else { "" };
        let line = format!("{before}{method} {target} HTTP/{version}\r\n");
        let fields = self.fields();
        let lines = fields
            .into_iter()
            .map(|(name, value)| self.line(name, value));
        let mut lines: Vec<_> = lines.collect();
        for host in self.hosts(names) {
            let at = self.random.usize(..=lines.len());
            let line = self.line("Host", host.as_bytes());
            lines.insert(at, line);
        }
        lines.push(b"\r\n".to_vec());
        requests.push(method, &line, &lines.concat());
    }

    /// The values of Host: one, but in rare cases.
    fn hosts(&mut self, names: &Names) -> Vec<String> {
        let right = names.authority.clone();
        match self.random.u8(..60) {
            0 => vec![],
            1 => vec![right.clone(), right],
            2 => vec![String::new()],
            3 => vec![format!("{right}/")],
            4 | 5 => vec!["elsewhere.example".to_owned()],
            6..12 => vec![right.to_ascii_uppercase()],
            _ => vec![right],
        }
    }

    /// One to five requests in HTTP/2, in the short spelling.
    pub fn http2_requests(&mut self, names: &Names) -> Vec<Request<()>> {
        let number = self.random.usize(1..=5);
        (0..number).map(|_| self.http2_request(names)).collect()
    }

    fn http2_request(&mut self, names: &Names) -> Request<()> {
        let method = if self.happens(20) { "HEAD" } else { "GET" };
        let path = self.one(&PATHS);
        let mut request = Request::builder()
            .method(method)
            .uri(names.in_form(true, path));
        if self.happens(15) {
            for host in self.hosts(names) {
                request = request.header("Host", host);
            }
        }
        let of_connection = ["Connection", "Keep-Alive", "Proxy-Connection"];
        for (name, value) in self.fields() {
            if !of_connection.contains(&name)
                && let Ok(value) = HeaderValue::from_bytes(value.trim_ascii())
            {
                request = request.header(name, value);
            }
        }
        request.body(()).expect("a request")
    }

    fn fields(&mut self) -> Vec<(&'static str, &'static [u8])> {
        let mut fields = Vec::new();
        for _ in 0..self.random.usize(..6) {
            let (name, values) = self.one(&PLAIN);
            fields.push((*name, *self.one(values)));
        }
        if self.happens(5) {
            let (name, values) = self.one(&OTHERS);
            fields.push((*name, *self.one(values)));
        }
        fields
    }

    /// A field line, in one of the ways in which it may be written.
    fn line(&mut self, name: &str, value: &[u8]) -> Vec<u8> {
        let name = match self.random.u8(..6) {
            0 => name.to_ascii_lowercase(),
            1 => name.to_ascii_uppercase(),
            _ => name.to_owned(),
        };
        let before = *self.one(&[": ", ": ", ": ", ":", ":\t", ": \t "]);
        let after = *self.one(&["", "", "", " ", "\t", " \t "]);
        let parts = [name.as_bytes(), before.as_bytes(), value, after.as_bytes()];
        [&parts.concat()[..], b"\r\n"].concat()
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.random.usize(..of.len())]
    }

    /// True once in `times`.
    fn happens(&mut self, times: u8) -> bool {
        self.random.u8(..times) == 0
    }
}

type Field = (&'static str, &'static [&'static [u8]]);

static LONG: [u8; 900] = [b'l'; 900];

/// Fields that change nothing in a response that does not vary.
static PLAIN: [Field; 18] = [
    (
        "User-Agent",
        &[b"a", b"", b"a \"quoted\" \\ one", b"b\xff\xc3\xa9", &LONG],
    ),
    ("Referer", &[b"http://x.test/p?\"q", b"", b"\xe9", &LONG]),
    (
        "Accept",
        &[b"*/*", b"text/html,*/*;q=0.1", b"", b"image/png"],
    ),
    (
        "Accept-Encoding",
        &[b"gzip", b"zstd, br;q=0.5", b"identity;q=0", b"", b"*"],
    ),
    (
        "Accept-Language",
        &[b" en ,   de", b"de, en", b"fr;q=0.5, de;q=1.0", b""],
    ),
    ("Accept-Charset", &[b"utf-8"]),
    ("Cookie", &[b"a=b", b"a=b; c=\xff", b"", &LONG]),
    ("Origin", &[b"http://x.test", b"null"]),
    ("DNT", &[b"1"]),
    ("Save-Data", &[b"on"]),
    ("Priority", &[b"u=1, i"]),
    ("Sec-Fetch-Dest", &[b"document", b"image", b""]),
    ("Sec-Fetch-Mode", &[b"navigate"]),
    ("X-Requested-With", &[b"XMLHttpRequest"]),
    ("Upgrade-Insecure-Requests", &[b"1"]),
    ("Connection", &[b"keep-alive", b"Keep-Alive", b"KEEP-ALIVE"]),
    ("Proxy-Connection", &[b"keep-alive", b"Keep-Alive"]),
    ("Sec-GPC", &[b"1"]),
];

/// Fields that change something for at least one of their values: among them every request field of
/// the public suite of HTTP caching tests (github.com/http-tests/cache-tests). No value depends on
/// the second in which it arrives.
static OTHERS: [Field; 29] = [
    (
        "Cache-Control",
        &[
            b"no-cache",
            b"no-store",
            b"only-if-cached",
            b"max-age=600",
            b"max-stale=1000",
            b"min-fresh=1",
            b"min-fresh=2000",
            b"no-transform",
            b"",
        ],
    ),
    ("Pragma", &[b"no-cache", b"unrecognised-extension"]),
    ("Authorization", &[b"FOO", b"Basic eDp5"]),
    (
        "If-None-Match",
        &[
            b"\"x\"",
            b"W/\"x\"",
            b"w/\"x\"",
            b"W\"x\"",
            b"x",
            b"*",
            b"\"1234\", \"x\", \"5678\"",
            b"\"x\xfc\"",
            b"",
        ],
    ),
    ("If-Match", &[b"\"x\"", b"\"y\"", b"*"]),
    (
        "If-Modified-Since",
        &[
            b"Mon, 02 Jan 2023 03:04:05 GMT",
            b"Sun, 01 Jan 2023 03:04:05 GMT",
            b"yesterday",
        ],
    ),
    (
        "If-Unmodified-Since",
        &[
            b"Mon, 02 Jan 2023 03:04:05 GMT",
            b"Sun, 01 Jan 2023 03:04:05 GMT",
        ],
    ),
    (
        "Range",
        &[
            b"bytes=-1",
            b"bytes=0-1",
            b"bytes=1-",
            b"bytes=6-8",
            b"bytes=100000-",
            b"lines=1-2",
            b"bytes=",
        ],
    ),
    ("If-Range", &[b"\"x\"", b"\"y\""]),
    (
        "Connection",
        &[
            b"close",
            b"keep-alive, close",
            b"keep-alive, user-agent",
            b"x-drop",
            b"",
            b"cookie",
        ],
    ),
    ("Keep-Alive", &[b"timeout=5"]),
    ("Proxy-Connection", &[b"close", b"keep-alive, close"]),
    ("TE", &[b"trailers"]),
    ("Expect", &[b"100-continue", b"a miracle"]),
    ("Max-Forwards", &[b"0", b"10"]),
    ("Via", &[b"1.1 other"]),
    ("CDN-Loop", &[b"other"]),
    ("Forwarded", &[b"for=192.0.2.1;proto=https"]),
    ("X-Forwarded-For", &[b"192.0.2.1"]),
    ("X-Forwarded-Proto", &[b"https"]),
    ("X-Forwarded-Host", &[b"elsewhere.example"]),
    ("X-Real-IP", &[b"192.0.2.1"]),
    ("Want-Repr-Digest", &[b"sha-256=1"]),
    ("Content-Type", &[b"text/plain"]),
    ("Content-Length", &[b"0"]),
    ("Proxy-Authorization", &[b"Basic eDp5"]),
    ("Early-Data", &[b"1"]),
    ("Foo", &[b" 1, 2 ", b"1", b"1,2", b"2"]),
    ("Sec-GPC", &[b"1"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_spelling_of_a_shape_has_the_field_in_each_head() {
        let shape = b"GET {t} HTTP/1.1|Host: {h}||GET {p} HTTP/1.1|Host: {h}||";
        let usual = usual_shape(shape);
        assert_eq!(
            String::from_utf8(usual).unwrap(),
            "GET {t} HTTP/1.1|X-Usual: 1|Host: {h}||GET {p} HTTP/1.1|X-Usual: 1|Host: {h}||"
        );
    }
}
