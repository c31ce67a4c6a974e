//! The chunked coding of a response (RFC 9112, section 7.1).
//!
//! Called by `content` with the bytes read. Sizes and line ends must be exact, because they decide
//! where the next response starts; extensions are not used, so they are skipped whatever they
//! contain.
//!
//! Invariant: the content is complete after the last chunk and the trailer section, or there is an
//! error.
//! Cost: chunk data is not copied; everything else is a match per byte.

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;

/// The position in a chunked body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    place: Place,
    /// Bytes of the current chunk that are still missing.
    left: u64,
    /// Extension bytes so far; each content byte cancels one.
    extension: usize,
    /// The trailer section so far.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the first size digit.
    #[default]
    Begin,
    Size,
    /// After blanks behind a size.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// At the first byte of a trailer section line.
    TrailerLine,
    Trailer,
    EndLf,
    End,
}

impl Chunks {
    /// Returns true if the content and the trailers were returned.
    pub(super) fn is_complete(&self) -> bool {
        self.place == Place::End && self.trailers.is_empty()
    }

    /// Takes the next frame from `read`; `None`: more must be read, or the content is complete.
    ///
    /// # Errors
    /// The coding is damaged, or has more bytes beside the content than a reader has to accept.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Damaged> {
        self.skip_framing(read)?;
        if self.place == Place::End && !self.trailers.is_empty() {
            let trailers = parse_trailers(&std::mem::take(&mut self.trailers))?;
            return Ok(Some(Frame::trailers(trailers)));
        }
        if self.place != Place::Data || read.is_empty() {
            return Ok(None);
        }
        let here = usize::try_from(self.left).map_or(read.len(), |left| left.min(read.len()));
        let data = read.split_to(here).freeze();
        self.left -= here as u64;
        self.extension = self.extension.saturating_sub(here);
        if self.left == 0 {
            self.place = Place::DataCr;
            // If the end has arrived with the last data, the reader learns about the end together
            // with the data. Damage is found again on the next call.
            let _ = self.skip_framing(read);
        }
        Ok(Some(Frame::data(data)))
    }

    /// Skips to the next data, or to the end.
    fn skip_framing(&mut self, read: &mut BytesMut) -> Result<(), Damaged> {
        while let Some(&byte) = read.first()
            && !matches!(self.place, Place::Data | Place::End)
        {
            self.place = self.step(byte)?;
            read.advance(1);
        }
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<Place, Damaged> {
        Ok(match (self.place, byte) {
            (Place::Begin | Place::Size, _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let left = self.left.checked_mul(16);
                self.left = left.ok_or(Damaged)? + u64::from(digit);
                Place::Size
            }
            (Place::Size | Place::Blank, b' ' | b'\t') => self.extend(Place::Blank)?,
            (Place::Size | Place::Blank, b';') => self.extend(Place::Extension)?,
            (Place::Size | Place::Blank | Place::Extension, b'\r') => Place::SizeLf,
            // A reader that takes a bare LF for the end of the line would find another size.
            (Place::Extension, b'\n') => return Err(Damaged),
            (Place::Extension, _) => self.extend(Place::Extension)?,
            (Place::SizeLf, b'\n') if self.left == 0 => Place::TrailerLine,
            (Place::SizeLf, b'\n') => Place::Data,
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::Begin,
            (Place::TrailerLine, b'\r') => Place::EndLf,
            (Place::TrailerLine | Place::Trailer, _) => {
                // Another reader would take a bare LF for the end of a line.
                let is_behind_cr = self.trailers.last() == Some(&b'\r');
                if self.trailers.len() == TRAILER_BYTES || is_behind_cr != (byte == b'\n') {
                    return Err(Damaged);
                }
                self.trailers.push(byte);
                match byte {
                    b'\n' => Place::TrailerLine,
                    _ => Place::Trailer,
                }
            }
            (Place::EndLf, b'\n') => Place::End,
            _ => return Err(Damaged),
        })
    }

    fn extend(&mut self, place: Place) -> Result<Place, Damaged> {
        self.extension += 1;
        match self.extension {
            ..=EXTENSION_BYTES => Ok(place),
            _ => Err(Damaged),
        }
    }
}

