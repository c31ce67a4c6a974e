//! Views of real pages, from a HAR file (HTTP Archive 1.2), in many copies.
//!
//! Each copy has paths of its own, so it is a page that no other view shares. Only what the
//! responses' heads say is used: the file needs no bodies. https becomes http, as if it was
//! intercepted. Requests that repeat an URL of the view, that are no GET, or that had no response
//! with the status 200, are left out. First each copy is visited once, then copies are revisited in
//! turn, so that none of them is in memory.
//!
//! Invariant: equal files give equal requests.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, ensure};
use hashcache_sim::trace::har::{self, FieldName};
use hashcache_workload::Kind;

use crate::checked_request::{Ask, OTHER_ACCEPT};

/// See the module's head.
pub struct Har {
    pages: Vec<Vec<Entry>>,
    /// Copies that are revisited.
    copies: u64,
    /// The copy of the next first visit, and that of the next revisit.
    next: u64,
    next_again: u64,
}

/// A request of a view and what is known of its response.
struct Entry {
    host: String,
    /// Path and query.
    path: String,
    bytes: u64,
    may_be_stored: bool,
    accept: String,
    /// Sec-Fetch-Dest, which browsers send over https.
    destination: Option<String>,
    referer: Option<String>,
}

impl Har {
    /// Reads the views of a file.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(text).with_context(|| format!("{} is no HAR file", file.display()))
    }

    fn parse(text: impl Read) -> anyhow::Result<Self> {
        let entries = har::read(text)?;
        let mut order: Vec<&str> = vec![];
        let mut views: HashMap<&str, Vec<Entry>> = HashMap::new();
        for entry in &entries {
            let view = entry.view.as_deref().unwrap_or_default();
            let entries = views.entry(view).or_insert_with(|| {
                order.push(view);
                vec![]
            });
            entries.extend(Entry::read(entry).filter(|new| {
                let mut old = entries.iter();
                old.all(|old| (&old.host, &old.path) != (&new.host, &new.path))
            }));
        }
        let pages = order.iter().filter_map(|view| views.remove(view));
        let pages: Vec<Vec<Entry>> = pages.filter(|entries| !entries.is_empty()).collect();
        ensure!(!pages.is_empty(), "no view with responses");
        Ok(Self {
            pages,
            copies: 1,
            next: 0,
            next_again: 0,
        })
    }

    /// So many copies are revisited that what is stored of them has about this size. The number of
    /// requests that visit them all once.
    pub fn set_working_set(&mut self, bytes: u64) -> u64 {
        let entries = || self.pages.iter().flatten();
        let stored = entries().filter(|entry| entry.may_be_stored);
        let stored: u64 = stored.map(|entry| entry.bytes).sum();
        let views = self.pages.len() as u64;
        self.copies = (bytes * views / stored.max(1)).max(1);
        self.copies * entries().count() as u64 / views
    }

    /// The requests of a first visit.
    pub fn new_visit(&mut self) -> Vec<Ask> {
        self.next += 1;
        self.asks(self.next - 1, Kind::New)
    }

    /// The requests of a revisit.
    pub fn visit(&mut self) -> Vec<Ask> {
        self.next_again += 1;
        self.asks((self.next_again - 1) % self.copies, Kind::Again)
    }

    fn asks(&self, copy: u64, kind: Kind) -> Vec<Ask> {
        let view = usize::try_from(copy % self.pages.len() as u64).expect("below the number");
        let page = &self.pages[view];
        let targets: HashMap<String, String> = page
            .iter()
            .map(|entry| (entry.url(), entry.target(copy)))
            .collect();
        page.iter()
            .map(|entry| Ask {
                target: entry.target(copy),
                bytes: entry.bytes,
                kind: if entry.may_be_stored {
                    kind
                } else {
                    Kind::Uncacheable
                },
                accept: entry.accept.clone(),
                destination: entry.destination.clone(),
                referer: entry
                    .referer
                    .as_ref()
                    .and_then(|url| targets.get(url).cloned()),
            })
            .collect()
    }
}

