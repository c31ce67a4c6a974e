//! The reference of all settings: topic, one line, details and default of each.
//!
//! `args` takes the lines for `--help`, `man` makes `hashcache.toml(5)` of the table, and `example`
//! makes the sample configuration. Invariant: every key of `KEYS` has one entry, in the order in
//! which the documents list them.

use super::keys::{KEYS, Key, Shown};
use super::values::Values;

/// Heading under which a setting is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Addresses and roles of the proxy.
    Listen,
    /// Where and how much to store.
    Cache,
    /// What clients may do.
    Access,
    /// Certificates and interception.
    Https,
    /// Mirrors of package registries.
    Mirrors,
    /// Other caches.
    Peers,
    /// The access log.
    Logs,
    /// Settings that few installations need.
    Expert,
    /// The table `[limits]`.
    Limits,
}

impl Topic {
    /// All topics, in the order of the documents.
    pub const ALL: [Self; 9] = [
        Self::Listen,
        Self::Cache,
        Self::Access,
        Self::Https,
        Self::Mirrors,
        Self::Peers,
        Self::Logs,
        Self::Expert,
        Self::Limits,
    ];

    /// The heading.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Listen => "Listen",
            Self::Cache => "Cache",
            Self::Access => "Access",
            Self::Https => "HTTPS",
            Self::Mirrors => "Mirrors",
            Self::Peers => "Peers",
            Self::Logs => "Logs",
            Self::Expert => "Expert",
            Self::Limits => "Limits",
        }
    }
}

/// What a setting is when no source gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// A value, the same on every machine: `Values::defaults` has it.
    Value,
    /// It depends on the machine or on other settings; `example` is a value in TOML.
    Words {
        /// The default in words.
        words: &'static str,
        /// A value as TOML writes it.
        example: &'static str,
    },
    /// The setting has no default; `example` is a value in TOML.
    Unset {
        /// A value as TOML writes it.
        example: &'static str,
    },
}

/// The entry of one setting.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name of its key.
    pub key: &'static str,
    /// Where it is listed.
    pub topic: Topic,
    /// What it is, in one line without a full stop.
    pub about: &'static str,
    /// What else there is to know, in sentences; may be empty.
    pub details: &'static str,
    /// Its default.
    pub default: DefaultValue,
}

impl Entry {
    /// The default as it is shown; `None` where the setting has no value by default.
    pub fn default_shown(&self) -> Option<Shown> {
        let shown = (key(self.key).show)(&Values::defaults(1, None));
        (self.default == DefaultValue::Value).then_some(shown)
    }

    /// The line for `--help`, with the default.
    fn help(&self) -> String {
        let default = match (self.default, self.default_shown()) {
            (DefaultValue::Words { words, .. }, _) => words.to_owned(),
            (_, Some(Shown::Text(text))) => text,
            (_, Some(Shown::Number(number))) => number.to_string(),
            (_, Some(Shown::List(list))) if !list.is_empty() => list.join(", "),
            // `false` is what a flag that is not given means.
            _ => return self.about.to_owned(),
        };
        format!("{} [default: {default}]", self.about)
    }
}

fn key(name: &str) -> &'static Key {
    let key = KEYS.iter().find(|key| key.name == name);
    key.expect("the test below finds every entry among the keys")
}

/// The help of the flag for the key called `name`.
pub fn help(name: &str) -> String {
    let entry = ENTRIES.iter().find(|entry| entry.key == name);
    entry
        .expect("the test below finds every key among the entries")
        .help()
}

const fn entry(
    key: &'static str,
    topic: Topic,
    default: DefaultValue,
    about: &'static str,
    details: &'static str,
) -> Entry {
    Entry {
        key,
        topic,
        about,
        details,
        default,
    }
}

const fn limit(key: &'static str, about: &'static str, details: &'static str) -> Entry {
    entry(key, Topic::Limits, DefaultValue::Value, about, details)
}

