//! Menus of Gopher servers, and paths of gopher URLs, of any bytes: what is sent is one line of at
//! most 255 bytes and a tab, and fields of an item have no tab or line end.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// The reader of menus, straight from its source.
#[path = "../../crates/hashcache-upstream/src/gateway/gopher_menu.rs"]
#[allow(dead_code, reason = "the gateway uses the rest")]
mod gopher_menu;

use gopher_menu::{ITEMS_MAX, Request, read};

fuzz_target!(|data: &[u8]| {
    let menu = read(data);
    assert!(menu.items.len() <= ITEMS_MAX);
    for item in &menu.items {
        for field in [item.label, item.selector, item.host] {
            assert!(!field.contains(&b'\t') && !field.contains(&b'\n'));
        }
        assert_ne!(item.port, Some(0));
    }
    if let Ok(path) = std::str::from_utf8(data)
        && let Ok(request) = Request::parse(path)
    {
        let line = request.line();
        let sent = line.strip_suffix(b"\r\n").expect("a line end");
        assert!(sent.len() <= 256);
        let tabs = sent.iter().filter(|&&byte| byte == b'\t').count();
        assert!(tabs <= 1);
        let is_bad = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
        assert!(!sent.iter().any(is_bad));
    }
});
