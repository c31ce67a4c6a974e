//! Arrays of tables in the configuration file: purpose, fields and an example of each.
//!
//! Other modules read the tables; the sample configuration, the manual page and the reference page
//! are generated from this list.

/// An array of tables: `[[name]]`.
#[derive(Debug)]
pub struct Table {
    /// The array's name.
    pub name: &'static str,
    /// Heading in the documents.
    pub heading: &'static str,
    /// The array's purpose, in sentences.
    pub about: &'static str,
    /// Name and description of each field.
    pub fields: &'static [(&'static str, &'static str)],
    /// Tables in TOML that have every field. Other parts of the file may be there for the reader.
    pub example: &'static str,
    /// The page in `docs/operate` that describes the array.
    pub page: &'static str,
}

/// All arrays of tables, in the documents' order.
pub static TABLES: [Table; 9] = [
    Table {
        name: "access",
        heading: "Access rules",
        about: "An access rule allows or denies requests to a forward proxy. The first rule that \
                 matches a request decides; a rule matches when all its conditions hold and no \
                 exception does. Where none matches, clients of this machine, of private networks, \
                 of the networks of its own interfaces and of allow_client are served, and no \
                 others. Rules do not change which ports and addresses can be reached (allow_port, \
                 allow_connect_port, allow_destination). [networks] gives names to networks: \
                 pupils = [\"10.1.0.0/16\"]. A reload applies changes to the next request of \
                 every client.",
        fields: &[
            (
                "name",
                "Name on the page that refused people see; without it, the number of the rule.",
            ),
            (
                "action",
                "allow: served. deny: status 403, with a page that names the rule, the reason and \
                 the contact. tunnel: served, and CONNECT is never intercepted. no-cache: served, \
                 but neither looked up nor stored. limit: served, within the limits of the rule.",
            ),
            (
                "clients",
                "Networks, names of networks, local (the clients that are served where no rule \
                 matches) or all. Without it, a rule with deny is for all clients, and any other \
                 rule for local ones: only a rule that names more clients opens the proxy to them.",
            ),
            (
                "users",
                "Names of users. The client is asked for a login (status 407) when everything else \
                 of the rule matches. For requests inside an intercepted connection, the CONNECT \
                 is asked.",
            ),
            (
                "groups",
                "Names of `[[group]]` tables, one of which has the user.",
            ),
            (
                "destinations",
                "Hosts: example.org is one host, .example.org that host and every host below it. \
                 An address or a network matches URLs that name an address, or an IPv6 address \
                 that embeds it (NAT64); for the addresses of names there is deny_destination. A \
                 mirror's destination is its registry.",
            ),
            (
                "lists",
                "Names of `[[list]]` tables, one of which has the host.",
            ),
            (
                "ports",
                "Ports of URLs and of CONNECT, and ranges of ports.",
            ),
            (
                "methods",
                "Methods in capitals. CONNECT asks for a tunnel; requests inside an intercepted \
                 one have methods of their own, and each is decided again. Not every tunnel can be \
                 intercepted: deny what nobody may reach for CONNECT too, by a rule without \
                 methods.",
            ),
            (
                "times",
                "Times of the week, in the time zone of the system (/etc/localtime): \"Mon-Fri \
                 08:00-15:30\", \"Sat,Sun\", \"22:00-06:00\". The variable TZ is not read. What \
                 has begun is not interrupted.",
            ),
            (
                "except",
                "Exceptions: a table of conditions such as { destinations = [\".example.org\"] }, \
                 or an array of such tables. The rule does not match a request that meets all \
                 conditions of one table; the next rules decide about it. Without clients, a \
                 table is for all clients of the rule. Addresses and users that are not certain \
                 are refused: see the page.",
            ),
            (
                "limits",
                "Names of `[[limit]]` tables, all of which hold for the requests; with the actions \
                 limit, tunnel and no-cache.",
            ),
            (
                "reason",
                "Why the rule refuses, for the person who is refused.",
            ),
        ],
        example: r#"[networks]
pupils = ["10.1.0.0/16"]

[[access]]
name = "no games during lessons"
action = "deny"
clients = ["pupils"]
destinations = [".games.example", "chat.example.org"]
times = ["Mon-Fri 08:00-15:30"]
reason = "Games are for the afternoon."

[[access]]
name = "staff may play"
action = "allow"
destinations = [".games.example"]
users = ["lee"]
groups = ["staff"]

[[access]]
action = "tunnel"
destinations = [".bank.example"]
ports = [443]
methods = ["CONNECT"]

[[access]]
action = "deny"
clients = ["pupils"]
except = { destinations = [".wiki.example"] }
"#,
        page: "access.md",
    },
    Table {
        name: "group",
        heading: "Groups of users",
        about: "A group of users, for the condition groups of access rules.",
        fields: &[
            ("name", "Name in rules."),
            ("users", "Names of users, as in the file of htpasswd."),
        ],
        example: r#"[[group]]
name = "staff"
users = ["abara", "lee"]
"#,
        page: "access.md",
    },
    Table {
        name: "limit",
        heading: "Limits",
        about: "A limit for the requests of access rules that name it in limits. Two rules that \
                 name one limit share it. What was used is kept over restarts, in a file beside \
                 the cache. http://proxy/quota, asked through the proxy, shows a person what is \
                 left.",
        fields: &[
            ("name", "Name in rules and on pages."),
            (
                "per",
                "client, the default: each IPv4 address or IPv6 /64 has a limit of its own. user: \
                 each user has; a client whose user is not known counts as a client. all: all have \
                 one together.",
            ),
            (
                "quota",
                "Bytes from origins; what is stored already is free.",
            ),
            (
                "every",
                "How long the quota lasts, in the time zone of the system: day, week (from Monday) \
                 or month.",
            ),
            (
                "used_up",
                "refuse, the default: when the quota is used up, what needs an origin gets status \
                 429, and transfers and tunnels end. A size instead is the bytes per second that \
                 remain for content from origins.",
            ),
            (
                "bandwidth",
                "Bytes of content to clients per second, from the cache too. What is shared is \
                 shared equally among the clients that want it.",
            ),
            (
                "burst",
                "Bytes that may come at once after a pause; by default those of one second.",
            ),
            (
                "requests",
                "Requests per second; those beyond get status 429.",
            ),
            (
                "requests_burst",
                "Requests that may come at once after a pause; by default those of one second.",
            ),
        ],
        example: r#"[[limit]]
name = "pupil"
per = "client"
quota = "500MiB"
every = "day"
used_up = "refuse"
bandwidth = "1MiB"
burst = "4MiB"
requests = 20
requests_burst = 60

[[access]]
name = "quota of pupils"
action = "limit"
limits = ["pupil"]
clients = ["10.1.0.0/16"]
"#,
        page: "quotas.md",
    },
    Table {
        name: "list",
        heading: "Lists of hosts",
        about: "A list of hosts in files, for the condition lists of access rules. A name takes \
                 11 bytes of memory. The files are read at the start, and again when they have \
                 changed: at a reload, or within a minute. A list that cannot be read any more \
                 stays as it was. Lines that are no entries are counted and logged.",
        fields: &[
            ("name", "Name in rules."),
            ("files", "Its files; together they are the list."),
            (
                "format",
                "hosts: as /etc/hosts; each name stands for itself. domains: one domain a line, \
                 which stands for all hosts below it too. dstdomain: as Squid reads it, \
                 .example.org with all hosts below, example.org for itself. auto, the default: a \
                 line with an address in front as hosts, any other as domains.",
            ),
        ],
        example: r#"[[access]]
name = "advertising"
action = "deny"
lists = ["ads"]

[[list]]
name = "ads"
files = ["/etc/hashcache/ads.hosts"]
format = "auto"
"#,
        page: "access.md",
    },
    Table {
        name: "rule",
        heading: "Freshness rules",
        about: "A freshness rule says how long the responses of certain URLs stay fresh. The \
                 first rule that matches a URL decides; yours come before the shipped ones. An \
                 origin's no-store, private and no-cache win over every rule. A rule needs path \
                 and exactly one of lifetime, heuristic and immutable.",
        fields: &[
            (
                "path",
                "Pattern of the URL's path, or a list of patterns: `*` stays within a segment, \
                 `**` crosses segments, `<hex:40>` is 40 hexadecimal digits. A pattern begins with \
                 /.",
            ),
            (
                "host",
                "Pattern of the host, or a list of patterns. Without it, the rule is for \
                 every host.",
            ),
            (
                "lifetime",
                "Freshness lifetime of responses for which the origin states none (no max-age, \
                 s-maxage or Expires), such as \"5m\". It does not depend on Last-Modified. It \
                 also says that these responses are public: they are stored even if they set a \
                 cookie.",
            ),
            (
                "heuristic",
                "A guess where the origin states no lifetime: `percent` of the time since \
                 Last-Modified, at most `max`. Without a rule the guess is 10 percent, at most 1d. \
                 There is no guess, so each use is validated, without Last-Modified, for a URL \
                 with a query, for a response that sets a cookie and for a request with \
                 Authorization.",
            ),
            (
                "immutable",
                "true: the content of such a URL never changes. It stays fresh for a year, even if \
                 the origin states a shorter lifetime (other than 0), and a reload does not fetch \
                 it again. It is public, as with lifetime.",
            ),
        ],
        example: r#"[[rule]]
host = "downloads.example.org"
path = "/releases/**"
immutable = true

[[rule]]
path = "/news/*"
lifetime = "5m"

[[rule]]
path = ["/img/**", "/css/**"]
heuristic = { percent = 20, max = "7d" }
"#,
        page: "freshness.md",
    },
    Table {
        name: "site",
        heading: "Sites",
        about: "A site that the proxy stands in front of (reverse proxy). Every address in listen \
                 then serves the sites of the file, and no other hosts: they get status 421. A \
                 host belongs to one site. Responses are stored by the URL that the client used. \
                 Origins get X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and Forwarded. A \
                 reload takes changes of sites over.",
        fields: &[
            (
                "hosts",
                "Names of the site, without ports. The first one is its name in logs.",
            ),
            (
                "origins",
                "URLs of the servers that have its content, without paths. A table such as { url = \
                 \"http://10.0.0.6\", weight = 2 } gives an origin a larger share.",
            ),
            (
                "host",
                "The Host field that origins get: \"client\" (the client's, the default), \
                 \"origin\" (that of the origin's URL), or a name.",
            ),
            (
                "balance",
                "How requests are spread: \"round-robin\" (the default), \"least-busy\", \"hash\" \
                 (always the same origin for a URL) or \"first\" (the first one that works). An \
                 origin that fails 3 times in a row (no connection, no response in time, status \
                 502 to 504) gets no requests for 10s, then 20s, up to 1m, unless it takes \
                 connections and has answered others within 2s. Never more than half of the \
                 origins are left out in this way. A GET, HEAD or OPTIONS without content that \
                 fails before its response begins is sent to another origin, for at most a fifth \
                 of the requests.",
            ),
            (
                "health",
                "Checks of each origin: `path` is requested every `interval` (5s) and must answer \
                 with `status` (200) within `timeout` (2s). An origin is left out after 3 failed \
                 checks, until 2 are good.",
            ),
            (
                "redirect_to_https",
                "true: plain requests get a redirect to https (308), except below \
                 /.well-known/acme-challenge/.",
            ),
            (
                "trust_forwarded",
                "Networks of proxies in front of this one, whose Forwarded and X-Forwarded fields \
                 are believed. From other clients these fields are dropped. A proxy in these \
                 networks must set or remove X-Forwarded-For.",
            ),
            (
                "front_keeps_logins",
                "true: the proxies of trust_forwarded send the requests of one client only on a \
                 connection on which that client has logged in (NTLM, Negotiate), as HAProxy and \
                 Squid do. Without this no such login succeeds through them.",
            ),
            (
                "pass_fields",
                "Fields of clients that reach the origins although they speak for the client, such \
                 as X-HTTP-Method-Override, X-Original-URL or X-Client-IP. Without this such \
                 fields are dropped, unless a proxy of trust_forwarded sent them. Forwarded and \
                 X-Forwarded-For, -Proto and -Host are always written anew.",
            ),
            (
                "lifetime",
                "Freshness lifetimes by path; the first entry that matches decides. path: a \
                 pattern or a list, as in a rule; without it, every path. default: the lifetime of \
                 a response with status 200, 203, 204, 206, 300, 301 or 308 for which the origin \
                 states none. It is for requests without cookies, unless ignore_cookies = true, \
                 and never for responses that set a cookie. max: the longest lifetime, whatever \
                 the origin states. private, no-store and no-cache win.",
            ),
            (
                "stale_if_error",
                "How long after its lifetime a response may be served while the origins answer \
                 with errors, if the origin says nothing about that.",
            ),
            (
                "stale_while_revalidate",
                "How long after its lifetime a response may be served at once while a new one is \
                 fetched, if the origin says nothing about that.",
            ),
            (
                "key",
                "What selects a stored response besides the URL. drop_query: patterns of \
                 parameters that are removed, also for the origin. sort_query: true sorts the \
                 parameters by name. cookies and headers: names whose values are part of the key.",
            ),
            (
                "bypass_cookie",
                "Patterns of cookies, such as \"session*\". A request with such a cookie is \
                 answered by the origin, and the response is not stored.",
            ),
            (
                "request_headers",
                "Changes of the fields that origins get: remove (a list), set and add (tables of \
                 names and values), in this order. Fields of the connection and of framing cannot \
                 be changed.",
            ),
            (
                "response_headers",
                "The same for the fields that clients get. Responses are stored as the \
                 origin sent them.",
            ),
            (
                "compress",
                "Content codings for text of 1KiB and more: \"br\", \"gzip\". Origins are then \
                 asked for content without a coding; it is stored once, and encoded for clients \
                 that accept it.",
            ),
            (
                "error_page",
                "File with an HTML page, up to 64KiB, for browsers, in place of the proxy's own \
                 error pages.",
            ),
        ],
        example: r#"[[site]]
hosts = ["www.example.com", "example.com"]
origins = ["http://10.0.0.5:8080", { url = "http://10.0.0.6:8080", weight = 2 }]
host = "client"
balance = "round-robin"
health = { path = "/healthz", interval = "5s", timeout = "2s", status = 200 }
redirect_to_https = true
trust_forwarded = ["10.0.0.0/8"]
front_keeps_logins = true
pass_fields = ["X-HTTP-Method-Override"]
lifetime = [
    { path = "/static/**", default = "1d", ignore_cookies = true },
    { default = "1m", max = "1h" },
]
stale_if_error = "1d"
stale_while_revalidate = "1m"
key = { drop_query = ["utm_*", "fbclid"], sort_query = true, cookies = ["lang"] }
bypass_cookie = ["session", "wordpress_logged_in_*"]
request_headers = { set = { X-Served-By = "hashcache" } }
response_headers = { remove = ["Server"], set = { X-Frame-Options = "DENY" } }
compress = ["br", "gzip"]
error_page = "/etc/hashcache/error.html"
"#,
        page: "sites.md",
    },
    Table {
        name: "mirror",
        heading: "Mirrors",
        about: "A mirror of a package registry, at the path /mirror/NAME/ of the proxy. It is the \
                 table form of the key mirror; a file has one or the other.",
        fields: &[
            ("kind", "pypi, npm, crates or apt."),
            (
                "url",
                "Base URL of the registry, as its own clients use it.",
            ),
            (
                "files",
                "For pypi and crates: the places, as URLs of hosts or of paths on them, that the \
                 index links files from. The registry's own host counts only if it is listed.",
            ),
            ("name", "Name in the path; the kind unless given."),
        ],
        example: r#"[[mirror]]
kind = "pypi"
url = "https://index.example/simple/"
files = ["https://files.example"]
name = "pypi"
"#,
        page: "mirrors.md",
    },
    Table {
        name: "peer",
        heading: "Peers",
        about: "Another cache through which this proxy fetches. All parents are asked for \
                 everything, in the order of the file, unless a route says otherwise. Siblings are \
                 asked for what they have stored. Members are the boxes of one site: each URL has \
                 one owner among them, which stores it. You trust every peer not to forge what it \
                 sends.",
        fields: &[
            ("name", "Name in logs and routes."),
            (
                "kind",
                "parent: it is asked for every resource, and fetches what it does not have. \
                 sibling: it is asked only for what it has stored, as its cache digest, ICP or \
                 HTCP tells. member: a box of the same site. Every box has the same list of \
                 members, itself included, and knows itself by the key name. It asks the owner of \
                 a URL, and keeps the response in memory for ten seconds.",
            ),
            (
                "url",
                "Where it listens; with https:// the connection to it uses TLS.",
            ),
            (
                "credentials_file",
                "File with one line `user:password` for Basic authentication. Only its owner and \
                 its group may read it. A reload reads it again.",
            ),
            (
                "pin",
                "The pin of a parent's key: it is used by a link alone, as with parent_pin.",
            ),
            (
                "https",
                "How https resources are fetched: tunnel (CONNECT; the default) or fetch (the peer \
                 is asked for the whole https:// URL, is the client of the origin's TLS, and can \
                 store the response).",
            ),
            (
                "plain_https",
                "true: allow fetch over a connection without TLS, which others may read.",
            ),
            (
                "weight",
                "Its share of the requests with round-robin, rendezvous and carp, and of the URLs \
                 among members, from 1 to 1000; 1 unless given.",
            ),
            (
                "icp",
                "Its UDP port for ICP, usually 3130; the key icp must be set too. A sibling needs \
                 it, or htcp, or a digest.",
            ),
            (
                "htcp",
                "Its UDP port for HTCP, usually 4827; the key htcp must be set too. Queries carry \
                 Accept, Accept-Encoding and Accept-Language. A peer with both ports is asked by \
                 HTCP.",
            ),
            (
                "htcp_key_file",
                "File with one line `name:secret`, the same at the peer. HTCP messages are then \
                 signed (HMAC-MD5), and those without its signature are refused. Only its owner \
                 and its group may read it. A reload reads it again. Squid does not sign.",
            ),
            (
                "clear",
                "true: obey its HTCP CLR, by which it removes a URL from this cache, 100 a second. \
                 Squid sends CLR unasked, after each POST and reload. false unless given.",
            ),
            (
                "send_clear",
                "true: it gets an HTCP CLR for each http URL that the method PURGE removes here. \
                 false unless given.",
            ),
            (
                "digest",
                "true, for a sibling: fetch its cache digest, as Squid's siblings do, and serve it \
                 that of this proxy. It is then asked for what its digest has, without queries. \
                 Needs the policy log or log-lru, and 10 to 16 bits of memory for each stored \
                 object.",
            ),
            (
                "summary",
                "true, for a sibling that is a HashCache too: as digest, and each sends the other \
                 what is new by UDP, to the ICP port of the peer, so `icp` must be set. Both sides \
                 need `summary`.",
            ),
            (
                "misses",
                "false: its own requests get only what is stored here, else status 504, so that a \
                 sibling does not use this proxy as a parent. true unless given.",
            ),
        ],
        example: r#"[[peer]]
name = "isp"
kind = "parent"
url = "https://cache.isp.example:3129"
credentials_file = "/etc/hashcache/isp"
https = "tunnel"
plain_https = false
weight = 1
icp = 3130
htcp = 4827
htcp_key_file = "/etc/hashcache/htcp-key"
clear = false
send_clear = false
misses = true

[[peer]]
name = "hub"
url = "https://hub.example:3129"
pin = "sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
https = "fetch"

[[peer]]
name = "east"
kind = "sibling"
url = "http://192.0.2.2:3128"
icp = 3130
digest = true
summary = true
"#,
        page: "parents.md",
    },
    Table {
        name: "route",
        heading: "Routes",
        about: "A route says through which peers certain resources are fetched. The first route \
                 that matches a resource decides; the keys direct and peer_choice apply where none \
                 does. Addresses that clients may not reach (allow_destination) are refused \
                 whatever the route.",
        fields: &[
            (
                "host",
                "Host name, `*.` with a domain, address or network, or a list of them. Without it, \
                 the route is for every host.",
            ),
            (
                "port",
                "List of ports and ranges of ports. Without it, the route is for every port.",
            ),
            (
                "scheme",
                "http, https, ftp or gopher; a tunnel counts as https. Without it, the route is \
                 for all. Peers are asked for ftp and gopher URLs only by a route with that \
                 scheme, or with direct = \"never\".",
            ),
            (
                "peers",
                "Names of the peers that may be asked, in this order; [] means none. Without \
                 it, all.",
            ),
            (
                "direct",
                "As the key direct, whose value is used without it; with an empty list of \
                 peers: allow.",
            ),
            (
                "choice",
                "As the key peer_choice, whose value is used without it.",
            ),
        ],
        example: r#"[[route]]
host = ["intranet", "*.corp.example", "10.0.0.0/8"]
port = [80, "8000-8999"]
scheme = "http"
peers = ["isp"]
direct = "never"
choice = "first"
"#,
        page: "parents.md",
    },
];
