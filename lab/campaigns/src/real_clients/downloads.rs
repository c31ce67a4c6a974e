//! curl and wget against origins with known content: whole, in ranges, resumed, conditional.
//!
//! Each row fetches and compares every byte; rows that say "from the cache" also check the requests
//! that reached the origin.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use hashcache_testkit::ContentOrigin;
use hashcache_testkit::content::{self, Content};

use super::Bench;
use super::tool::{Tool, is_installed};
use crate::report::show_bytes;

/// Tries both tools.
pub async fn run(bench: &mut Bench<'_>, origin: &ContentOrigin) -> anyhow::Result<()> {
    let directory = bench.empty("downloads")?;
    for program in ["curl", "wget"] {
        if !is_installed(program) {
            bench.report.skip(program, "not installed");
            continue;
        }
        let mut trial = Trial {
            bench,
            origin,
            directory: &directory,
            program,
        };
        trial.whole().await;
        trial.resumed().await;
        trial.heads().await;
        if program == "curl" {
            trial.stored_ranges().await;
            trial.new_range().await;
            trial.interrupted().await;
            trial.at_once().await;
        }
        trial.conditional().await?;
    }
    bench.logged().await?;
    Ok(())
}

/// One tool's rows.
pub struct Trial<'a, 'b> {
    bench: &'a mut Bench<'b>,
    origin: &'a ContentOrigin,
    directory: &'a Path,
    /// `curl` or `wget`.
    pub program: &'static str,
}

impl Trial<'_, '_> {
    /// Reports the result of one attempt.
    pub fn row(&mut self, what: &str, outcome: anyhow::Result<String>) {
        let what = format!("{}: {what}", self.program);
        self.bench.report.outcome(what, outcome);
    }

    /// The tool, silent but for errors.
    pub fn tool(&self) -> Tool {
        let quiet: &[&str] = match self.program {
            "curl" => &["--silent", "--show-error", "--fail"],
            _ => &["--no-verbose", "--tries=1"],
        };
        let tool = self.bench.tool(self.program).arguments(quiet);
        tool.directory(self.directory)
    }

    /// The tool, writing the response into `file`.
    fn saving(&self, file: &Path) -> Tool {
        let option = match self.program {
            "curl" => "--output",
            _ => "--output-document",
        };
        self.tool().argument(option).argument(file)
    }

