//! Certificates and interception.

use super::choices::HOST_LIST;
use super::types::{DIRECTORY, FILE, HOST_PATTERN};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "HTTPS",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    many!("tls_cert", tls_cert, FILE)
        .flag()
        .without_commas()
        .example("[\"/etc/hashcache/site.pem\"]")
        .about(
            "Certificate of the site, or of a forward proxy’s https:// addresses, with its chain \
             (PEM)",
        )
        .details(
            "With several, the first that has the name the client asks for is used, otherwise the \
             first. A reload reads the files again. The first certificate, and the removal of the \
             last one, take effect at a restart.",
        )
        .page("tls.md"),
    many!("tls_key", tls_key, FILE)
        .flag()
        .without_commas()
        .example("[\"/etc/hashcache/site.key\"]")
        .about("Private key for `tls_cert` (PEM); with several, in the same order")
        .page("tls.md"),
    many!("upstream_ca", reloadable.upstream_ca, FILE)
        .flag()
        .without_commas()
        .usually("those of the system", "[\"/etc/hashcache/company-ca.pem\"]")
        .about("File with additional CA certificates for https origins (PEM)")
        .details("A reload reads the files again, and those of the system too.")
        .page("tls.md"),
    optional!("intercept.ca", intercept_ca, DIRECTORY)
        .flag_named("intercept-ca")
        .example("\"/etc/hashcache/ca\"")
        .about("CA directory (see `hashcache ca init`): cache HTTPS of the hosts you list")
        .details(
            "TLS is decrypted only for the hosts in `intercept.hosts` and `intercept.lists`. All \
             other connections stay tunnels.",
        )
        .page("https.md#interception"),
    many!("intercept.hosts", intercept.hosts, HOST_PATTERN)
        .flag_named("intercept")
        .about("Host to intercept; `*.example.org` is every host below example.org")
        .details("Host names only: no addresses and no top-level domains.")
        .page("https.md#interception"),
    many!("intercept.lists", intercept.lists, HOST_LIST)
        .flag_named("intercept-list")
        .about("Shipped list of hosts to intercept: `cacheable` has public downloads and Wikimedia")
        .details(
            "Package registries are not in it: list yours in `intercept.hosts` or use a mirror.",
        )
        .page("https.md#interception"),
    many!("intercept.never", intercept.never, HOST_PATTERN)
        .about("Hosts never to intercept")
        .details(
            "In addition to the shipped list of banks, health, government, mail and login \
             services. Wins over `intercept.hosts` and `intercept.lists`.",
        )
        .page("https.md#interception"),
    many!(
        "intercept.despite_never",
        intercept.despite_never,
        HOST_PATTERN
    )
    .about("Hosts to intercept although the shipped list excludes them")
    .page("https.md#interception"),
];
