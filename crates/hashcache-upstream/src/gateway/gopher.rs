//! The dialogue with a Gopher server (RFC 1436): a single line to the server, and all bytes that it
//! sends until it closes.
//!
//! Called by `gateway::start`. Gopher has no status, no length and no modification time. If the
//! whole answer is an item of type 3, the resource does not exist, which becomes 404.
//!
//! Invariant: the request is a single line. A reset of the connection is not the end of a response;
//! a close is the end, because there is no other sign.
//! Cost: a round trip.

use hashcache_base::failure::Failure;
use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::gopher_menu::{self, ITEMS_MAX, Item, PathError, Request};
use super::message::{GatewayRequest, ResponseHead, ResponseWriter, refused};
use super::{Collected, LIFETIME, PIECE_BYTES, Session, content_type, html, read_some, send_page};

/// Answers `request` with data from the server at the other end of `socket`.
pub(super) async fn serve(
    session: &Session,
    mut socket: TcpStream,
    request: &GatewayRequest,
    out: &mut ResponseWriter,
) -> Result<(), Failure> {
    let wanted = wanted(&request.target)?;
    let is_page = matches!(wanted.kind, b'1' | b'7');
    let head = ResponseHead::new(StatusCode::OK);
    let head = match wanted.search {
        Some(_) => head.field("Cache-Control", "no-store"),
        None => head.field("Cache-Control", LIFETIME),
    };
    let limit = session.reply_time;
    let sent = timeout(limit, socket.write_all(&wanted.line())).await;
    let sent = sent.map_err(|_| Failure::FirstByteTimeout(limit))?;
    sent.map_err(|_| Failure::ConnectionTerminated)?;
    if is_page {
        return send_menu(session, socket, head, out).await;
    }
    let head = head.field("Content-Type", media_type(&wanted));
    send_file(session, socket, head, wanted.kind, out).await
}

/// Returns the Gopher request for a path and a query.
///
/// # Errors
/// They cannot be written as a single line, or name an item type that the gateway does not support.
pub(super) fn wanted(path_and_query: &str) -> Result<Request, Failure> {
    let wanted = Request::parse(path_and_query).map_err(|error| match error {
        PathError::Control => refused("the path contains a control character"),
        PathError::TooLong => refused("the selector has more than 255 bytes"),
    })?;
    match wanted.kind {
        b'2' | b'3' | b'8' | b'T' | b'i' => {
            Err(Failure::NotImplemented("Gopher items of this type"))
        }
        _ => Ok(wanted),
    }
}

/// Returns the form for the search words, if `wanted` is a search without words. No server is
/// needed for the form.
pub(super) fn search_form(host: &str, wanted: &Request) -> Option<String> {
    let lacks_words = wanted.kind == b'7' && wanted.search.is_none();
    lacks_words.then(|| html::search(host, &[b"7", &wanted.selector[..]].concat()))
}

