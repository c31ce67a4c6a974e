//! Access: clients, ports, destinations, logins.

use super::choices::GATEWAY;
use super::types::{CIDR, DESTINATION, FILE, PORT, REALM, SERVER_URL, TEXT};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Access",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    many!("allow_client", reloadable.allow_client, CIDR)
        .flag()
        .usually("this machine and private networks", "[\"198.51.100.0/24\"]")
        .about("Also serve clients of this network")
        .details(
            "Clients of this machine, of private networks and of the networks of its own \
             interfaces are served too. It applies where no `[[access]]` rule matches.",
        )
        .page("access.md"),
    many!("proxy_protocol_from", reloadable.proxy_protocol_from, CIDR)
        .flag()
        .example("[\"192.0.2.10\"]")
        .about("Network of load balancers that tell the client's address by the PROXY protocol")
        .details(
            "Versions 1 and 2. Every connection from such an address has to begin with the header. \
             Rights, limits and the log are about the client that it names.",
        )
        .page("balancer.md"),
    many!(
        "proxy_protocol_to",
        reloadable.proxy_protocol_to,
        SERVER_URL
    )
    .flag()
    .example("[\"http://10.0.0.5:8080\"]")
    .about("Server of a site, or peer, that is told the client's address by the PROXY protocol")
    .details(
        "The URL as in `accelerate`, `origins` or `parent`. Version 2. Such a connection \
             carries one request, because it tells one client.",
    )
    .page("balancer.md"),
    many!("allow_purge", reloadable.allow_purge, CIDR)
        .flag()
        .usually(
            "this machine; none in front of a site",
            "[\"127.0.0.0/8\", \"192.0.2.0/24\"]",
        )
        .about("Network whose clients may send PURGE")
        .details("Replaces the default: include 127.0.0.0/8 if this machine should purge too.")
        .page("purge.md"),
    optional!("admin_token_file", startup.admin_token_file, FILE)
        .flag()
        .example("\"/etc/hashcache/token\"")
        .about("File with the token for `hashcache purge`, `list`, `offline` and `explain`")
        .details(
            "At least 16 bytes, not readable by other users. The Debian package makes one. Without \
             it the admin address changes nothing, and other machines can neither see the \
             dashboard nor use `explain`. The file is read for each request.",
        ),
    many!("allow_port", reloadable.allow_port, PORT)
        .flag()
        .default(SAFE_PORTS)
        .about("Port or range of ports that clients may request pages from")
        .details(
            "Replaces the default, which is Squid's Safe_ports. Does not apply to CONNECT, to the \
             accelerated site and to mirrors.",
        ),
    many!("gateways", reloadable.gateways, GATEWAY)
        .flag()
        .example("[\"ftp\", \"gopher\"]")
        .about("Also fetch URLs of these schemes for clients: ftp, gopher")
        .details(
            "The server is asked at the scheme's own port, FTP also at one from 1024 on that \
             allow_port has, Gopher at one that allow_port has by itself, not in a range. Nothing \
             is uploaded.",
        )
        .page("gateways.md"),
    many!("allow_connect_port", reloadable.allow_connect_port, PORT)
        .flag()
        .default("443")
        .about("Port or range of ports that clients may CONNECT to")
        .details("Replaces the default."),
    many!(
        "allow_destination",
        reloadable.allow_destination,
        DESTINATION
    )
    .flag()
    .usually(
        "public addresses only",
        "[\"10.20.0.0/16\", \"school.example@10.0.0.1\"]",
    )
    .about("Also allow origins in this private network, or by the names of this domain")
    .details(
        "Private and local addresses are refused by default, and so are addresses that contain \
             one: 6to4 relays, Teredo, SIIT and NAT64. DOMAIN@ADDRESS allows private addresses to \
             the names of a domain of yours, such as school.example@10.0.0.1; they are then looked \
             up at that name server alone, so that no other name can lead into your network.",
    ),
    many!("deny_destination", reloadable.deny_destination, CIDR)
        .flag()
        .about("Refuse origins in this network")
        .details("Wins over `allow_destination`."),
    many!("htpasswd", reloadable.htpasswd, FILE)
        .example("[\"/etc/hashcache/users\"]")
        .about(
            "File with users and the bcrypt hashes of their passwords, as `htpasswd -B` makes it",
        )
        .details(
            "A login (Basic) is asked for where an access rule needs the user: over https:// \
             listeners, and without TLS in login_networks only. The proxy reads the file at the \
             start and at a reload. Passwords are not stored and never sent on.",
        )
        .page("access.md"),
    one!("login_realm", reloadable.login_realm, REALM)
        .default("HashCache proxy")
        .about("Name of this proxy where it asks for a login")
        .page("access.md"),
    many!("login_networks", reloadable.login_networks, CIDR)
        .default("127.0.0.0/8, ::1/128")
        .about("Networks in which passwords may be sent without TLS: others can read them there")
        .details(
            "Replaces the default. Elsewhere clients without TLS are never asked: rules that deny \
             something to certain users then deny it, and other rules for users do not match.",
        )
        .page("access.md"),
    optional!("contact", contact, TEXT)
        .example("\"Ms Abara, room 12\"")
        .about("Person to ask about access rules")
        .details("A page that refuses a request names the rule, its reason and this person.")
        .page("access.md"),
];

/// Squid's Safe_ports: http, https, ftp, gopher, wais, http-mgmt, gss-http, FileMaker, multiling
/// http, and all unregistered ports. A client cannot make the proxy connect to a mail server.
const SAFE_PORTS: &str = "80, 443, 21, 70, 210, 280, 488, 591, 777, 1024-65535";
