//! Parents, peers and links.

use super::choices::{DIRECT, PEER_CHOICE};
use super::types::{ADDRESS_OR_NONE, DIRECTORY, FORWARD, PARENT, PIN, THRESHOLD, TRUTH, UDP};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Peers",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    many!("parent", parent, PARENT)
        .flag()
        .without_commas()
        .example("[\"http://cache.isp.example:3128\"]")
        .about("Fetch through this proxy (parent); `env` means those in http_proxy and https_proxy")
        .details(
            "http:// or https:// (TLS to the parent) with host and port. http resources are \
             requested by their whole URL, https resources through a tunnel (CONNECT). A parent \
             that needs a password, or another one than the first, needs a `[[peer]]`. `env` \
             reads the variables http_proxy, https_proxy, all_proxy and no_proxy at the start and \
             at a reload, as curl does, except that a proxy without a port has the port of its \
             scheme.",
        )
        .page("parents.md"),
    optional!("parent_pin", parent_pin, PIN)
        .flag()
        .example("\"sha256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"")
        .about("Pin of the parent's key: use the parent only by a link, one encrypted connection")
        .details(
            "The URL of the one `parent` is then https:// with the port of its link_listen. \
             `hashcache link pin` prints the pin on the parent. Nothing is sent to a parent with \
             another key. https resources go through tunnels; a `[[peer]]` with `https = \
             \"fetch\"` lets the parent fetch and store those of intercepted hosts and mirrors \
             too, which its operator can then read.",
        )
        .page("link.md"),
    one!("link_listen", startup.link_listen, ADDRESS_OR_NONE)
        .flag()
        .about("Address where other HashCache proxies (children) connect by a link, or `none`")
        .details(
            "Only the children in link_children are served; they need no allow_client. A child's \
             tunnels may use the ports of allow_connect_port and of allow_port. Needs the key \
             that `hashcache link init` makes.",
        )
        .page("link.md"),
    many!("link_children", reloadable.link_children, PIN)
        .flag()
        .about("Pins of the keys of children, as `hashcache link pin` prints them there")
        .details(
            "A reload applies changes. All requests of one child count as those of one client.",
        )
        .page("link.md"),
    many!("link_forward", startup.link_forward, FORWARD)
        .flag()
        .about("Ports of this box whose connections the parent makes, each byte sent once")
        .details(
            "PORT=HOST:PORT, on loopback; ADDRESS:PORT=HOST:PORT accepts there whoever may use \
             the proxy: private networks, those of this box, and allow_client. Any TCP goes over \
             the link to a parent with a pin as new data and references to data that both boxes \
             have stored; encrypted data gains nothing. The parent must allow the destination: \
             allow_connect_port or allow_port, and allow_destination for a private address. \
             `hashcache wan --forward` does this alone, without a proxy.",
        )
        .page("link.md"),
    one!("link_hints", reloadable.link_hints, TRUTH)
        .flag()
        .default("true")
        .about("Fetch the objects that a parent with a pin names as parts of a page")
        .details(
            "The parent names what was asked for with that page before. It saves a round trip per \
             level of a page, and takes bytes of the line where a browser has the object already.",
        )
        .page("link.md"),
    optional!("link_dir", reloadable.link_dir, DIRECTORY)
        .flag()
        .example("\"/etc/hashcache/link\"")
        .about("Directory of this proxy's key for links (see `hashcache link init`)")
        .details("Unless given: hashcache/link in ~/.config, or in /etc for root.")
        .page("link.md"),
    one!("direct", direct, DIRECT)
        .flag()
        .default("allow")
        .about("Fetch from origins directly: allow (if no peer answers), prefer or never")
        .details(
            "With prefer, peers are asked only if the origin cannot be reached. With never, \
             nothing leaves except through peers. It applies where no `[[route]]` does.",
        )
        .page("parents.md"),
    one!("peer_choice", peer_choice, PEER_CHOICE)
        .flag()
        .default("first")
        .about(
            "Which of several parents is asked first: first, round-robin, rendezvous, carp or \
             fastest",
        )
        .details(
            "first: in the order given. rendezvous and carp give each URL one parent by a hash, \
             so that each parent stores other URLs; carp computes it as the Cache Array Routing \
             Protocol does. fastest: the shortest time of connecting. Parents that do not answer \
             are asked last, until they answer again.",
        )
        .page("parents.md"),
    one!("icp", reloadable.icp, UDP)
        .flag()
        .about("UDP port or address where this proxy speaks ICP with its peers, or `none`")
        .details(
            "Queries are sent from it and answered at it; 3130 is customary. A port alone means \
             all IPv4 addresses of this machine. It is opened only if a `[[peer]]` has an ICP \
             port, and only the addresses of those peers are answered.",
        )
        .page("neighbours.md"),
    one!("htcp", reloadable.htcp, UDP)
        .flag()
        .about("UDP port or address where this proxy speaks HTCP with its peers, or `none`")
        .details(
            "As icp, for peers with an HTCP port; 4827 is customary. With a key of a peer it must \
             be the address that the peer sees, because signatures cover it.",
        )
        .page("neighbours.md#ask-and-purge-by-htcp"),
    one!("summary_threshold", reloadable.summary_permille, THRESHOLD)
        .flag()
        .default("1%")
        .about(
            "New objects that make an update for peers worth sending, in percent of all: 0.1% to \
             10%",
        )
        .details(
            "Peers with `summary = true` get an update within a quarter of a second when so many \
             objects are new; when fewer are new, or no peer asks for anything, after a minute. \
             With a larger value, fewer updates are sent and peers find fewer objects here.",
        )
        .page("neighbours.md#use-digests-instead-of-queries"),
];