/// All entries: topics in the order of the documents, everyday settings first.
pub static ENTRIES: &[Entry] = &[
    entry(
        "listen",
        Topic::Listen,
        DefaultValue::Value,
        "Address and port for clients; repeat it for several",
        "A scheme in front chooses the protocol: http://ADDRESS is HTTP/1.1, https://ADDRESS is \
         TLS with HTTP/1.1 and, in front of a site, HTTP/2, h2c://ADDRESS is HTTP/1.1 or HTTP/2 \
         with prior knowledge, without TLS. An address alone is http; in front of a site with \
         `tls_cert` it is https. redirect://ADDRESS and tproxy://ADDRESS take connections to other \
         servers that netfilter sends here by REDIRECT or TPROXY: those to port 443 are TLS, all \
         others HTTP.",
    ),
    entry(
        "accelerate",
        Topic::Listen,
        DefaultValue::Unset {
            example: "\"http://127.0.0.1:8000\"",
        },
        "Run in front of this site (reverse proxy), not as a forward proxy",
        "The origin of the site: http or https, without a path. Every address in `listen` then \
         serves this site. For several sites or origins, and for rules, write `[[site]]` \
         tables.",
    ),
    entry(
        "accelerate_host",
        Topic::Listen,
        DefaultValue::Words {
            words: "any",
            example: "[\"www.example.org\"]",
        },
        "Host name of the site; requests for other hosts get status 421",
        "Names without ports. The origin then gets the Host field of the client, and responses \
         are stored by the URL that the client used. Without names the origin gets its own Host, \
         and all hosts are one site.",
    ),
    entry(
        "admin",
        Topic::Listen,
        DefaultValue::Value,
        "Address for dashboard, metrics and health checks, or `none`",
        "Must not be reachable by clients.",
    ),
    entry(
        "public_url",
        Topic::Listen,
        DefaultValue::Unset {
            example: "\"http://cache.lan:3128\"",
        },
        "URL by which clients reach this proxy, if their requests do not show it",
        "Needed behind a forwarded port, behind a TLS terminator, or if the proxy has a name of \
         its own. Mirrors, /proxy.pac and `hashcache env` use it in their links.",
    ),
    entry(
        "fail",
        Topic::Listen,
        DefaultValue::Value,
        "What browsers with /proxy.pac do if the proxy is down: connect directly (open) or fail \
         (closed)",
        "",
    ),
    entry(
        "pac_proxies",
        Topic::Listen,
        DefaultValue::Unset {
            example: "[\"http://cache-a.lan:3128\", \"http://cache-b.lan:3128\"]",
        },
        "Proxies among which /proxy.pac chooses by a hash of the host",
        "Each proxy then stores other sites. If one does not answer, browsers use the next one for \
         its hosts. Give every proxy of the list the same list.",
    ),
    entry(
        "cache",
        Topic::Cache,
        DefaultValue::Words {
            words: "~/.cache/hashcache/cache.img, or below /var/cache for root",
            example: "[\"/var/cache/hashcache/cache.img\"]",
        },
        "Cache file or block device; repeat it for several disks",
        "Up to 16. Each object is stored on one of them. Adding or removing a device moves only \
         the objects of that device.",
    ),
    entry(
        "cache_size",
        Topic::Cache,
        DefaultValue::Value,
        "Size of each cache file",
        "The space is allocated when the cache is made. A block device is always used whole. An \
         existing cache keeps its size unless this is set: with the policies log and log-lru a \
         larger size makes the cache grow and keeps its content. A smaller size is an error, and \
         so is any other size with the other policies.",
    ),
    entry(
        "memory",
        Topic::Cache,
        DefaultValue::Value,
        "Memory for the index, hot objects, pending writes and connections",
        "The process takes 15 to 20 MiB more for its code and threads. If the index does not \
         fit, the proxy does not start and prints the smallest value that works.",
    ),
    entry(
        "max_object_size",
        Topic::Cache,
        DefaultValue::Words {
            words: "an eighth of the cache",
            example: "\"128MiB\"",
        },
        "Largest object to store; larger ones pass through",
        "With several devices, the smallest device counts.",
    ),
    entry(
        "policy",
        Topic::Cache,
        DefaultValue::Value,
        "How to place and index objects; `hashcache plan` recommends one",
        "log: a circular log, all of its index in memory. log-lru: the same, half of the index \
         on disk. set-mem: a table of sets with a small index. set-mem-lru: the same, index only \
         for the sets used last. set: a table of sets without an index, one disk read per lookup. \
         basic: a table with one place per object, for comparison. A cache made with set, set-mem \
         or set-mem-lru can be opened with the other two; log and log-lru likewise.",
    ),
    entry(
        "allow_client",
        Topic::Access,
        DefaultValue::Words {
            words: "this machine and private networks",
            example: "[\"198.51.100.0/24\"]",
        },
        "Also serve clients of this network",
        "Clients of this machine, of private networks and of the networks of its own interfaces \
         are served too. It applies where no `[[access]]` rule matches.",
    ),
    entry(
        "proxy_protocol_from",
        Topic::Access,
        DefaultValue::Unset {
            example: "[\"192.0.2.10\"]",
        },
        "Network of load balancers that tell the client's address by the PROXY protocol",
        "Versions 1 and 2. Every connection from such an address has to begin with the header. \
         Rights, limits and the log are about the client that it names.",
    ),
    entry(
        "proxy_protocol_to",
        Topic::Access,
        DefaultValue::Unset {
            example: "[\"http://10.0.0.5:8080\"]",
        },
        "Server of a site, or peer, that is told the client's address by the PROXY protocol",
        "The URL as in `accelerate`, `origins` or `parent`. Version 2. Such a connection carries \
         one request, because it tells one client.",
    ),
    entry(
        "allow_purge",
        Topic::Access,
        DefaultValue::Words {
            words: "this machine; none in front of a site",
            example: "[\"127.0.0.0/8\", \"192.0.2.0/24\"]",
        },
        "Network whose clients may send PURGE",
        "Replaces the default: include 127.0.0.0/8 if this machine should purge too.",
    ),
    entry(
        "admin_token_file",
        Topic::Access,
        DefaultValue::Unset {
            example: "\"/etc/hashcache/token\"",
        },
        "File with the token for `hashcache purge`, `list`, `offline` and `explain`",
        "At least 16 bytes, not readable by other users. Without it the admin address changes \
         nothing, and other machines can neither see the dashboard nor use `explain`. The file is \
         read for each request.",
    ),
    entry(
        "allow_port",
        Topic::Access,
        DefaultValue::Value,
        "Port or range of ports that clients may request pages from",
        "Replaces the default, which is Squid's Safe_ports. Does not apply to CONNECT, to the \
         accelerated site and to mirrors.",
    ),
    entry(
        "gateways",
        Topic::Access,
        DefaultValue::Unset {
            example: "[\"ftp\", \"gopher\"]",
        },
        "Also fetch URLs of these schemes for clients: ftp, gopher",
        "The server is asked at the scheme's own port, FTP also at one from 1024 on that \
         allow_port has, Gopher at one that allow_port has by itself, not in a range. \
         Nothing is uploaded.",
    ),
    entry(
        "allow_connect_port",
        Topic::Access,
        DefaultValue::Value,
        "Port or range of ports that clients may CONNECT to",
        "Replaces the default.",
    ),
    entry(
        "allow_destination",
        Topic::Access,
        DefaultValue::Words {
            words: "public addresses only",
            example: "[\"10.20.0.0/16\", \"school.example@10.0.0.1\"]",
        },
        "Also allow origins in this private network, or by the names of this domain",
        "Private and local addresses are refused by default, and so are addresses that contain \
         one: 6to4 relays, Teredo, SIIT and NAT64. DOMAIN@ADDRESS allows private addresses to the \
         names of a domain of yours, such as school.example@10.0.0.1; they are then looked up at \
         that name server alone, so that no other name can lead into your network.",
    ),
    entry(
        "deny_destination",
        Topic::Access,
        DefaultValue::Value,
        "Refuse origins in this network",
        "Wins over `allow_destination`.",
    ),
    entry(
        "htpasswd",
        Topic::Access,
        DefaultValue::Unset {
            example: "[\"/etc/hashcache/users\"]",
        },
        "File with users and the bcrypt hashes of their passwords, as `htpasswd -B` makes it",
        "A login (Basic) is asked for where an access rule needs the user: over https:// \
         listeners, and without TLS in login_networks only. The proxy reads the file at the start \
         and at a reload. Passwords are not stored and never sent on.",
    ),
    entry(
        "login_realm",
        Topic::Access,
        DefaultValue::Value,
        "Name of this proxy where it asks for a login",
        "",
    ),
    entry(
        "login_networks",
        Topic::Access,
        DefaultValue::Value,
        "Networks in which passwords may be sent without TLS: others can read them there",
        "Replaces the default. Elsewhere clients without TLS are never asked: rules that deny \
         something to certain users then deny it, and other rules for users do not match.",
    ),
    entry(
        "contact",
        Topic::Access,
        DefaultValue::Unset {
            example: "\"Ms Abara, room 12\"",
        },
        "Person to ask about access rules",
        "A page that refuses a request names the rule, its reason and this person.",
    ),
    entry(
        "tls_cert",
        Topic::Https,
        DefaultValue::Unset {
            example: "[\"/etc/hashcache/site.pem\"]",
        },
        "Certificate of the site, or of a forward proxy’s https:// addresses, with its chain (PEM)",
        "With several, the first that has the name the client asks for is used, otherwise the \
         first. A reload reads the files again.",
    ),
    entry(
        "tls_key",
        Topic::Https,
        DefaultValue::Unset {
            example: "[\"/etc/hashcache/site.key\"]",
        },
        "Private key for `tls_cert` (PEM); with several, in the same order",
        "",
    ),
    entry(
        "upstream_ca",
        Topic::Https,
        DefaultValue::Words {
            words: "those of the system",
            example: "[\"/etc/hashcache/company-ca.pem\"]",
        },
        "File with additional CA certificates for https origins (PEM)",
        "A reload reads the files again, and those of the system too.",
    ),
    entry(
        "intercept.ca",
        Topic::Https,
        DefaultValue::Unset {
            example: "\"/etc/hashcache/ca\"",
        },
        "CA directory (see `hashcache ca init`): cache HTTPS of the hosts you list",
        "TLS is decrypted only for the hosts in `intercept.hosts` and `intercept.lists`. All \
         other connections stay tunnels.",
    ),
    entry(
        "intercept.hosts",
        Topic::Https,
        DefaultValue::Value,
        "Host to intercept; `*.example.org` is every host below example.org",
        "Host names only: no addresses and no top-level domains.",
    ),
    entry(
        "intercept.lists",
        Topic::Https,
        DefaultValue::Value,
        "Shipped list of hosts to intercept: `cacheable` has public downloads and Wikimedia",
        "Package registries are not in it: list yours in `intercept.hosts` or use a mirror.",
    ),
    entry(
        "intercept.never",
        Topic::Https,
        DefaultValue::Value,
        "Hosts never to intercept",
        "In addition to the shipped list of banks, health, government, mail and login services. \
         Wins over `intercept.hosts` and `intercept.lists`.",
    ),
    entry(
        "intercept.despite_never",
        Topic::Https,
        DefaultValue::Value,
        "Hosts to intercept although the shipped list excludes them",
        "",
    ),
    entry(
        "mirror",
        Topic::Mirrors,
        DefaultValue::Unset {
            example: "[\"npm=https://registry.example/\"]",
        },
        "Mirror a package registry at /mirror/NAME/; KIND is pypi, npm, crates or apt",
        "URL is the registry's base URL; after it, separated by spaces, the other places that \
         its index links files from. NAME is the kind unless given. A [[mirror]] table says the \
         same.",
    ),
    entry(
        "parent",
        Topic::Peers,
        DefaultValue::Unset {
            example: "[\"http://cache.isp.example:3128\"]",
        },
        "Fetch through this proxy (parent); `env` means those in http_proxy and https_proxy",
        "http:// or https:// (TLS to the parent) with host and port. http resources are requested \
         by their whole URL, https resources through a tunnel (CONNECT). A parent that needs a \
         password, or another one than the first, needs a `[[peer]]`. `env` reads the variables \
         http_proxy, https_proxy, all_proxy and no_proxy at the start and at a reload, as curl \
         does, except that a proxy without a port has the port of its scheme.",
    ),
    entry(
        "parent_pin",
        Topic::Peers,
        DefaultValue::Unset {
            example: "\"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"",
        },
        "Pin of the parent's key: use the parent only by a link, one encrypted connection",
        "The URL of the one `parent` is then https:// with the port of its link_listen. \
         `hashcache link pin` prints the pin on the parent. Nothing is sent to a parent with \
         another key. https resources go through tunnels; a `[[peer]]` with `https = \"fetch\"` \
         lets the parent fetch and store those of intercepted hosts and mirrors too, which its \
         operator can then read.",
    ),
    entry(
        "link_listen",
        Topic::Peers,
        DefaultValue::Value,
        "Address where other HashCache proxies (children) connect by a link, or `none`",
        "Only the children in link_children are served; they need no allow_client. A child's \
         tunnels may use the ports of allow_connect_port and of allow_port. Needs the key that \
         `hashcache link init` makes.",
    ),
    entry(
        "link_children",
        Topic::Peers,
        DefaultValue::Value,
        "Pins of the keys of children, as `hashcache link pin` prints them there",
        "A reload applies changes. All requests of one child count as those of one client.",
    ),
    entry(
        "link_forward",
        Topic::Peers,
        DefaultValue::Value,
        "Ports of this box whose connections the parent makes, each byte sent once",
        "PORT=HOST:PORT, on loopback; ADDRESS:PORT=HOST:PORT accepts there whoever may use the \
         proxy: private networks, those of this box, and allow_client. Any TCP goes over the link \
         to a parent with a pin as new data and references to data that both boxes have stored; \
         encrypted data gains nothing. The parent must allow the \
         destination: allow_connect_port or allow_port, and allow_destination for a private \
         address. `hashcache wan --forward` does this alone, without a proxy.",
    ),
    entry(
        "link_hints",
        Topic::Peers,
        DefaultValue::Value,
        "Fetch the objects that a parent with a pin names as parts of a page",
        "The parent names what was asked for with that page before. It saves a round trip per \
         level of a page, and takes bytes of the line where a browser has the object already.",
    ),
    entry(
        "link_dir",
        Topic::Peers,
        DefaultValue::Unset {
            example: "\"/etc/hashcache/link\"",
        },
        "Directory of this proxy's key for links (see `hashcache link init`)",
        "Unless given: hashcache/link in ~/.config, or in /etc for root.",
    ),
    entry(
        "direct",
        Topic::Peers,
        DefaultValue::Value,
        "Fetch from origins directly: allow (if no peer answers), prefer or never",
        "With prefer, peers are asked only if the origin cannot be reached. With never, nothing \
         leaves except through peers. It applies where no `[[route]]` does.",
    ),
    entry(
        "peer_choice",
        Topic::Peers,
        DefaultValue::Value,
        "Which of several parents is asked first: first, round-robin, rendezvous, carp or fastest",
        "first: in the order given. rendezvous and carp give each URL one parent by a hash, so \
         that each parent stores other URLs; carp computes it as the Cache Array Routing Protocol \
         does. fastest: the shortest time of connecting. Parents that do not answer are asked \
         last, until they answer again.",
    ),
    entry(
        "icp",
        Topic::Peers,
        DefaultValue::Value,
        "UDP port or address where this proxy speaks ICP with its peers, or `none`",
        "Queries are sent from it and answered at it; 3130 is customary. A port alone means all \
         IPv4 addresses of this machine. It is opened only if a `[[peer]]` has an ICP port, and \
         only the addresses of those peers are answered.",
    ),
    entry(
        "htcp",
        Topic::Peers,
        DefaultValue::Value,
        "UDP port or address where this proxy speaks HTCP with its peers, or `none`",
        "As icp, for peers with an HTCP port; 4827 is customary. With a key of a peer it must be \
         the address that the peer sees, because signatures cover it.",
    ),
    entry(
        "summary_threshold",
        Topic::Peers,
        DefaultValue::Value,
        "New objects that make an update for peers worth sending, in percent of all: 0.1% to 10%",
        "Peers with `summary = true` get an update within a quarter of a second when so many \
         objects are new; when fewer are new, or no peer asks for anything, after a minute. With a \
         larger value, fewer updates are sent and peers find fewer objects here.",
    ),
    entry(
        "access_log",
        Topic::Logs,
        DefaultValue::Value,
        "Access log: a file, `-` for standard output, or `none`",
        "",
    ),
    entry(
        "log_format",
        Topic::Logs,
        DefaultValue::Value,
        "Format of the access log",
        "squid is Squid's native format, combined that of Apache and nginx, json one object per \
         line.",
    ),
    entry(
        "log_strip_query",
        Topic::Logs,
        DefaultValue::Value,
        "Leave query strings out of the access log",
        "",
    ),
    entry(
        "log_anonymize",
        Topic::Logs,
        DefaultValue::Value,
        "Log the network of a client (/24, /48) instead of its address",
        "Users are left out too. The same holds for the history and the dashboard.",
    ),
    entry(
        "name",
        Topic::Expert,
        DefaultValue::Value,
        "Name of this proxy in Via, Cache-Status and Proxy-Status",
        "With the default name, eight random digits are added in Via, so that two proxies in a \
         row are not taken for a loop. Among members it says which box this is.",
    ),
    entry(
        "workers",
        Topic::Expert,
        DefaultValue::Words {
            words: "one per processor",
            example: "4",
        },
        "Threads that serve clients",
        "",
    ),
    entry(
        "collapse_wait",
        Topic::Expert,
        DefaultValue::Value,
        "Longest wait for a running fetch of the same URL: satellite, lan or a time",
        "satellite: as long as the first byte may take (`limits.first_byte_time`). lan: twice \
         what the origin usually takes, from 200 ms to 5 s. After that the request is sent \
         upstream by itself.",
    ),
    entry(
        "set_cookie",
        Topic::Expert,
        DefaultValue::Value,
        "Responses that set a cookie: store only if marked public (protect), or like others (rfc)",
        "protect stores such a response if the origin says `public` or `s-maxage`, or if a \
         freshness rule of yours gives it a lifetime.",
    ),
    entry(
        "harmless_fields",
        Topic::Expert,
        DefaultValue::Value,
        "Request fields by which no origin recognises a client, beside the built-in list",
        "A response gets a lifetime from a rule or a guess only if its request has no other \
         fields. Name here what programs of your network add to their requests.",
    ),
    entry(
        "client_reload",
        Topic::Expert,
        DefaultValue::Value,
        "Reload by a client: `validate` at the origin, or a time such as \"10s\"",
        "With a time, a reload (no-cache, max-age=0) is ignored for a response that was fetched \
         or validated within that time. For metered links.",
    ),
    entry(
        "default_rules",
        Topic::Expert,
        DefaultValue::Value,
        "Use the freshness rules that ship with the program",
        "They list files whose names contain a version or a digest, such as packages. Such a \
         file is fresh for a year.",
    ),
    entry(
        "negative_lifetime",
        Topic::Expert,
        DefaultValue::Value,
        "Freshness lifetime of 404 and 410 responses that state none",
        "",
    ),
    entry(
        "adaptive_lifetime",
        Topic::Expert,
        DefaultValue::Value,
        "Double the heuristic lifetime each time a response is validated unchanged",
        "Applies where the origin states no lifetime; from one minute up to one day.",
    ),
    entry(
        "offline",
        Topic::Expert,
        DefaultValue::Value,
        "Whether the line to the Internet counts as down: off, on or auto",
        "While it does, nothing is sent to the Internet. Stored responses are served, also stale \
         ones where that is allowed; other requests get an error page at once. auto: it counts as \
         down while sites that were reached before cannot be reached. \
         `hashcache offline` changes it in a running proxy.",
    ),
    entry(
        "unreachable_lifetime",
        Topic::Expert,
        DefaultValue::Value,
        "How long an origin that cannot be reached is not tried again",
        "Meanwhile requests get a stale response if one may be served, otherwise an error at \
         once. The time doubles with each failure, up to 5 minutes. 0 always tries again.",
    ),
    entry(
        "object_size",
        Topic::Expert,
        DefaultValue::Value,
        "Mean object size, which sizes the index of log and log-lru, and the Disk Table of others",
        "Smaller objects need more index. Used only when the cache is made.",
    ),
    entry(
        "block",
        Topic::Expert,
        DefaultValue::Value,
        "Slot size of set-mem, set-mem-lru, set and basic",
        "A power of two from 2 KiB to 1 MiB. Small slots hold more small objects on a small \
         disk, but no names of more than 1,636 bytes (2 KiB) or 3,684 bytes (4 KiB). Used only \
         when the cache is made.",
    ),
    entry(
        "held_share",
        Topic::Expert,
        DefaultValue::Words {
            words: "50 with log-lru, 40 with set-mem-lru",
            example: "50",
        },
        "Percentage of the index that is held in memory with log-lru and set-mem-lru",
        "May change from one start to the next.",
    ),
    entry(
        "rows",
        Topic::Expert,
        DefaultValue::Value,
        "Index rows that may hold a name, with log; the paper has one",
        "one takes 38 bits per slot on 1 TB and finds 86 % of a full log; two takes 39 bits and \
         finds 95 %.",
    ),
    entry(
        "grouped",
        Topic::Expert,
        DefaultValue::Value,
        "Write and read the objects of a web page together (log, log-lru): for hard disks",
        "Takes 8 more bits per slot with log and 4 with log-lru.",
    ),
    entry(
        "group_by",
        Topic::Expert,
        DefaultValue::Value,
        "What `grouped` keeps together: the objects of one page, or of one origin",
        "page uses the Referer field, so it needs clients that send it. origin works for all \
         clients, and is the only choice in front of a site.",
    ),
    entry(
        "placement",
        Topic::Expert,
        DefaultValue::Value,
        "What chooses the disk of an object, of several: its name, or its host",
        "host is for a forward proxy with `grouped`: a page then takes one read instead of one on \
         each disk. Not in front of a site, whose host would fill one disk. Mirrors stay by name. \
         A change empties the cache.",
    ),
    entry(
        "readmission",
        Topic::Expert,
        DefaultValue::Value,
        "Keep objects that are in use when the log overwrites its oldest part (log, log-lru)",
        "A few more hits, up to a third more writes, 3 more bits per slot with log.",
    ),
    entry(
        "io",
        Topic::Expert,
        DefaultValue::Value,
        "How to read the disk: threads, uring, or auto (io_uring if the kernel allows it)",
        "With uring, the proxy does not start where io_uring is refused.",
    ),
    entry(
        "nat64_prefix",
        Topic::Expert,
        DefaultValue::Value,
        "Prefix of a NAT64 of this network: its addresses are checked as IPv4 addresses",
        "64:ff9b::/96 is built in.",
    ),
    limit(
        "limits.clients",
        "Connections from all clients",
        "At most a quarter of the files that the process may open.",
    ),
    limit(
        "limits.clients_per_address",
        "Connections from one client",
        "A client is an IPv4 address or an IPv6 /64 network.",
    ),
    limit(
        "limits.client_share",
        "Percentage of memory and of upstream connections that one client may take",
        "Set it to 100 behind a load balancer and where many people share one address.",
    ),
    limit(
        "limits.streams",
        "Concurrent requests on one HTTP/2 connection",
        "",
    ),
    limit(
        "limits.frames",
        "HTTP/2 frames that request nothing (PING, SETTINGS, RST_STREAM) in a burst",
        "A sixteenth of it is granted again each second, and one frame for each KiB sent to the \
         client. Also applies to origins.",
    ),
    limit("limits.head_bytes", "Size of a request head", ""),
    limit("limits.head_fields", "Fields in a request head", ""),
    limit("limits.target_bytes", "Size of a request target", ""),
    limit(
        "limits.chunk_extension_bytes",
        "Size of the extensions of one chunk",
        "",
    ),
    limit(
        "limits.head_time",
        "Time for a request head to arrive, after its first byte",
        "",
    ),
    limit(
        "limits.idle_time",
        "Idle time of a client connection between requests",
        "",
    ),
    limit(
        "limits.progress_time",
        "Time without progress while a request is read or a response is sent",
        "",
    ),
    limit(
        "limits.connect_time",
        "Time to connect to an origin, over all its addresses",
        "",
    ),
    limit(
        "limits.first_byte_time",
        "Time from a request to the first byte of the origin's response",
        "",
    ),
    limit(
        "limits.peer_first_byte_time",
        "Time for the first byte of a peer's response while another next hop is left",
        "All peers of a request together get this time. A peer that answers nothing at all is \
         found out earlier, by a probe after 2 s. Raise it if fetches through a parent take long \
         and are not to be repeated directly.",
    ),
    limit(
        "limits.between_bytes_time",
        "Time between bytes of an origin's response",
        "",
    ),
    limit(
        "limits.upstream_per_origin",
        "Busy connections to one origin",
        "",
    ),
    limit("limits.upstream", "Busy connections to all origins", ""),
    limit(
        "limits.upstream_idle_time",
        "How long an idle connection to an origin is kept",
        "",
    ),
    limit("limits.dns_time", "Time for a name lookup", ""),
    limit(
        "limits.tunnel_idle_time",
        "Idle time of a tunnel, both directions",
        "",
    ),
    limit(
        "limits.drain_time",
        "Time for open requests to finish when the proxy stops",
        "",
    ),
    limit(
        "limits.read_ahead",
        "How far a fetch may run ahead of its fastest client",
        "",
    ),
];