impl Entry {
    /// `None` if it is left out.
    fn read(entry: &har::Entry) -> Option<Self> {
        let (request, response) = (&entry.request, &entry.response);
        if request.method != "GET" || response.status != 200 {
            return None;
        }
        let url = plain(&request.url)?;
        let (host, path) = url.split_once('/').unwrap_or((&url, ""));
        Some(Self {
            host: host.to_owned(),
            path: format!("/{path}"),
            bytes: entry.bytes()?,
            may_be_stored: entry.may_be_stored(),
            accept: request
                .field(FieldName::Accept)
                .unwrap_or(OTHER_ACCEPT)
                .to_owned(),
            destination: request.field(FieldName::SecFetchDest).map(str::to_owned),
            referer: request.field(FieldName::Referer).and_then(plain),
        })
    }

    fn url(&self) -> String {
        format!("{}{}", self.host, self.path)
    }

    /// What is requested for this copy.
    fn target(&self, copy: u64) -> String {
        let Self {
            host, path, bytes, ..
        } = self;
        // The origin would take a query of the page's for its own.
        let path = path.replace('?', "!");
        let store = if self.may_be_stored { "" } else { "&no-store" };
        format!("http://{host}/{copy}{path}?size={bytes}{store}")
    }
}

/// An URL without scheme and fragment; `None` if it has spaces, which a request cannot have.
fn plain(url: &str) -> Option<String> {
    let url = url
        .strip_prefix("https://")
        .or(url.strip_prefix("http://"))?;
    let url = url.split('#').next().unwrap_or_default();
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(url: &str, bytes: i64, control: &str, referer: &str) -> Value {
        let fields = |name: &str, value: &str| json!([{ "name": name, "value": value }]);
        json!({
            "pageref": "one",
            "request": { "method": "GET", "url": url, "headers": fields("Referer", referer) },
            "response": {
                "status": 200,
                "bodySize": bytes,
                "content": { "size": 7 },
                "headers": fields("Cache-Control", control),
            },
        })
    }

    #[test]
    fn a_copy_has_the_requests_of_the_view_under_urls_of_its_own() {
        let page = entry("http://a.test/", 100, "private, max-age=0", "");
        let mut image = entry(
            "https://b.test/i?x=1",
            -1,
            "max-age=9",
            "http://a.test/#top",
        );
        image["request"]["headers"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "Sec-Fetch-Dest", "value": "image" }));
        let again = image.clone();
        let mut moved = entry("http://a.test/m", 1, "", "");
        moved["response"]["status"] = json!(302);
        let har = json!({ "log": { "entries": [page, image, again, moved] } });
        let mut har = Har::parse(har.to_string().as_bytes()).unwrap();
        assert_eq!(har.set_working_set(21), 6);
        har.new_visit();
        let asks = har.new_visit();
        let said: Vec<(&str, u64, Kind, Option<&str>)> = asks
            .iter()
            .map(|ask| (&*ask.target, ask.bytes, ask.kind, ask.referer.as_deref()))
            .collect();
        let destinations: Vec<Option<&str>> =
            asks.iter().map(|ask| ask.destination.as_deref()).collect();
        assert_eq!(destinations, [None, Some("image")]);
        let page = "http://a.test/1/?size=100&no-store";
        let image = "http://b.test/1/i!x=1?size=7";
        assert_eq!(
            said,
            [
                (page, 100, Kind::Uncacheable, None),
                (image, 7, Kind::New, Some(page)),
            ]
        );
        // Three copies are revisited in turn.
        let copies: Vec<String> = (0..4).map(|_| har.visit()[1].target.clone()).collect();
        assert_eq!(copies[0], "http://b.test/0/i!x=1?size=7");
        assert_eq!(copies[2], "http://b.test/2/i!x=1?size=7");
        assert_eq!(copies[3], copies[0]);
    }

    #[test]
    fn what_is_no_har_file_is_an_error() {
        for text in [
            "",
            "{}",
            "{\"log\":{\"entries\":[]}}",
            "{\"log\":{\"entries\":[1]}}",
        ] {
            assert!(Har::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
