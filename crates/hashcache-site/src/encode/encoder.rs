//! Encodes content in pieces.
//!
//! A response body calls it: `take` a piece, call `next_output` until it returns `None`, and
//! repeat; `flush` while no further piece is there, `finish` at the end.
//!
//! Invariant: a call to `next_output` returns at most [`OUTPUT_BYTES`] plus the output that one
//! step of input adds.
//! Memory: [`Coding::memory`]. Length, speed and heap peak, for 1.3 MB of HTML and Markdown on a
//! core in a busy machine:
//!
//! | coding | length | MB/s | heap |
//! |---|---|---|---|
//! | br 2, 3, 4 (window 2^18) | 22.4, 21.9, 21.0 % | 51, 54, 26 | 1156, 1156, 2079 KiB |
//! | gzip 1, 4, 6 | 29.1, 21.8, 21.2 % | 100, 51, 29 | 439 KiB |
//! | zstd by `ruzstd` 0.9, its one level | 30.7 % | 40 | 2863 KiB, content at once |

use std::io::{self, Write};
use std::mem;

use brotli::CompressorWriter;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::Coding;

/// An encoder for a response.
pub struct Encoder {
    stream: Stream,
    /// Remaining input.
    input: Bytes,
    /// Input bytes since the last flush of the encoder.
    held: usize,
}

enum Stream {
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Ended,
}

impl Coding {
    /// Memory for an encoder with a piece of input and a piece of output, bytes.
    pub fn memory(self) -> u64 {
        match self {
            Self::Gzip => (439 + PIECES_KIB) << 10,
            Self::Brotli => (1156 + PIECES_KIB) << 10,
        }
    }
}

/// A piece of input, and output up to the next flush, KiB.
const PIECES_KIB: u64 = 64 + 96;

impl Encoder {
    /// A new encoder without input.
    pub fn new(coding: Coding) -> Self {
        let stream = match coding {
            Coding::Gzip => {
                let level = Compression::new(GZIP_LEVEL);
                Stream::Gzip(Box::new(GzEncoder::new(Vec::new(), level)))
            }
            Coding::Brotli => {
                let quality = (BROTLI_QUALITY, BROTLI_WINDOW);
                let encoder = CompressorWriter::new(Vec::new(), 4096, quality.0, quality.1);
                Stream::Brotli(Box::new(encoder))
            }
        };
        Self {
            stream,
            input: Bytes::new(),
            held: 0,
        }
    }

    /// Takes the next input; only after [`Self::next_output`] has returned `None`.
    pub fn take(&mut self, input: Bytes) {
        debug_assert!(self.input.is_empty(), "the piece before is used up");
        self.input = input;
    }

    /// The next piece of output; `None` if more input is needed.
    pub fn next_output(&mut self) -> io::Result<Option<Bytes>> {
        while !self.input.is_empty() {
            let step = self.input.split_to(self.input.len().min(INPUT_STEP_BYTES));
            self.held += step.len();
            let out = match &mut self.stream {
                Stream::Gzip(encoder) => {
                    encoder.write_all(&step)?;
                    encoder.get_mut()
                }
                Stream::Brotli(encoder) => {
                    encoder.write_all(&step)?;
                    // Without the flush, brotli holds megabytes before it writes any output.
                    if self.held >= FLUSH_BYTES {
                        self.held = 0;
                        encoder.flush()?;
                    }
                    encoder.get_mut()
                }
                Stream::Ended => return Err(io::ErrorKind::UnexpectedEof.into()),
            };
            if out.len() >= OUTPUT_BYTES {
                return Ok(Some(mem::take(out).into()));
            }
        }
        Ok(None)
    }

    /// All output for the input so far, if the client does not have it yet. Content that arrives
    /// slowly must not wait here.
    pub fn flush(&mut self) -> io::Result<Option<Bytes>> {
        if mem::take(&mut self.held) == 0 {
            return Ok(None);
        }
        let out = match &mut self.stream {
            Stream::Gzip(encoder) => {
                encoder.flush()?;
                encoder.get_mut()
            }
            Stream::Brotli(encoder) => {
                encoder.flush()?;
                encoder.get_mut()
            }
            Stream::Ended => return Ok(None),
        };
        Ok(some(mem::take(out)))
    }

