//! Which requests belong to one page, so that a store can keep them together.
//!
//! The paper groups "downloads by the same client that occur within a small time window and that
//! have the same HTTP Referrer field" (section 4). A trace with referers says the page; in one
//! without, a client's requests within half a minute of its request for a page belong to that page
//! (of the images in the BU trace that is right for four in five).

use std::collections::HashMap;

use crate::source::object_of;
use crate::trace::Request;

/// See the module's head. Cost: about 40 bytes of memory for each client.
#[derive(Default)]
pub struct Pages {
    /// The last page of each client, and when it was requested.
    last: HashMap<u64, (u64, u64)>,
}

impl Pages {
    /// The group of the object that is requested; 0: none.
    pub fn group(&mut self, request: &Request<'_>) -> u64 {
        let client = object_of(request.client);
        if is_page(request.name) {
            let page = group_of(request.name);
            self.last.insert(client, (page, request.time_us));
            return page;
        }
        if !request.group.is_empty() {
            return group_of(request.group);
        }
        match self.last.get(&client) {
            Some((page, since)) if request.time_us.saturating_sub(*since) <= WINDOW_US => *page,
            _ => 0,
        }
    }
}

/// A directory, or what is named as HTML.
fn is_page(name: &[u8]) -> bool {
    let path = name.split(|byte| *byte == b'?').next().unwrap_or(name);
    let ends = [&b"/"[..], b".html", b".htm"];
    ends.iter().any(|end| path.ends_with(end))
}

/// 0 would mean that there is no group.
fn group_of(page: &[u8]) -> u64 {
    object_of(page).max(1)
}

const WINDOW_US: u64 = 30_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(seconds: u64, client: &'a str, name: &'a str, group: &'a str) -> Request<'a> {
        Request {
            time_us: seconds * 1_000_000,
            client: client.as_bytes(),
            name: name.as_bytes(),
            bytes: Some(1),
            group: group.as_bytes(),
            may_be_stored: true,
        }
    }

    #[test]
    fn images_belong_to_the_clients_last_page_for_half_a_minute() {
        let mut pages = Pages::default();
        let a = pages.group(&request(0, "me", "http://a/", ""));
        let b = pages.group(&request(1, "you", "http://b/x.html?q=/y", ""));
        assert!(a != b && a != 0 && b != 0);
        assert_eq!(pages.group(&request(30, "me", "http://a/i.gif", "")), a);
        assert_eq!(pages.group(&request(31, "me", "http://a/j.gif", "")), 0);
        assert_eq!(pages.group(&request(31, "you", "http://a/j.gif", "")), b);
        assert_eq!(pages.group(&request(0, "they", "http://a/j.gif", "")), 0);
    }

    #[test]
    fn a_referer_says_the_page_however_late() {
        let mut pages = Pages::default();
        let page = pages.group(&request(0, "me", "http://a/", "http://from/"));
        let image = request(900, "you", "http://a/i.gif", "http://a/");
        assert_eq!(pages.group(&image), page);
    }
}
