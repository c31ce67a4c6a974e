//! Pages out of a web archive (WARC), as their site sent them.
//!
//! Used by `content`. Reads what the crawl of archive.org needs: records with Content-Length, and
//! HTTP/1 responses that end with their record.
//!
//! Invariant: what cannot be read is an error, not a page fewer.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::packages::File;

/// The HTML pages of `host` in the archive, each once, in its order.
pub fn pages(archive: &Path, host: &str) -> anyhow::Result<Vec<File>> {
    let unpacked = Command::new("gzip").arg("-dc").arg(archive).output();
    let unpacked = unpacked.context("cannot run gzip")?;
    let said = String::from_utf8_lossy(&unpacked.stderr);
    ensure!(unpacked.status.success(), "{}: {said}", archive.display());
    let mut pages: Vec<File> = vec![];
    let mut rest = &unpacked.stdout[..];
    while !rest.is_empty() {
        let (head, content) = head_of(rest).context("a record without the end of its head")?;
        let length = field(&head, "content-length").context("a record without a length")?;
        let length: usize = length.parse()?;
        let record = content.get(..length).context("a record that is cut off")?;
        let target = field(&head, "warc-target-uri").unwrap_or_default();
        let path = target
            .strip_prefix("http://")
            .and_then(|rest| rest.strip_prefix(host))
            .filter(|path| path.starts_with('/'));
        let is_response = field(&head, "warc-type") == Some("response");
        if let Some(path) = path.filter(|_| is_response)
            && let Some(content) = page(record)
            && !pages.iter().any(|page| page.path == path)
        {
            pages.push(File {
                path: path.replace('#', "_"),
                content: content.to_vec().into(),
            });
        }
        rest = content[length..].trim_ascii_start();
    }
    ensure!(
        !pages.is_empty(),
        "no pages of {host} in {}",
        archive.display()
    );
    Ok(pages)
}

/// The content of an HTTP response, if it is a page.
fn page(record: &[u8]) -> Option<&[u8]> {
    let (head, content) = head_of(record)?;
    let is_well = head.first()?.split(' ').nth(1) == Some("200");
    let is_html = field(&head, "content-type").is_some_and(|kind| kind.starts_with("text/html"));
    let is_whole = field(&head, "transfer-encoding").is_none();
    (is_well && is_html && is_whole && !content.is_empty()).then_some(content)
}

/// The lines of a head, and what is behind it.
fn head_of(bytes: &[u8]) -> Option<(Vec<String>, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    let lines = text.split("\r\n").map(str::to_owned).collect();
    Some((lines, &bytes[end + 4..]))
}

fn field<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_pages() {
        let well = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>";
        assert_eq!(page(well), Some(&b"<p>"[..]));
        for other in [
            &b"HTTP/1.1 404 No\r\nContent-Type: text/html\r\n\r\n<p>"[..],
            b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n<p>",
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
            b"HTTP/1.1 200 OK",
        ] {
            assert_eq!(page(other), None);
        }
    }
}
