//! Which campaigns are the parts, and with which arguments, in each form.

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Full,
    Quick,
    Short,
}

impl Form {
    /// The parts that it has. The short form leaves out those that are other arguments of a
    /// campaign that it has.
    pub fn parts(self) -> Vec<Part> {
        let is_other = |part: &Part| matches!(part, Part::Mix | Part::Polymix);
        let all = Part::ALL.into_iter();
        all.filter(|part| self != Self::Short || !is_other(part))
            .collect()
    }

    /// Its word in files and on the page.
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Quick => "quick",
            Self::Short => "short",
        }
    }
}

/// A measurement of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Processor time and requests/s of hits in memory, hits on disk and misses
    Hits,
    /// The same of a page mix larger than memory
    Mix,
    /// Polymix-4 on the disk of this machine
    Polymix,
    /// Pages and Polymix-4 on a slow disk
    SlowDisk,
    /// Start after a kill
    Restart,
    /// Memory of the index
    IndexMemory,
}

impl Part {
    pub const ALL: [Self; 6] = [
        Self::Hits,
        Self::Mix,
        Self::Polymix,
        Self::SlowDisk,
        Self::Restart,
        Self::IndexMemory,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hits => "hits",
            Self::Mix => "mix",
            Self::Polymix => "polymix",
            Self::SlowDisk => "slow-disk",
            Self::Restart => "restart",
            Self::IndexMemory => "index-memory",
        }
    }

    /// The words of its campaign.
    pub fn words(self, form: Form) -> Vec<&'static str> {
        let all: &[&[&str]] = match (self, form) {
            // Room for the objects, and the same again for the program and the page cache.
            (Self::Hits, Form::Full) => &[&["cpu", "--only", HITS, "--group-memory", "1024"]],
            (Self::Hits, Form::Quick) => &[
                &["cpu", "--only", HITS, "--group-memory", "1024"],
                THREE_ROUNDS,
            ],
            (Self::Hits, Form::Short) => &[
                &["cpu", "--only", ONE_HIT, "--group-memory", "1024"],
                ONE_ROUND,
            ],
            // Less than the objects have: the rest comes from the disk.
            (Self::Mix, Form::Full) => &[&["cpu", "--only", MIX, "--group-memory", "256"]],
            (Self::Mix, Form::Quick) => &[
                &["cpu", "--only", MIX, "--group-memory", "256"],
                THREE_ROUNDS,
            ],
            (Self::Mix, Form::Short) => {
                &[&["cpu", "--only", MIX, "--group-memory", "256"], ONE_ROUND]
            }
            (Self::Polymix, Form::Full) => &[POLYMIX, FULL_DISK],
            (Self::Polymix, _) => &[POLYMIX, SMALL_DISK],
            (Self::SlowDisk, Form::Full) => &[SLOW_DISK, FULL_DISK],
            (Self::SlowDisk, Form::Quick) => &[SLOW_DISK, SMALL_DISK],
            (Self::SlowDisk, Form::Short) => &[ONE_OF_EACH_ON_SLOW_DISK, TINY_DISK],
            (Self::Restart, Form::Full) => &[&["restart"]],
            (Self::Restart, Form::Quick) => &[
                &["restart", "--objects", "5000", "--runs", "1"],
                &["--pause", "2", "--settle", "5"],
            ],
            (Self::Restart, Form::Short) => &[
                &["restart", "--objects", "300", "--runs", "1"],
                &["--pause", "1", "--directory-pause", "1", "--settle", "1"],
                &["--sample", "100"],
                ONE_OF_EACH,
            ],
            (Self::IndexMemory, Form::Full) => &[&["index-memory"]],
            (Self::IndexMemory, Form::Quick) => &[
                &["index-memory", "--few", "5000", "--many", "30000"],
                &["--runs", "1", "--fill-rate", "20000", "--settle", "2"],
            ],
            (Self::IndexMemory, Form::Short) => &[
                &["index-memory", "--few", "100", "--many", "500"],
                &["--runs", "1", "--settle", "1"],
                ONE_OF_EACH,
            ],
        };
        all.concat()
    }
}

/// Loads of `cpu` without a log and without TLS.
const HITS: &str = " B, no log";
const ONE_HIT: &str = "memory, 8192 B, no log";
const MIX: &str = "mix, 59 % again, no log";
const THREE_ROUNDS: &[&str] = &["--rounds", "3", "--seconds", "1"];
const ONE_ROUND: &[&str] = &["--rounds", "1", "--seconds", "1"];
const POLYMIX: &[&str] = &["slow-disk", "--only", "Polymix", "--operations", "0"];
const SLOW_DISK: &[&str] = &["slow-disk", "--only", "private", "--only", "Polymix"];
/// A working set three times the memory.
const FULL_DISK: &[&str] = &["--working-set", "3", "--seconds", "10"];
const SMALL_DISK: &[&str] = &[
    "--memory",
    "96",
    "--working-set",
    "2",
    "--fill-rate",
    "4000",
    "--rounds",
    "1",
    "--seconds",
    "3",
];
const TINY_DISK: &[&str] = &[
    "--memory",
    "96",
    "--working-set",
    "1",
    "--fill-rate",
    "4000",
    "--rounds",
    "1",
    "--seconds",
    "1",
];
/// One form of each program.
const ONE_OF_EACH: &[&str] = &[
    "--only", "grouped", "--only", "aufs", "--only", "nginx", "--only", "Traffic", "--only",
    "Varnish",
];
const ONE_OF_EACH_ON_SLOW_DISK: &[&str] = &[
    "slow-disk",
    "--only",
    "private pages: hashcache, log grouped",
    "--only",
    "private pages: Squid, aufs",
    "--only",
    "private pages: nginx",
    "--only",
    "private pages: Traffic Server",
    "--only",
    "private pages: Varnish",
];
