//! Settings that few installations need.

use super::choices::{GROUP_BY, IO, OFFLINE, PLACEMENT, ROWS, SET_COOKIE};
use super::types::{
    BLOCK, CLIENT_RELOAD, COLLAPSE_WAIT, FIELD, NAME, NAT64, OBJECT_SIZE, PERCENT, SECONDS, TIME,
    TRUTH, WORKERS,
};
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Expert",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    one!("name", startup.name, NAME)
        .flag()
        .default("hashcache")
        .about("Name of this proxy in Via, Cache-Status and Proxy-Status")
        .details(
            "With the default name, eight random digits are added in Via and Proxy-Status, so that \
             two proxies in a row are not taken for a loop, and an error names the box that made \
             it. Among members it says which box this is.",
        ),
    one!("workers", startup.workers, WORKERS)
        .flag()
        .usually("one per processor", "4")
        .about("Threads that serve clients"),
    one!("collapse_wait", reloadable.collapse_wait, COLLAPSE_WAIT)
        .flag()
        .default("satellite")
        .about("Longest wait for a running fetch of the same URL: satellite, lan or a time")
        .details(
            "satellite: as long as the first byte may take (`limits.first_byte_time`). lan: twice \
             what the origin usually takes, from 200 ms to 5 s. After that the request is sent \
             upstream by itself.",
        )
        .page("responses.md#many-clients-one-page"),
    one!("set_cookie", reloadable.set_cookie, SET_COOKIE)
        .flag()
        .default("protect")
        .about(
            "Responses that set a cookie: store only if marked public (protect), or like others \
             (rfc)",
        )
        .details(
            "protect stores such a response if the origin says `public` or `s-maxage`, or if a \
             freshness rule of yours gives it a lifetime.",
        )
        .page("responses.md#responses-for-one-client"),
    many!("harmless_fields", reloadable.harmless_fields, FIELD)
        .flag()
        .about("Request fields by which no origin recognises a client, beside the built-in list")
        .details(
            "A response gets a lifetime from a rule or a guess only if its request has no other \
             fields, and is not stored if its request has an `X-` field that is named like an \
             override (`X-Source-URL`). Name here what programs of your network add to their \
             requests.",
        )
        .page("responses.md#responses-for-one-client"),
    one!("client_reload", reloadable.client_reload, CLIENT_RELOAD)
        .default("validate")
        .about("Reload by a client: `validate` at the origin, or a time such as \"10s\"")
        .details(
            "With a time, a reload (no-cache, max-age=0) is ignored for a response that was \
             fetched or validated within that time. For metered links.",
        ),
    one!("default_rules", default_rules, TRUTH)
        .off_by(
            "no_default_rules",
            "Do not use the freshness rules that ship with the program",
        )
        .default("true")
        .about("Use the freshness rules that ship with the program")
        .details(
            "They list files whose names contain a version or a digest, such as packages. Such a \
             file is fresh for a year.",
        )
        .page("freshness.md"),
    one!("negative_lifetime", reloadable.negative_lifetime, SECONDS)
        .default("1m")
        .about("Freshness lifetime of 404 and 410 responses that state none")
        .page("responses.md#responses-for-one-client"),
    one!("adaptive_lifetime", reloadable.adaptive_lifetime, TRUTH)
        .about("Double the heuristic lifetime each time a response is validated unchanged")
        .details("Applies where the origin states no lifetime; from one minute up to one day.")
        .page("freshness.md"),
    one!("offline", reloadable.offline, OFFLINE)
        .flag()
        .default("off")
        .about("Whether the line to the Internet counts as down: off, on or auto")
        .details(
            "While it does, nothing is sent to the Internet. Stored responses are served, also \
             stale ones where that is allowed; other requests get an error page at once. auto: it \
             counts as down while sites that were reached before cannot be reached. `hashcache \
             offline` changes it in a running proxy.",
        )
        .page("offline.md"),
    one!(
        "unreachable_lifetime",
        reloadable.unreachable_lifetime,
        TIME
    )
    .default("10s")
    .about("How long an origin that cannot be reached is not tried again")
    .details(
        "Meanwhile requests get a stale response if one may be served, otherwise an error at \
             once. The time doubles with each failure, up to 5 minutes. 0 always tries again.",
    )
    .page("settings.md"),
    one!("object_size", engine.object_size, OBJECT_SIZE)
        .flag()
        .default("8KiB")
        .about(
            "Mean object size, which sizes the index of log and log-lru, and the Disk Table of \
             others",
        )
        .details("Smaller objects need more index. Used only when the cache is made."),
    one!("block", engine.block, BLOCK)
        .flag()
        .default("8KiB")
        .about("Slot size of set-mem, set-mem-lru, set and basic")
        .details(
            "A power of two from 2 KiB to 1 MiB. Small slots hold more small objects on a small \
             disk, but no names of more than 1,636 bytes (2 KiB) or 3,684 bytes (4 KiB). On a disk \
             with sectors of 4 KiB it is at least 4 KiB. Used only when the cache is made.",
        ),
    optional!("held_share", engine.held_share, PERCENT)
        .flag()
        .usually("50 with log-lru, 40 with set-mem-lru", "50")
        .about("Percentage of the index that is held in memory with log-lru and set-mem-lru")
        .details("log-lru rounds it to steps of an eighth. May change from one start to the next."),
    one!("rows", engine.rows, ROWS)
        .flag()
        .default("two")
        .about("Index rows that may hold a name, with log; the paper has one")
        .details(
            "one takes 38 bits per slot on 1 TB and finds 86 % of a full log; two takes 39 bits \
             and finds 95 %.",
        ),
    one!("grouped", engine.grouped, TRUTH)
        .flag()
        .about("Write and read the objects of a web page together (log, log-lru): for hard disks")
        .details("Takes 8 more bits per slot with log and 4 with log-lru.")
        .page("disk-and-memory.md"),
    one!("group_by", engine.group_by, GROUP_BY)
        .flag()
        .default("page")
        .about("What `grouped` keeps together: the objects of one page, or of one origin")
        .details(
            "page uses the Referer field, so it needs clients that send it. origin works for all \
             clients, and is the only choice in front of a site.",
        ),
    one!("placement", engine.placement, PLACEMENT)
        .flag()
        .default("name")
        .about("What chooses the disk of an object, of several: its name, or its host")
        .details(
            "host is for a forward proxy with `grouped`: a page then takes one read instead of one \
             on each disk. Not in front of a site, whose host would fill one disk. Mirrors stay by \
             name. A change empties the cache.",
        ),
    one!("readmission", engine.readmission, TRUTH)
        .flag()
        .about(
            "Keep objects that are in use when the log overwrites its oldest part (log, log-lru)",
        )
        .details("A few more hits, up to a third more writes, 3 more bits per slot with log."),
    one!("io", engine.io, IO)
        .flag()
        .default("auto")
        .about("How to read the disk: threads, uring, or auto (io_uring if the kernel allows it)")
        .details("With uring, the proxy does not start where io_uring is refused.")
        .page("settings.md"),
    many!("nat64_prefix", reloadable.nat64_prefix, NAT64)
        .flag()
        .about("Prefix of a NAT64 of this network: its addresses are checked as IPv4 addresses")
        .details("64:ff9b::/96 is built in."),
];
