//! The figures of HashCache: the engine's policies on modelled disks, beside models of Squid and
//! Tiger, and what indexes take. We have the text of the paper but not the cells of its tables, so
//! each number of it here is from a sentence.
//!
//! - `arithmetic`: what needs no run (`hashcache plan`).
//! - `one_disk`: replays (`hashcache sim replay`). `several_disks`: `hashcache bench engine`.

mod arithmetic;
mod one_disk;
mod several_disks;

use super::figure::{Figure, Paper};

pub fn figures() -> Vec<Figure> {
    let figure = |id, place, title, finding, draw| Figure {
        id,
        paper: Paper::HashCache,
        place,
        title,
        finding,
        draw,
    };
    vec![
        figure(
            "hashcache-table-7",
            "Table 7",
            "what the analysis expects of one SATA disk",
            "The table has \"analytical lower bounds\" of each policy, whose cells we lack. \
             Measured were 45 requests/s with Basic and Set, 75 with SetMem and 275 with Log.",
            arithmetic::table_7,
        ),
        figure(
            "hashcache-figure-3",
            "Figure 3",
            "requests/s of one disk at the low end",
            "Basic and Set serve 45 requests/s, Squid 60, SetMem 75, Tiger 250 and Log with \
             prefetching 275. Tiger is slower than Log because its larger index leaves less memory \
             to hot objects.",
            one_disk::figure_3,
        ),
        figure(
            "hashcache-figure-4",
            "Figure 4",
            "SetMem and SetMemLRU on two disks",
            "SetMem serves 160 requests/s on two disks, slightly more than twice as many as on \
             one, which also has the access log. SetMemLRU with 30 and 40 % of the sets in memory \
             performs \"reasonably well\" with less memory.",
            several_disks::figure_4,
        ),
        figure(
            "hashcache-figure-5",
            "Figure 5",
            "memory at the low end",
            "The disk is the bottleneck in all cases, with nearly 100 % utilisation. With a third \
             of the storage, Squid still takes more memory than HashCache in its fastest \
             configuration, and the slow configurations \"barely register\".",
            arithmetic::figure_5,
        ),
        figure(
            "hashcache-figure-6",
            "Figure 6",
            "hit ratios at the low end",
            "Almost all configurations achieve the offered hit ratios, 60 % of the objects and 40 \
             % of the bytes. Basic does not, because of hash collisions.",
            one_disk::figure_6,
        ),
        figure(
            "hashcache-table-8",
            "Table 8",
            "requests/s of five disks at the high end",
            "On five SCSI disks of 90 to 95 seeks/s Log and Tiger serve 2,200 to 2,300 requests/s, \
             440 per disk, where the analysis expects at least 320 per disk. Squid serves 400, \
             because the load of its disks is uneven.",
            several_disks::table_8,
        ),
        figure(
            "hashcache-figure-7",
            "Figure 7",
            "memory at the high end",
            "Log takes just enough of the 3.5 GB for hot objects, buffers and the index and leaves \
             about 65 % unused. Squid's disks are unevenly busy.",
            arithmetic::figure_7,
        ),
        figure(
            "hashcache-figure-8",
            "Figure 8",
            "the disk that 2 GB of memory can index",
            "Basic and Set have no practical limit. 2 GB suffice for the index of 2 TB with Log \
             and LogLRU, but not for that of one drive of 1 TB with Squid or Tiger.",
            arithmetic::figure_8,
        ),
        figure(
            "hashcache-table-9",
            "Table 9",
            "requests/s of one and two disks of 1 TB",
            "On two USB disks of 67 to 70 seeks/s Log and LogLRU (six of eight positions in \
             memory) serve 600 requests/s, and on one disk half of that. The analysis expects 250 \
             per disk.",
            several_disks::table_9,
        ),
        figure(
            "hashcache-figure-9",
            "Figure 9",
            "memory of 1 TB and 2 TB",
            "With 2 TB, Log takes slightly more than 60 % of 2 GB of memory and LogLRU slightly \
             less; with 1 TB correspondingly less. SetMem takes less than 10 %.",
            arithmetic::figure_9,
        ),
    ]
}
