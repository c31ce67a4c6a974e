//! Response content on its way to a client, decoded and with rewritten links.
//!
//! Made by `request/mirrored` in the proxy, read by the response body.
//!
//! Invariants: incomplete content from the origin also leads to an error here. Content that is not
//! JSON or HTML passes unchanged. Content that does not match the declared coding is an error,
//! because the loss would be unknown. Memory: [`REWRITING_BYTES`], for any content; a piece of
//! input is used up before the next piece is read.

use std::io::Write as _;
use std::mem;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use hashcache_base::failure::Failure;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::html::HtmlRewriter;
use super::json::JsonRewriter;
use super::links::Links;
use super::{LINK_BYTES_MAX, MirrorKind};

/// The rewriting of a response's content.
pub struct Rewriting {
    coding: Decoder,
    rewriter: Rewriter,
    links: Links,
    /// Remaining input.
    input: Bytes,
}

/// The content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    Identity,
    Gzip,
}

enum Decoder {
    Identity,
    Gzip {
        /// Writes decoded bytes into the vector, a little per call.
        decoder: Box<MultiGzDecoder<Vec<u8>>>,
        /// No input yet: empty content is not gzip, and not an error.
        is_new: bool,
    },
}

enum Rewriter {
    Json(JsonRewriter),
    Html(HtmlRewriter),
    None,
}

impl Rewriting {
    /// The rewriting for a response with these fields.
    pub fn new(links: Links, coding: ContentCoding, response: &HeaderMap) -> Self {
        let rewriter = rewriter(links.kind(), response);
        let coding = match coding {
            ContentCoding::Identity => Decoder::Identity,
            ContentCoding::Gzip => Decoder::Gzip {
                decoder: Box::new(MultiGzDecoder::new(Vec::new())),
                is_new: true,
            },
        };
        Self {
            coding,
            rewriter,
            links,
            input: Bytes::new(),
        }
    }

    /// Takes the next input; only after [`Self::next_output`] has returned `None`.
    pub fn take(&mut self, input: Bytes) {
        debug_assert!(self.input.is_empty(), "the piece before is used up");
        self.input = input;
    }

    /// The next piece of output, not much more than `OUTPUT_BYTES`; `None` if more input is needed.
    pub fn next_output(&mut self) -> Result<Option<Bytes>, Failure> {
        let mut out = Vec::new();
        while !self.input.is_empty() && out.len() < OUTPUT_BYTES {
            let step = self.input.len().min(INPUT_STEP_BYTES);
            let used = match &mut self.coding {
                Decoder::Identity => {
                    let piece = self.input.slice(..step);
                    self.rewriter.push(&piece, &mut self.links, &mut out);
                    step
                }
                Decoder::Gzip { decoder, is_new } => {
                    *is_new = false;
                    let used = decoder.write(&self.input[..step]).map_err(|_| MISCODED)?;
                    if used == 0 {
                        return Err(MISCODED);
                    }
                    let decoded = mem::take(decoder.get_mut());
                    self.rewriter.push(&decoded, &mut self.links, &mut out);
                    used
                }
            };
            self.input = self.input.slice(used..);
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }

    /// Held output, after all content.
    pub fn finish(&mut self) -> Result<Option<Bytes>, Failure> {
        let mut out = Vec::new();
        if let Decoder::Gzip { decoder, is_new } = &mut self.coding
            && !*is_new
        {
            decoder.try_finish().map_err(|_| MISCODED)?;
            let decoded = mem::take(decoder.get_mut());
            self.rewriter.push(&decoded, &mut self.links, &mut out);
        }
        match &mut self.rewriter {
            Rewriter::Json(json) => json.finish(&mut out),
            Rewriter::Html(html) => html.finish(&mut out),
            Rewriter::None => {}
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl Rewriter {
    fn push(&mut self, input: &[u8], links: &mut Links, out: &mut Vec<u8>) {
        match self {
            Self::Json(json) => json.push(input, links, out),
            Self::Html(html) => html.push(input, links, out),
            Self::None => out.extend_from_slice(input),
        }
    }
}

/// The rewriter for a content type. npm and crates registries send JSON under any type; for them a
/// wrong type only costs a look at each byte and changes nothing.
fn rewriter(kind: MirrorKind, response: &HeaderMap) -> Rewriter {
    let content_type = response.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let essence = content_type
        .and_then(|value| value.split(|&byte| byte == b';').next())
        .map(|essence| essence.trim_ascii().to_ascii_lowercase());
    match kind {
        MirrorKind::Npm | MirrorKind::Crates => Rewriter::Json(JsonRewriter::new(kind)),
        MirrorKind::Apt => Rewriter::None,
        MirrorKind::Pypi => match essence.as_deref() {
            Some(essence) if essence.ends_with(b"json") => Rewriter::Json(JsonRewriter::new(kind)),
            // The first Python indexes were directory listings without a type.
            None => Rewriter::Html(HtmlRewriter::new()),
            Some(essence) if essence.ends_with(b"html") => Rewriter::Html(HtmlRewriter::new()),
            Some(_) => Rewriter::None,
        },
    }
}

const MISCODED: Failure = Failure::ResponseMalformed("content does not match its Content-Encoding");
/// Approximate size of an output piece.
const OUTPUT_BYTES: usize = 32 << 10;
/// Size of an input step: each byte can become a link of a few hundred.
const INPUT_STEP_BYTES: usize = 1 << 10;

/// Memory for a response while it is rewritten: a piece of input and a piece of output, a link, and
/// for gzip the window with the bytes decoded last.
pub const REWRITING_BYTES: u64 =
    (64 << 10) + (2 * OUTPUT_BYTES + LINK_BYTES_MAX) as u64 + (96 << 10);

#[cfg(test)]
mod tests;
