//! The cache: devices, size, memory, policy.

use super::choices::POLICY;
use super::types::{PATH, SIZE};
use crate::key::{Applies, Form, Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Cache",
    keys: KEYS,
};

static KEYS: &[Key] = &[
    many!("cache", engine.cache, PATH)
        .flag()
        .without_commas()
        .usually(
            "~/.cache/hashcache/cache.img, or below /var/cache for root",
            "[\"/var/cache/hashcache/cache.img\"]",
        )
        .about("Cache file or block device; repeat it for several disks")
        .details(
            "Up to 16. Each object is stored on one of them. Adding or removing a device moves \
             only the objects of that device.",
        )
        .page("disks.md"),
    one!("cache_size", engine.cache_size, SIZE)
        .flag()
        .default("1GiB")
        .about("Size of each cache file")
        .details(
            "The space is allocated when the cache is made. A block device is always used whole. \
             An existing cache keeps its size unless this is set: with the policies log and \
             log-lru a larger size makes the cache grow and keeps its content. A smaller size is \
             an error, and so is any other size with the other policies.",
        )
        .page("disks.md#upgrade-grow-add-a-disk"),
    one!("memory", engine.memory, SIZE)
        .flag()
        .default("64MiB")
        .about("Memory for the index, hot objects, pending writes and connections")
        .details(
            "If the process has other memory too, hot objects leave room for it, up to a quarter \
             of this. The code of the program takes up to 20 MiB more. If the index does not fit, \
             the proxy does not start and prints the smallest value that works.",
        )
        .page("disk-and-memory.md#limit-memory"),
    Key::new(
        "max_object_size",
        SIZE.kind,
        Applies::AtReload,
        Form::One(|values, word| {
            values.max_object_size = Some((SIZE.read)(word)?);
            Ok(())
        }),
        |values| (SIZE.show)(&values.max_object_size()),
    )
    .flag()
    .usually("a quarter of the cache", "\"256MiB\"")
    .about("Largest object to store; larger ones pass through")
    .details(
        "Content of unknown length is stored until it becomes larger, and then passes through. \
         With several devices, the smallest device counts. The log names the first object that is \
         larger; the dashboard and metrics count them.",
    ),
    one!("policy", engine.policy, POLICY)
        .flag()
        .default("log")
        .about("How to place and index objects; `hashcache plan` recommends one")
        .details(
            "log: a circular log, all of its index in memory. log-lru: the same, half of the \
             index on disk. set-mem: a table of sets with a small index. set-mem-lru: the same, \
             index only for the sets used last. set: a table of sets without an index, one disk \
             read per lookup. basic: a table with one place per object, for comparison. A cache \
             made with set, set-mem or set-mem-lru can be opened with the other two; log and \
             log-lru likewise.",
        ),
];