/// What a `[[rule]]` is for.
pub const RULE_ABOUT: &str = "\
A freshness rule says how long the responses of certain URLs stay fresh. The first rule that \
matches a URL decides; yours come before the shipped ones. An origin's no-store, private and \
no-cache win over every rule. A rule needs path and exactly one of lifetime, heuristic and \
immutable.";

/// The fields of a `[[rule]]`.
pub const RULE_FIELDS: [(&str, &str); 5] = [
    (
        "path",
        "Pattern of the URL's path, or a list of patterns: `*` stays within a segment, `**` \
         crosses segments, `<hex:40>` is 40 hexadecimal digits. A pattern begins with /.",
    ),
    (
        "host",
        "Pattern of the host, or a list of patterns. Without it, the rule is for every host.",
    ),
    (
        "lifetime",
        "Freshness lifetime of responses for which the origin states none (no max-age, s-maxage \
         or Expires), such as \"5m\". It does not depend on Last-Modified. It also says that these \
         responses are public: they are stored even if they set a cookie.",
    ),
    (
        "heuristic",
        "A guess where the origin states no lifetime: `percent` of the time since Last-Modified, \
         at most `max`. Without a rule the guess is 10 percent, at most 1d. There is no guess, so \
         each use is validated, without Last-Modified, for a URL with a query, for a response that \
         sets a cookie and for a request with Authorization.",
    ),
    (
        "immutable",
        "true: the content of such a URL never changes. It stays fresh for a year, even if the \
         origin states a shorter lifetime (other than 0), and a reload does not fetch it again. It \
         is public, as with lifetime.",
    ),
];

