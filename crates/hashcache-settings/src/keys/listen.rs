//! The proxy's addresses and roles.

use super::choices::FAIL;
use super::types::{ADDRESS_OR_NONE, HOST, LISTEN, ORIGIN, PROXY_URL};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Listen",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    many!("listen", startup.listen, LISTEN)
        .flag()
        .default("127.0.0.1:3128")
        .about("Address and port for clients; repeat it for several")
        .details(
            "A scheme in front chooses the protocol: http://ADDRESS is HTTP/1.1, https://ADDRESS \
             is TLS with HTTP/1.1 and, in front of a site, HTTP/2, h2c://ADDRESS is HTTP/1.1 or \
             HTTP/2 with prior knowledge, without TLS. An address alone is http; in front of a \
             site with `tls_cert` it is https. redirect://ADDRESS and tproxy://ADDRESS take \
             connections to other servers that netfilter sends here by REDIRECT or TPROXY: those \
             to port 443 are TLS, all others HTTP.",
        ),
    optional!("accelerate", accelerate, ORIGIN)
        .flag()
        .example("\"http://127.0.0.1:8000\"")
        .about("Run in front of this site (reverse proxy), not as a forward proxy")
        .details(
            "The origin of the site: http or https, without a path. Every address in `listen` \
             then serves this site. For several sites or origins, and for rules, write `[[site]]` \
             tables. To become a reverse proxy, or a forward proxy again, takes a restart.",
        ),
    many!("accelerate_host", accelerate_host, HOST)
        .flag()
        .usually("any", "[\"www.example.org\"]")
        .about("Host name of the site; requests for other hosts get status 421")
        .details(
            "Names without ports. The origin then gets the Host field of the client, and \
             responses are stored by the URL that the client used. Without names the origin gets \
             its own Host, and all hosts are one site.",
        ),
    one!("admin", startup.admin, ADDRESS_OR_NONE)
        .flag()
        .default("127.0.0.1:3180")
        .about("Address for dashboard, metrics and health checks, or `none`")
        .details("Must not be reachable by clients."),
    optional!("public_url", reloadable.public_url, PROXY_URL)
        .flag()
        .example("\"http://cache.lan:3128\"")
        .about("URL by which clients reach this proxy, if their requests do not show it")
        .details(
            "Needed behind a forwarded port, behind a TLS terminator, or if the proxy has a name \
             of its own. Mirrors, /proxy.pac and `hashcache env` use it in their links.",
        ),
    one!("fail", reloadable.fail, FAIL)
        .flag()
        .default("open")
        .about(
            "What browsers with /proxy.pac do if the proxy is down: connect directly (open) or \
             fail (closed)",
        ),
    many!("pac_proxies", reloadable.pac_proxies, PROXY_URL)
        .flag()
        .example("[\"http://cache-a.lan:3128\", \"http://cache-b.lan:3128\"]")
        .about("Proxies among which /proxy.pac chooses by a hash of the host")
        .details(
            "Each proxy then stores other sites. If one does not answer, browsers use the next \
             one for its hosts. Give every proxy of the list the same list.",
        )
        .page("browsers.md"),
];