async fn send_menu(
    session: &Session,
    mut socket: TcpStream,
    head: ResponseHead,
    out: &mut ResponseWriter,
) -> Result<(), Failure> {
    let mut collected = Collected::read(session, &mut socket).await?;
    drop(socket);
    collected.hold_rows(session, ITEMS_MAX, size_of::<Item<'_>>())?;
    let mut menu = gopher_menu::read(&collected.text);
    menu.is_cut |= collected.is_cut;
    if let Some(first) = menu.items.iter().find(|item| item.kind != b'i')
        && first.is_error()
    {
        return not_found(first, out).await;
    }
    out.begin(head.field("Content-Type", HTML), None).await?;
    send_page(out, html::menu(&session.host, &menu)).await?;
    out.end().await
}

/// Sends the server's bytes. Their first piece shows whether the item exists at all. For a text,
/// the last piece is held back, because the final line with a dot is not part of the text.
async fn send_file(
    session: &Session,
    mut socket: TcpStream,
    head: ResponseHead,
    kind: u8,
    out: &mut ResponseWriter,
) -> Result<(), Failure> {
    let mut held = Vec::with_capacity(PIECE_BYTES);
    while held.len() < ERROR_MAX && read_some(session, &mut socket, &mut held).await? > 0 {}
    if held.len() < ERROR_MAX
        && let Some(item) = error_of(&held)
    {
        return not_found(&item, out).await;
    }
    out.begin(head, None).await?;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    while read_some(session, &mut socket, &mut piece).await? > 0 {
        let kept = held.len().min(TEXT_END.len());
        out.piece(&held[..held.len() - kept]).await?;
        held.drain(..held.len() - kept);
        held.append(&mut piece);
    }
    let content = match kind {
        b'0' => without_end(&held),
        _ => &held,
    };
    out.piece(content).await?;
    out.end().await
}

/// Returns a text without the final line, which is a single dot.
fn without_end(text: &[u8]) -> &[u8] {
    let ends = [TEXT_END, b"\n.\n", b"\n."];
    let end = ends.iter().find_map(|end| text.strip_suffix(*end));
    match end {
        // The line before keeps the line end.
        Some(rest) => {
            let line_end = if text[rest.len()..].starts_with(b"\r") {
                2
            } else {
                1
            };
            &text[..rest.len() + line_end]
        }
        None if text == b".\r\n" => b"",
        None => text,
    }
}

/// Returns the error item, if the whole answer is an error.
fn error_of(answer: &[u8]) -> Option<Item<'_>> {
    let mut lines = answer.split(|&byte| byte == b'\n');
    let first = lines.next()?;
    let first = first.strip_suffix(b"\r").unwrap_or(first);
    let rest = lines.all(|line| matches!(line, b"" | b"." | b".\r" | b"\r"));
    let has_fields = first.iter().filter(|&&byte| byte == b'\t').count() >= 3;
    let item = gopher_menu::item(first)?;
    (rest && has_fields && item.is_error()).then_some(item)
}

async fn not_found(item: &Item<'_>, out: &mut ResponseWriter) -> Result<(), Failure> {
    let head = ResponseHead::new(StatusCode::NOT_FOUND).field("Content-Type", HTML);
    let page = html::error("The Gopher server has no such item", item.label);
    out.whole(head, &page).await
}

fn media_type(wanted: &Request) -> &'static str {
    match wanted.kind {
        b'0' => "text/plain; charset=utf-8",
        b'h' => "text/html",
        b'g' => "image/gif",
        _ => content_type::of_name(&wanted.selector),
    }
}

pub(super) const HTML: &str = "text/html; charset=utf-8";
/// Only an answer with fewer bytes may be an error.
const ERROR_MAX: usize = 512;
/// The end of a text: a line with a single dot.
const TEXT_END: &[u8] = b"\r\n.\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_not_part_of_it() {
        for (sent, text) in [
            ("a\r\n.\r\n", "a\r\n"),
            ("a\n.\n", "a\n"),
            ("a\n.", "a\n"),
            (".\r\n", ""),
            ("a.\r\n", "a.\r\n"),
            ("a\r\n..\r\n", "a\r\n..\r\n"),
            ("", ""),
        ] {
            assert_eq!(without_end(sent.as_bytes()), text.as_bytes(), "{sent:?}");
        }
    }

    #[test]
    fn an_error_is_the_whole_answer() {
        let is_error = |answer: &[u8]| error_of(answer).is_some();
        assert!(is_error(b"3'/x' does not exist\t\terror.host\t1\r\n.\r\n"));
        assert!(is_error(b"3no\t\t\t1"));
        assert!(!is_error(b"3no\t\t\t1\r\nmore"));
        assert!(!is_error(b"3 apples\r\n"));
        assert!(!is_error(b"0x\t\t\t1\r\n"));
        assert!(!is_error(b""));
    }
}
