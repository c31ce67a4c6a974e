//! Measures text at rest: the pages of files, against `gzip -6`.
//!
//!     cargo run --release -p hashcache-wan --example at_rest -- PATH… [--ext EXTENSION]…
//!
//! For all files below the paths (with `--ext`, those with one of the extensions) that are at
//! least 1 KiB long it prints: bytes of content; of pages with their tables and of `gzip -6`, in
//! percent of it; pages by gzip; the processor time of packing and unpacking. Every page is
//! unpacked again and compared. The program `gzip` must be there.
#![expect(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "it measures time, and files that fit into memory"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hashcache_wan::pages::{PAGE_BYTES, Packer, Unpacker};

/// The sums over files of some size.
#[derive(Default)]
struct Sum {
    files: usize,
    content: usize,
    pages: usize,
    gzip: usize,
    packing: Duration,
    unpacking: Duration,
}

impl Sum {
    fn print(&self, name: &str) {
        let megabytes = self.content as f64 / 1e6;
        println!(
            "{name:>10}: {} files, {megabytes:.1} MB; pages {:.1} %, gzip -6 {:.1} %, ratio {:.3}; \
             pack {:.2} ms/MB, unpack {:.2} ms/MB",
            self.files,
            self.pages as f64 * 100.0 / self.content as f64,
            self.gzip as f64 * 100.0 / self.content as f64,
            self.pages as f64 / self.gzip as f64,
            self.packing.as_secs_f64() * 1e3 / megabytes,
            self.unpacking.as_secs_f64() * 1e3 / megabytes,
        );
    }
}

fn main() {
    let (mut paths, mut extensions) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--ext" => extensions.extend(arguments.next()),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    let mut files = Vec::new();
    paths.iter().for_each(|path| find(path, &mut files));
    let is_meant = |path: &PathBuf| {
        let extension = path.extension().and_then(|it| it.to_str()).unwrap_or("");
        extensions.is_empty() || extensions.iter().any(|it| it == extension)
    };
    let limits = [
        ("< 16 KiB", 16 << 10),
        ("< 64 KiB", PAGE_BYTES),
        ("< 1 MiB", 1 << 20),
    ];
    let mut sums: Vec<Sum> = (0..=limits.len()).map(|_| Sum::default()).collect();
    let mut packer = Packer::new().expect("memory for zstd");
    let mut unpacker = Unpacker::new().expect("memory for zstd");
    for path in files.iter().filter(|path| is_meant(path)) {
        let content = std::fs::read(path).expect("a file that can be read");
        if content.len() < 1024 {
            continue;
        }
        let at = limits.iter().position(|(_, limit)| content.len() < *limit);
        let sum = &mut sums[at.unwrap_or(limits.len())];
        measure(sum, &content, &mut packer, &mut unpacker);
    }
    let names = limits.iter().map(|(name, _)| *name).chain(["longer"]);
    let mut all = Sum::default();
    for (name, sum) in names.zip(&sums).filter(|(_, sum)| sum.files > 0) {
        sum.print(name);
        all.files += sum.files;
        all.content += sum.content;
        all.pages += sum.pages;
        all.gzip += sum.gzip;
        all.packing += sum.packing;
        all.unpacking += sum.unpacking;
    }
    if all.files == 0 {
        eprintln!("usage: at_rest PATH… [--ext EXTENSION]…");
        std::process::exit(2);
    }
    all.print("all");
}

fn measure(sum: &mut Sum, content: &[u8], packer: &mut Packer, unpacker: &mut Unpacker) {
    sum.files += 1;
    sum.content += content.len();
    sum.gzip += gzip(content);
    // The length of the content.
    sum.pages += 8;
    let mut stored = Vec::new();
    for page in content.chunks(PAGE_BYTES) {
        let since = Instant::now();
        packer.pack(page, &mut stored).expect("memory for zstd");
        sum.packing += since.elapsed();
        sum.pages += stored.len() + 3;
        let since = Instant::now();
        let back = unpacker.unpack(&stored, page.len());
        sum.unpacking += since.elapsed();
        assert!(back.as_deref() == Some(page));
    }
}

/// Bytes of `gzip -6`.
fn gzip(content: &[u8]) -> usize {
    let mut gzip = Command::new("gzip")
        .arg("-6c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip is installed");
    let mut input = gzip.stdin.take().expect("a pipe");
    let content = content.to_vec();
    let writing = std::thread::spawn(move || input.write_all(&content).expect("gzip reads"));
    let output = gzip.wait_with_output().expect("gzip ends");
    writing.join().expect("it does not panic");
    output.stdout.len()
}

fn find(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        files.push(path.to_owned());
        return;
    };
    for entry in entries.flatten() {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link {
            find(&entry.path(), files);
        }
    }
}