    /// The remaining output, after all content.
    pub fn finish(&mut self) -> io::Result<Option<Bytes>> {
        self.held = 0;
        let out = match mem::replace(&mut self.stream, Stream::Ended) {
            Stream::Gzip(encoder) => encoder.finish()?,
            Stream::Brotli(encoder) => encoder.into_inner(),
            Stream::Ended => return Ok(None),
        };
        Ok(some(out))
    }
}

fn some(out: Vec<u8>) -> Option<Bytes> {
    (!out.is_empty()).then(|| out.into())
}

const GZIP_LEVEL: u32 = 4;
const BROTLI_QUALITY: u32 = 3;
/// 256 KiB, as binary logarithm.
const BROTLI_WINDOW: u32 = 18;
/// Input after which brotli is flushed.
const FLUSH_BYTES: usize = 64 << 10;
/// Size of an input step.
const INPUT_STEP_BYTES: usize = 16 << 10;
/// Approximate size of an output piece.
const OUTPUT_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn decoded(coding: Coding, encoded: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(encoded).read_to_end(&mut content),
            Coding::Brotli => brotli::Decompressor::new(encoded, 4096).read_to_end(&mut content),
        }
        .unwrap();
        content
    }

    /// Text of a page: words that repeat, none of them at regular places.
    fn text(bytes: usize, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut text = Vec::with_capacity(bytes + 16);
        while text.len() < bytes {
            let word = random.u16(..2000);
            text.extend_from_slice(format!("<p class=w{word}>").as_bytes());
        }
        text.truncate(bytes);
        text
    }

    fn encoded(coding: Coding, content: &[u8], piece: usize) -> Vec<u8> {
        let mut encoder = Encoder::new(coding);
        let mut out = Vec::new();
        for piece in content.chunks(piece) {
            encoder.take(Bytes::copy_from_slice(piece));
            while let Some(bytes) = encoder.next_output().unwrap() {
                out.extend_from_slice(&bytes);
            }
        }
        out.extend_from_slice(&encoder.finish().unwrap().unwrap_or_default());
        assert_eq!(encoder.finish().unwrap(), None);
        out
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_content() {
        for (_, coding) in Coding::ALL {
            for bytes in [0, 1, 1000, 100_000, 1_000_000] {
                for piece in [7, 4096, 65_536] {
                    let content = text(bytes.min(piece * 1000), 1);
                    let encoded = encoded(coding, &content, piece);
                    assert!(
                        decoded(coding, &encoded) == content,
                        "{coding:?} {bytes} {piece}"
                    );
                }
            }
        }
    }

    #[test]
    fn text_becomes_less_than_half_as_long() {
        for (_, coding) in Coding::ALL {
            let content = text(200_000, 2);
            let encoded = encoded(coding, &content, 16_384);
            assert!(
                encoded.len() * 2 < content.len(),
                "{coding:?} {}",
                encoded.len()
            );
        }
    }

    #[test]
    fn a_flush_gives_the_client_all_content_so_far() {
        for (_, coding) in Coding::ALL {
            let mut encoder = Encoder::new(coding);
            let mut out = Vec::new();
            for n in 0..5_usize {
                encoder.take(text(3000, n as u64).into());
                while let Some(bytes) = encoder.next_output().unwrap() {
                    out.extend_from_slice(&bytes);
                }
                out.extend_from_slice(&encoder.flush().unwrap().unwrap());
                assert_eq!(encoder.flush().unwrap(), None, "nothing new to send");
                let mut so_far = vec![0; 3000 * (n + 1)];
                let read = match coding {
                    Coding::Gzip => flate2::read::GzDecoder::new(&out[..]).read_exact(&mut so_far),
                    Coding::Brotli => {
                        brotli::Decompressor::new(&out[..], 4096).read_exact(&mut so_far)
                    }
                };
                read.unwrap();
                assert_eq!(so_far[3000 * n..], text(3000, n as u64));
            }
        }
    }

    #[test]
    fn output_is_returned_in_small_pieces() {
        for (_, coding) in Coding::ALL {
            let mut encoder = Encoder::new(coding);
            let content: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(..)).collect();
            encoder.take(content.into());
            while let Some(bytes) = encoder.next_output().unwrap() {
                assert!(
                    bytes.len() < FLUSH_BYTES + 2 * OUTPUT_BYTES,
                    "{coding:?} {}",
                    bytes.len()
                );
            }
        }
    }
}
