//! The frame around all our pages: head, style, title.
//!
//! Error pages, the dashboard and gateway listings use it.
//!
//! Invariant: `document` and `begin` take escaped HTML; `Escaped` escapes text.

use std::fmt;

/// A whole document around `main`. Both `main` and `title` are HTML.
pub fn document(title: &str, main: &str) -> String {
    let begin = begin(title, "");
    format!("{begin}{main}{END}")
}

/// A document up to the content, with further style rules. [`END`] closes the document.
pub fn begin(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{style}</style></head>\
         <body><main><h1>{title}</h1>"
    )
}

/// The closing tags after a document's content.
pub const END: &str = "</main></body></html>\n";

/// Text, escaped for HTML content and for quoted attributes.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                _ => "&#39;",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

/// A number of bytes in a form for people: `1.5 GiB`.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit = units.iter().find(|(bits, _)| self.0 >> bits > 0);
        let Some((bits, name)) = unit else {
            return write!(f, "{} bytes", self.0);
        };
        // In 128 bits: ten times a size must not wrap.
        let tenths = (u128::from(self.0) * 10) >> bits;
        match tenths % 10 {
            0 => write!(f, "{} {name}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {name}", tenths / 10),
        }
    }
}

/// Dark if the reader's system is dark; needs no further files.
const STYLE: &str = "\
:root{color-scheme:light dark;--b:#f4f1ea;--c:#fff;--t:#23262b;--m:#6a6f78;--l:#e3ded3;--a:#b4551d}\
@media(prefers-color-scheme:dark){\
:root{--b:#17191c;--c:#202327;--t:#e6e4df;--m:#9a9fa8;--l:#33373d;--a:#f0955b}}\
*{box-sizing:border-box}\
body{margin:0;min-height:100vh;display:flex;justify-content:center;align-items:center;\
padding:1.5rem;background:var(--b);color:var(--t);font:1.05rem/1.55 system-ui,sans-serif}\
main{width:100%;max-width:38rem;background:var(--c);border-top:4px solid var(--a);\
border-radius:8px;padding:2rem 2.25rem;box-shadow:0 1px 12px #0002;overflow-wrap:anywhere}\
h1{margin:0 0 1rem;font-size:1.6rem;line-height:1.25}\
h2{margin:1.5rem 0 .4rem;font-size:1rem}\
p{margin:0 0 1rem}\
main>:last-child{margin-bottom:0}\
.a{border-left:3px solid var(--a);padding-left:.9rem}\
a{color:var(--a)}\
dl{margin:1.75rem 0 0;padding-top:1rem;border-top:1px solid var(--l);display:grid;\
grid-template-columns:auto 1fr;gap:.2rem 1rem;font-size:.85rem}\
dt{color:var(--m)}\
dd{margin:0}\
pre,code,dd{font-family:ui-monospace,monospace}\
.words dd{font-family:inherit}\
@media(max-width:34rem){.words{display:block}.words dd{margin:0 0 .6rem}}\
pre{margin:0;padding:.75rem 1rem;background:var(--b);border-radius:6px;overflow-x:auto;\
font-size:.88rem}";