/// What an `[[access]]` is for.
pub const ACCESS_ABOUT: &str = "\
An access rule allows or denies requests to a forward proxy. The first rule that matches a \
request decides; a rule matches when all its conditions hold. Where none matches, clients of this \
machine, of private networks, of the networks of its own interfaces and of allow_client are \
served, and no others. Rules do not change which ports and addresses can be reached (allow_port, \
allow_connect_port, allow_destination). [networks] gives names to networks: pupils = \
[\"10.1.0.0/16\"]. A reload applies changes to the next request of every client.";

/// The fields of an `[[access]]`.
pub const ACCESS_FIELDS: [(&str, &str); 12] = [
    (
        "name",
        "Name on the page that refused people see; without it, the number of the rule.",
    ),
    (
        "action",
        "allow: served. deny: status 403, with a page that names the rule, the reason and the \
         contact. tunnel: served, and CONNECT is never intercepted. no-cache: served, but neither \
         looked up nor stored. limit: served, within the limits of the rule.",
    ),
    (
        "clients",
        "Networks, names of networks, local (the clients that are served where no rule matches) or \
         all. Without it, a rule with deny is for all clients, and any other rule for local ones: \
         only a rule that names more clients opens the proxy to them.",
    ),
    (
        "users",
        "Names of users. The client is asked for a login (status 407) when everything else of the \
         rule matches. For requests inside an intercepted connection, the CONNECT is asked.",
    ),
    (
        "groups",
        "Names of `[[group]]` tables, one of which has the user.",
    ),
    (
        "destinations",
        "Hosts: example.org is one host, .example.org that host and every host below it. An \
         address or a network matches URLs that name an address, or an IPv6 address that embeds it \
         (NAT64); for the addresses of names there is deny_destination. A mirror's destination is \
         its registry.",
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
        "Methods in capitals. CONNECT asks for a tunnel; requests inside an intercepted one have \
         methods of their own, and each is decided again. Not every tunnel can be intercepted: \
         deny what nobody may reach for CONNECT too, by a rule without methods.",
    ),
    (
        "times",
        "Times of the week, in the time zone of the system (/etc/localtime): \"Mon-Fri \
         08:00-15:30\", \"Sat,Sun\", \"22:00-06:00\". The variable TZ is not read. What has begun \
         is not interrupted.",
    ),
    (
        "limits",
        "Names of `[[limit]]` tables, all of which hold for the requests; with the actions limit, \
         tunnel and no-cache.",
    ),
    (
        "reason",
        "Why the rule refuses, for the person who is refused.",
    ),
];

