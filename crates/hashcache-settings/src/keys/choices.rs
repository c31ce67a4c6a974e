//! Settings with a fixed list of words.

use hashcache::{Io, PolicyKind, Rows};
use hashcache_http::{Scheme, SetCookie};
use hashcache_proxy::{Direct, Fail, GroupBy, HostList, LogFormat, Offline, PeerChoice};

use crate::key::{Accepts, Kind, Shown, Type};
use crate::values::PlaceBy;
use crate::words::one_of;

/// The type of a choice, from the words.
macro_rules! choice {
    ($name:ident: $type:ty, $placeholder:literal, $words:expr) => {
        pub const $name: Type<$type> = Type {
            kind: Kind {
                placeholder: $placeholder,
                about: "one of its words",
                accepts: Accepts::Words(|| $words.iter().map(|&(word, _)| word).collect()),
            },
            read: |word| one_of(&$words, word),
            show: |value| {
                let known = $words.iter().find(|(_, known)| known == value);
                known.map_or(Shown::Nothing, |(word, _)| Shown::Text((*word).to_owned()))
            },
        };
    };
}

choice!(POLICY: PolicyKind, "NAME", [
    ("log", PolicyKind::Log),
    ("log-lru", PolicyKind::LogLru),
    ("set-mem", PolicyKind::SetMem),
    ("set-mem-lru", PolicyKind::SetMemLru),
    ("set", PolicyKind::Set),
    ("basic", PolicyKind::Basic),
]);
choice!(ROWS: Rows, "COUNT", [("two", Rows::Two), ("one", Rows::One)]);
choice!(GROUP_BY: GroupBy, "WHAT", [("page", GroupBy::Page), ("origin", GroupBy::Origin)]);
choice!(PLACEMENT: PlaceBy, "WHAT", [("name", PlaceBy::Name), ("host", PlaceBy::Host)]);
choice!(IO: Io, "HOW", [("auto", Io::Auto), ("threads", Io::Threads), ("uring", Io::Uring)]);
choice!(LOG_FORMAT: LogFormat, "FORMAT", [
    ("squid", LogFormat::Squid),
    ("combined", LogFormat::Combined),
    ("json", LogFormat::Json),
]);
choice!(FAIL: Fail, "HOW", [("open", Fail::Open), ("closed", Fail::Closed)]);
choice!(SET_COOKIE: SetCookie, "HOW", [("protect", SetCookie::Protect), ("rfc", SetCookie::Rfc)]);
choice!(GATEWAY: Scheme, "SCHEME", [("ftp", Scheme::Ftp), ("gopher", Scheme::Gopher)]);
choice!(OFFLINE: Offline, "MODE", Offline::WORDS);
choice!(HOST_LIST: HostList, "LIST", HostList::ALL);
choice!(DIRECT: Direct, "WHEN", [
    ("allow", Direct::Allow),
    ("prefer", Direct::Prefer),
    ("never", Direct::Never),
]);
choice!(PEER_CHOICE: PeerChoice, "WHICH", [
    ("first", PeerChoice::First),
    ("round-robin", PeerChoice::RoundRobin),
    ("rendezvous", PeerChoice::Rendezvous),
    ("carp", PeerChoice::Carp),
    ("fastest", PeerChoice::Fastest),
]);