    /// A file of this name in the directory of the run.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    async fn whole(&mut self) {
        let target = format!("/{}/large?size={LARGE_BYTES}", self.program);
        let file = self.file("large");
        for (what, bytes_max) in [
            ("a large file", LARGE_BYTES),
            ("the large file again, from the cache", 0),
        ] {
            let outcome = self.fetch(&target, &file, &[], 0..=bytes_max).await;
            self.row(what, outcome);
        }
    }

    /// Resumes a download of which half exists.
    async fn resumed(&mut self) {
        let words: &[&str] = match self.program {
            "curl" => &["--continue-at", "-"],
            _ => &["--continue"],
        };
        let target = format!("/{}/resumed?size={MEDIUM_BYTES}", self.program);
        let file = self.file("resumed");
        let rest = MEDIUM_BYTES / 2;
        for (what, from_origin) in [
            // The rest must be fetched, and not much more than the rest.
            ("half is there, the rest", rest..=rest + 2 * PAGE_BYTES),
            ("half is there, the rest again, from the cache", 0..=0),
        ] {
            let outcome = match self.write_half(&target, &file) {
                Ok(()) => self.fetch(&target, &file, words, from_origin).await,
                Err(error) => Err(error),
            };
            self.row(what, outcome);
        }
    }

    fn write_half(&self, target: &str, file: &Path) -> anyhow::Result<()> {
        let mut half = vec![0; usize::try_from(MEDIUM_BYTES / 2)?];
        self.origin.content(target).fill(0, &mut half);
        File::create(file)?.write_all(&half)?;
        Ok(())
    }

    /// Fetches `target` into `file` and compares all of it; the origin may send this many bytes.
    async fn fetch(
        &mut self,
        target: &str,
        file: &Path,
        words: &[&str],
        from_origin: RangeInclusive<u64>,
    ) -> anyhow::Result<String> {
        let before = self.origin.counts();
        let url = self.origin.url(target);
        self.saving(file)
            .arguments(words)
            .argument(&url)
            .run()
            .await?;
        let sent = self.origin.counts().body_bytes - before.body_bytes;
        compare(&self.origin.content(target), file)?;
        ensure!(
            from_origin.contains(&sent),
            "right, but the origin sent {sent} bytes and not {from_origin:?}"
        );
        let size = show_bytes(self.origin.content(target).length());
        Ok(format!(
            "{size} right, {} from the origin",
            show_bytes(sent)
        ))
    }

    /// HEAD for an object that is not stored, and for one that is.
    async fn heads(&mut self) {
        let unknown = format!("/{}/head?size=12345", self.program);
        let stored = format!("/{}/large?size={LARGE_BYTES}", self.program);
        for (what, target, size, requests) in [
            ("HEAD of what is not stored", unknown, 12_345, 1),
            ("HEAD of what is stored", stored, LARGE_BYTES, 0),
        ] {
            let outcome = self.head(&target, size, requests).await;
            self.row(what, outcome);
        }
    }

    async fn head(&mut self, target: &str, size: u64, requests: u64) -> anyhow::Result<String> {
        let before = self.origin.counts();
        let url = self.origin.url(target);
        let words: &[&str] = match self.program {
            "curl" => &["--head"],
            _ => &["--spider", "--server-response"],
        };
        let tool = self.tool().arguments(words).argument(&url);
        let (status, stdout, stderr) = tool.run_to_end().await?;
        let said = String::from_utf8_lossy(&[stdout, stderr].concat()).to_ascii_lowercase();
        ensure!(status == Some(0), "ended with {status:?}: {said}");
        let told = format!("content-length: {size}");
        ensure!(
            said.lines().any(|line| line.trim() == told),
            "no `{told}` in {said}"
        );
        let asked = self.origin.counts().requests - before.requests;
        ensure!(
            asked == requests,
            "right, but {asked} requests came to the origin and not {requests}"
        );
        Ok(format!("length {size}, {asked} requests to the origin"))
    }

    async fn stored_ranges(&mut self) {
        let target = format!("/{}/large?size={LARGE_BYTES}", self.program);
        let last = LARGE_BYTES - 1;
        for (range, first_last) in [
            ("0-0", (0, 0)),
            ("1000000-1999999", (1_000_000, 1_999_999)),
            ("299999000-", (299_999_000, last)),
            ("-500", (LARGE_BYTES - 500, last)),
        ] {
            let outcome = self.range(&target, range, first_last, 0).await;
            self.row(&format!("range {range} of what is stored"), outcome);
        }
    }

    async fn new_range(&mut self) {
        let target = format!("/{}/range?size={MEDIUM_BYTES}", self.program);
        let (range, first_last) = ("5000000-5999999", (5_000_000, 5_999_999));
        let most = 1_000_000 + 2 * PAGE_BYTES;
        let outcome = self.range(&target, range, first_last, most).await;
        self.row("range of what is not stored", outcome);
        let outcome = self.range(&target, range, first_last, 0).await;
        self.row("that range again, from the cache", outcome);
        let file = self.file("range");
        // Stored bytes may be fetched again, but need not be.
        let outcome = self.fetch(&target, &file, &[], 0..=MEDIUM_BYTES).await;
        self.row("the whole of it then", outcome);
    }

    async fn range(
        &mut self,
        target: &str,
        range: &str,
        (first, last): (u64, u64),
        from_origin_max: u64,
    ) -> anyhow::Result<String> {
        let before = self.origin.counts();
        let url = self.origin.url(target);
        let file = self.file("part");
        let words = ["--write-out", "%{http_code}", "--range", range, &url];
        let status = self.saving(&file).arguments(&words).run().await?;
        ensure!(
            status == b"206",
            "status {}",
            String::from_utf8_lossy(&status)
        );
        let got = std::fs::read(&file)?;
        ensure!(
            got.len() as u64 == last - first + 1,
            "{} bytes came for {first} to {last}",
            got.len()
        );
        content::verify(&self.origin.content(target), first, &got)
            .map_err(|at| anyhow!("wrong byte at {at}"))?;
        let sent = self.origin.counts().body_bytes - before.body_bytes;
        ensure!(
            sent <= from_origin_max,
            "right, but the origin sent {sent} bytes, more than {from_origin_max}"
        );
        Ok(format!(
            "{} right, {} from the origin",
            show_bytes(got.len() as u64),
            show_bytes(sent)
        ))
    }

    /// A download that is interrupted and resumed, as on a bad line.
    async fn interrupted(&mut self) {
        let outcome = self.cut_and_resume().await;
        self.row("cut after a second and resumed", outcome);
    }

    async fn cut_and_resume(&mut self) -> anyhow::Result<String> {
        let target = format!("/{}/cut?size={LARGE_BYTES}", self.program);
        let url = self.origin.url(&target);
        let file = self.file("cut");
        let slow = ["--limit-rate", "20M", "--max-time", "1", &url];
        let (status, _, stderr) = self.saving(&file).arguments(&slow).run_to_end().await?;
        ensure!(
            status == Some(CURL_TIMED_OUT),
            "curl was to be cut but ended with {status:?}: {}",
            String::from_utf8_lossy(&stderr)
        );
        let had = std::fs::metadata(&file)?.len();
        ensure!(had > 0 && had < LARGE_BYTES, "cut after {had} bytes");
        let words = ["--continue-at", "-"];
        let told = self.fetch(&target, &file, &words, 0..=LARGE_BYTES).await?;
        Ok(format!("cut after {}, then {told}", show_bytes(had)))
    }

    /// Several downloads of one new object at once.
    async fn at_once(&mut self) {
        let outcome = self.collapse().await;
        self.row("eight downloads of one new file at once", outcome);
    }

    async fn collapse(&mut self) -> anyhow::Result<String> {
        let target = format!("/{}/at-once?size={MEDIUM_BYTES}", self.program);
        let before = self.origin.counts();
        let url = self.origin.url(&target);
        let files: Vec<PathBuf> = (0..8).map(|n| self.file(&format!("at-once-{n}"))).collect();
        let tool = self
            .tool()
            .arguments(&["--parallel", "--parallel-immediate"]);
        let tool = files.iter().fold(tool, |tool, file| {
            tool.argument("--output").argument(file).argument(&url)
        });
        tool.run().await?;
        for file in &files {
            compare(&self.origin.content(&target), file)?;
        }
        let sent = self.origin.counts().body_bytes - before.body_bytes;
        ensure!(
            sent <= MEDIUM_BYTES,
            "right, but the origin sent {sent} bytes for {MEDIUM_BYTES}"
        );
        Ok(format!(
            "8 × {} right, {} from the origin",
            show_bytes(MEDIUM_BYTES),
            show_bytes(sent)
        ))
    }
}