/// What a `[[group]]` is for.
pub const GROUP_ABOUT: &str = "\
A group of users, for the condition groups of access rules.";

/// The fields of a `[[group]]`.
pub const GROUP_FIELDS: [(&str, &str); 2] = [
    ("name", "Name in rules."),
    ("users", "Names of users, as in the file of htpasswd."),
];

/// What a `[[limit]]` is for.
pub const LIMIT_ABOUT: &str = "\
A limit for the requests of access rules that name it in limits. Two rules that name one limit \
share it. What was used is kept over restarts, in a file beside the cache. http://proxy/quota, \
asked through the proxy, shows a person what is left.";

/// The fields of a `[[limit]]`.
pub const LIMIT_FIELDS: [(&str, &str); 9] = [
    ("name", "Name in rules and on pages."),
    (
        "per",
        "client, the default: each IPv4 address or IPv6 /64 has a limit of its own. user: each \
         user has; a client whose user is not known counts as a client. all: all have one \
         together.",
    ),
    (
        "quota",
        "Bytes from origins; what is stored already is free.",
    ),
    (
        "every",
        "How long the quota lasts, in the time zone of the system: day, week (from Monday) or \
         month.",
    ),
    (
        "used_up",
        "refuse, the default: when the quota is used up, what needs an origin gets status 429, and \
         transfers and tunnels end. A size instead is the bytes per second that remain for content \
         from origins.",
    ),
    (
        "bandwidth",
        "Bytes of content to clients per second, from the cache too. What is shared is shared \
         equally among the clients that want it.",
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
];

/// What a `[[list]]` is for.
pub const LIST_ABOUT: &str = "\
A list of hosts in files, for the condition lists of access rules. A name takes 11 bytes of \
memory. The files are read at the start, and again when they have changed: at a reload, or within \
a minute. A list that cannot be read any more stays as it was. Lines that are no entries are \
counted and logged.";

/// The fields of a `[[list]]`.
pub const LIST_FIELDS: [(&str, &str); 3] = [
    ("name", "Name in rules."),
    ("files", "Its files; together they are the list."),
    (
        "format",
        "hosts: as /etc/hosts; each name stands for itself. domains: one domain a line, which \
         stands for all hosts below it too. dstdomain: as Squid reads it, .example.org with all \
         hosts below, example.org for itself. auto, the default: a line with an address in front \
         as hosts, any other as domains.",
    ),
];

/// What a `[[site]]` is for.
pub const SITE_ABOUT: &str = "\
A site that the proxy stands in front of (reverse proxy). Every address in listen then serves the \
sites of the file, and no other hosts: they get status 421. A host belongs to one site. Responses \
are stored by the URL that the client used. Origins get X-Forwarded-For, X-Forwarded-Proto, \
X-Forwarded-Host and Forwarded. A reload takes changes of sites over.";

/// The fields of a `[[site]]`.
pub const SITE_FIELDS: [(&str, &str); 18] = [
    (
        "hosts",
        "Names of the site, without ports. The first one is its name in logs.",
    ),
    (
        "origins",
        "URLs of the servers that have its content, without paths. A table such as \
         { url = \"http://10.0.0.6\", weight = 2 } gives an origin a larger share.",
    ),
    (
        "host",
        "The Host field that origins get: \"client\" (the client's, the default), \"origin\" \
         (that of the origin's URL), or a name.",
    ),
    (
        "balance",
        "How requests are spread: \"round-robin\" (the default), \"least-busy\", \"hash\" \
         (always the same origin for a URL) or \"first\" (the first one that works). An origin \
         that fails 3 times in a row (no connection, no response in time, status 502 to 504) gets \
         no requests for 10s, then 20s, up to 1m, unless it takes connections and has answered \
         others within 2s. Never more than half of the origins are left out in this way. A GET, \
         HEAD or OPTIONS without content that fails before its response begins is sent to another \
         origin, for at most a fifth of the requests.",
    ),
    (
        "health",
        "Checks of each origin: `path` is requested every `interval` (5s) and must answer with \
         `status` (200) within `timeout` (2s). An origin is left out after 3 failed checks, until \
         2 are good.",
    ),
    (
        "redirect_to_https",
        "true: plain requests get a redirect to https (308), except below \
         /.well-known/acme-challenge/.",
    ),
    (
        "trust_forwarded",
        "Networks of proxies in front of this one, whose Forwarded and X-Forwarded fields are \
         believed. From other clients these fields are dropped. A proxy in these networks must \
         set or remove X-Forwarded-For.",
    ),
    (
        "front_keeps_logins",
        "true: the proxies of trust_forwarded send the requests of one client only on a \
         connection on which that client has logged in (NTLM, Negotiate), as HAProxy and Squid \
         do. Without this no such login succeeds through them.",
    ),
    (
        "pass_fields",
        "Fields of clients that reach the origins although they speak for the client, such as \
         X-HTTP-Method-Override, X-Original-URL or X-Client-IP. Without this such fields are \
         dropped, unless a proxy of trust_forwarded sent them. Forwarded and X-Forwarded-For, \
         -Proto and -Host are always written anew.",
    ),
    (
        "lifetime",
        "Freshness lifetimes by path; the first entry that matches decides. path: a pattern or a \
         list, as in a rule; without it, every path. default: the lifetime of a response with \
         status 200, 203, 204, 206, 300, 301 or 308 for which the origin states none. It is for \
         requests without cookies, unless ignore_cookies = true, and never for responses that set \
         a cookie. max: the longest lifetime, whatever the origin states. private, no-store and \
         no-cache win.",
    ),
    (
        "stale_if_error",
        "How long after its lifetime a response may be served while the origins answer with \
         errors, if the origin says nothing about that.",
    ),
    (
        "stale_while_revalidate",
        "How long after its lifetime a response may be served at once while a new one is fetched, \
         if the origin says nothing about that.",
    ),
    (
        "key",
        "What selects a stored response besides the URL. drop_query: patterns of parameters that \
         are removed, also for the origin. sort_query: true sorts the parameters by name. cookies \
         and headers: names whose values are part of the key.",
    ),
    (
        "bypass_cookie",
        "Patterns of cookies, such as \"session*\". A request with such a cookie is answered by \
         the origin, and the response is not stored.",
    ),
    (
        "request_headers",
        "Changes of the fields that origins get: remove (a list), set and add (tables of names \
         and values), in this order. Fields of the connection and of framing cannot be changed.",
    ),
    (
        "response_headers",
        "The same for the fields that clients get. Responses are stored as the origin sent them.",
    ),
    (
        "compress",
        "Content codings for text of 1KiB and more: \"br\", \"gzip\". Origins are then asked for \
         content without a coding; it is stored once, and encoded for clients that accept it.",
    ),
    (
        "error_page",
        "File with an HTML page, up to 64KiB, for browsers, in place of the proxy's own error \
         pages.",
    ),
];

/// What a `[[mirror]]` is for.
pub const MIRROR_ABOUT: &str = "\
A mirror of a package registry, at the path /mirror/NAME/ of the proxy. It is the table form of \
the key mirror; a file has one or the other.";

/// The fields of a `[[mirror]]`.
pub const MIRROR_FIELDS: [(&str, &str); 4] = [
    ("kind", "pypi, npm, crates or apt."),
    (
        "url",
        "Base URL of the registry, as its own clients use it.",
    ),
    (
        "files",
        "For pypi and crates: the places, as URLs of hosts or of paths on them, that the index \
         links files from. The registry's own host counts only if it is listed.",
    ),
    ("name", "Name in the path; the kind unless given."),
];

/// What a `[[peer]]` is for.
pub const PEER_ABOUT: &str = "\
Another cache through which this proxy fetches. All parents are asked for everything, in the order \
of the file, unless a route says otherwise. Siblings are asked for what they have stored. Members \
are the boxes of one site: each URL has one owner among them, which stores it. You trust every \
peer not to forge what it sends.";

/// The fields of a `[[peer]]`.
pub const PEER_FIELDS: [(&str, &str); 16] = [
    ("name", "Name in logs and routes."),
    (
        "kind",
        "parent: it is asked for every resource, and fetches what it does not have. sibling: it \
         is asked only for what it has stored, as its cache digest, ICP or HTCP tells. member: a \
         box of the same site. Every box has the same list of members, itself included, and knows \
         itself by the key name. It asks the owner of a URL, and keeps the response in memory for \
         ten seconds.",
    ),
    (
        "url",
        "Where it listens; with https:// the connection to it uses TLS.",
    ),
    (
        "credentials_file",
        "File with one line `user:password` for Basic authentication. Only its owner and its \
         group may read it. A reload reads it again.",
    ),
    (
        "pin",
        "The pin of a parent's key: it is used by a link alone, as with parent_pin.",
    ),
    (
        "https",
        "How https resources are fetched: tunnel (CONNECT; the default) or fetch (the peer is \
         asked for the whole https:// URL, is the client of the origin's TLS, and can store the \
         response).",
    ),
    (
        "plain_https",
        "true: allow fetch over a connection without TLS, which others may read.",
    ),
    (
        "weight",
        "Its share of the requests with round-robin, rendezvous and carp, and of the URLs among \
         members, from 1 to 1000; 1 unless given.",
    ),
    (
        "icp",
        "Its UDP port for ICP, usually 3130; the key icp must be set too. A sibling needs it, or \
         htcp, or a digest.",
    ),
    (
        "htcp",
        "Its UDP port for HTCP, usually 4827; the key htcp must be set too. Queries carry Accept, \
         Accept-Encoding and Accept-Language. A peer with both ports is asked by HTCP.",
    ),
    (
        "htcp_key_file",
        "File with one line `name:secret`, the same at the peer. HTCP messages are then signed \
         (HMAC-MD5), and those without its signature are refused. Only its owner and its group \
         may read it. A reload reads it again. Squid does not sign.",
    ),
    (
        "clear",
        "true: obey its HTCP CLR, by which it removes a URL from this cache, 100 a second. Squid \
         sends CLR unasked, after each POST and reload. false unless given.",
    ),
    (
        "send_clear",
        "true: it gets an HTCP CLR for each http URL that the method PURGE removes here. false \
         unless given.",
    ),
    (
        "digest",
        "true, for a sibling: fetch its cache digest, as Squid's siblings do, and serve it that of \
         this proxy. It is then asked for what its digest has, without queries. Needs the policy \
         log or log-lru, and 10 to 16 bits of memory for each stored object.",
    ),
    (
        "summary",
        "true, for a sibling that is a HashCache too: as digest, and each sends the other what is \
         new by UDP, to the ICP port of the peer, so `icp` must be set. Both sides need `summary`.",
    ),
    (
        "misses",
        "false: its own requests get only what is stored here, else status 504, so that a sibling \
         does not use this proxy as a parent. true unless given.",
    ),
];

/// What a `[[route]]` is for.
pub const ROUTE_ABOUT: &str = "\
A route says through which peers certain resources are fetched. The first route that matches a \
resource decides; the keys direct and peer_choice apply where none does. Addresses that clients \
may not reach (allow_destination) are refused whatever the route.";

/// The fields of a `[[route]]`.
pub const ROUTE_FIELDS: [(&str, &str); 6] = [
    (
        "host",
        "Host name, `*.` with a domain, address or network, or a list of them. Without it, the \
         route is for every host.",
    ),
    (
        "port",
        "List of ports and ranges of ports. Without it, the route is for every port.",
    ),
    (
        "scheme",
        "http, https, ftp or gopher; a tunnel counts as https. Without it, the route is for all. \
         Peers are asked for ftp and gopher URLs only by a route with that scheme, or with direct \
         = \"never\".",
    ),
    (
        "peers",
        "Names of the peers that may be asked, in this order; [] means none. Without it, all.",
    ),
    (
        "direct",
        "As the key direct, whose value is used without it; with an empty list of peers: allow.",
    ),
    (
        "choice",
        "As the key peer_choice, whose value is used without it.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_entry_and_every_entry_a_key() {
        let mut entries: Vec<&str> = ENTRIES.iter().map(|entry| entry.key).collect();
        let mut keys: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        entries.sort_unstable();
        keys.sort_unstable();
        assert_eq!(entries, keys);
    }

    #[test]
    fn topics_stand_together_and_in_order() {
        let topics: Vec<Topic> = ENTRIES.iter().map(|entry| entry.topic).collect();
        let mut runs = topics.clone();
        runs.dedup();
        assert_eq!(runs, Topic::ALL);
    }

    #[test]
    fn the_help_says_the_default() {
        assert!(help("cache_size").ends_with(" [default: 1GiB]"));
        assert!(help("workers").ends_with(" [default: one per processor]"));
        assert!(!help("accelerate").contains("default"));
        assert!(!help("grouped").contains("default"));
    }

    #[test]
    fn lines_are_phrases_and_details_are_sentences() {
        for entry in ENTRIES {
            let (about, details) = (entry.about, entry.details);
            assert!(about.starts_with(char::is_uppercase), "{about}");
            assert!(!about.ends_with('.'), "{about}");
            assert!(details.is_empty() || details.ends_with('.'), "{details}");
        }
    }
}