/// The coding is damaged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged;

fn parse_trailers(lines: &[u8]) -> Result<HeaderMap, Damaged> {
    let mut whole = lines.to_vec();
    whole.extend_from_slice(b"\r\n");
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS];
    let parsed = httparse::parse_headers(&whole, &mut fields);
    let Ok(httparse::Status::Complete((_, fields))) = parsed else {
        return Err(Damaged);
    };
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Damaged)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| Damaged)?;
        map.append(name, value);
    }
    Ok(map)
}

/// Maximum number of extension bytes beyond the number of content bytes.
const EXTENSION_BYTES: usize = 16 << 10;
/// Maximum number of bytes in a trailer section.
const TRAILER_BYTES: usize = 16 << 10;
/// Maximum number of fields in a trailer section.
const TRAILER_FIELDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// The content, the trailers and the rest of `coded`, which arrives in parts of `step` bytes.
    fn decoded(coded: &[u8], step: usize) -> (Vec<u8>, HeaderMap, Vec<u8>) {
        let (mut chunks, mut read) = (Chunks::default(), BytesMut::new());
        let (mut content, mut trailers) = (Vec::new(), HeaderMap::new());
        for part in coded.chunks(step) {
            read.extend_from_slice(part);
            while let Some(frame) = chunks.next(&mut read).unwrap() {
                match frame.into_data() {
                    Ok(data) => content.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().unwrap(),
                }
            }
        }
        assert!(chunks.is_complete(), "{coded:?} in parts of {step}");
        (content, trailers, read.to_vec())
    }

    #[test]
    fn content_and_trailers_are_found_however_the_coding_is_cut() {
        let coded = b"3\r\nabc\r\n0A ;x=\"y\"\r\n0123456789\r\n000\r\nA: b\r\nC:\r\n\r\nHTTP/1.1";
        for step in 1..=coded.len() {
            let (content, trailers, rest) = decoded(coded, step);
            assert_eq!(content, b"abc0123456789");
            assert_eq!(
                (trailers["a"].as_bytes(), trailers["c"].as_bytes()),
                (&b"b"[..], &b""[..])
            );
            assert_eq!(rest, b"HTTP/1.1");
        }
        assert_eq!(decoded(b"0\r\n\r\n", 5).0, b"");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_damaged() {
        for coded in [
            &b"\r\n"[..],
            b"x\r\n",
            b" 1\r\na",
            b"-1\r\na",
            b"1\na\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\n0\r\n\r\n",
            b"1;\n0\r\n",
            b"1 x\r\na",
            b"0\r\n\rx",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\n a: b\r\n\r\n",
            b"0\r\n\nX: y\r\n\r\n",
            b"0\r\nX: y\nZ: z\r\n\r\n",
            b"0\r\nX: y\rZ: z\r\n\r\n",
            b"11111111111111111\r\n",
            b"1;\r\r",
        ] {
            let (mut chunks, mut read) = (Chunks::default(), BytesMut::from(coded));
            let outcome = loop {
                match chunks.next(&mut read) {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(damaged) => break Some(damaged),
                }
            };
            assert_eq!(
                outcome,
                Some(Damaged),
                "{:?}",
                String::from_utf8_lossy(coded)
            );
        }
    }

    #[test]
    fn what_stands_beside_the_content_has_a_limit() {
        let endless = [b'x'; 2 << 10];
        let extended = [b"1;", &[b'x'; 100][..], b"\r\na\r\n"].concat();
        for (begun, more) in [
            (&b"1;"[..], &endless[..]),
            (b"0\r\nx: ", &endless),
            (b"", &extended),
        ] {
            let (mut chunks, mut read) = (Chunks::default(), BytesMut::from(begun));
            let mut taken = 0;
            while chunks.next(&mut read).is_ok() {
                read.extend_from_slice(more);
                taken += more.len();
                assert!(taken < 40 << 10);
            }
        }
    }
}