/// Whether a file holds this content and no more.
fn compare(content: &Content, file: &Path) -> anyhow::Result<()> {
    let mut opened = File::open(file)?;
    let length = opened.seek(SeekFrom::End(0))?;
    ensure!(
        length == content.length(),
        "{length} of {} bytes came",
        content.length()
    );
    opened.rewind()?;
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = opened.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        content::verify(content, at, &part[..read])
            .map_err(|wrong| anyhow!("wrong byte at {wrong}"))?;
        at += read as u64;
    }
}

const LARGE_BYTES: u64 = 300_000_000;
const MEDIUM_BYTES: u64 = 20_000_000;
/// The proxy rounds a missing range out to pages of this size when it asks the origin.
const PAGE_BYTES: u64 = 64 << 10;
const CURL_TIMED_OUT: i32 = 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_right_if_every_byte_is_and_none_is_missing() {
        let content = content::body_for(1, "/x", 1, 3 << 20);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = content.bytes();
        std::fs::write(&file, &bytes).unwrap();
        assert!(compare(&content, file.path()).is_ok());
        std::fs::write(&file, &bytes[..1 << 20]).unwrap();
        assert!(compare(&content, file.path()).is_err());
        bytes[2 << 20] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(compare(&content, file.path()).is_err());
    }
}
