//! Reads messages from a socket by hand.
//!
//! Callers are `origin` and `client`. After a complaint the reader continues if the rest can
//! obviously still be parsed, so that a test sees all faults of a message.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::message::{Framing, Head};

/// Maximum head size; a larger head counts as endless.
const HEAD_MAX: usize = 1 << 20;

/// Reads up to and including an empty line; returns `None` if the input is over before the first
/// byte.
pub(crate) async fn read_head<R: AsyncBufRead + Unpin>(
    input: &mut R,
    complaints: &mut Vec<String>,
) -> io::Result<Option<Head>> {
    let mut raw = Vec::new();
    loop {
        let before = raw.len();
        if input.read_until(b'\n', &mut raw).await? == 0 {
            return if raw.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        let line = &raw[before..];
        if !line.ends_with(b"\r\n") {
            complaints.push(format!("line end of {:?}", line.escape_ascii().to_string()));
        }
        if line == b"\r\n" || line == b"\n" {
            if before > 0 {
                return Ok(Some(Head::parse(&raw, complaints)));
            }
            complaints.push("empty line before a message".to_owned());
            raw.clear();
        }
        if raw.len() > HEAD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "endless head"));
        }
    }
}

/// Reads a body and passes the content to `each`; returns the trailer fields.
///
/// # Errors
/// `UnexpectedEof` if the input is over before the body is; `InvalidData` if the chunked coding is
/// malformed.
pub(crate) async fn read_body<R: AsyncBufRead + Unpin>(
    input: &mut R,
    framing: Framing,
    complaints: &mut Vec<String>,
    mut each: impl FnMut(&[u8]),
) -> io::Result<Vec<(String, String)>> {
    match framing {
        Framing::Length(length) => {
            read_exactly(input, length, &mut each).await?;
            Ok(Vec::new())
        }
        Framing::Chunked => {
            loop {
                let line = read_line(input, complaints).await?;
                let digits = line.split(';').next().unwrap_or_default();
                // Whitespace is accepted only before the semicolon of a chunk extension.
                let digits = if digits.len() < line.len() {
                    digits.trim_end_matches([' ', '\t'])
                } else {
                    digits
                };
                let strict = digits.chars().all(|c| c.is_ascii_hexdigit());
                let size = match u64::from_str_radix(digits, 16) {
                    Ok(size) if strict => size,
                    _ => return Err(complain(complaints, format!("chunk size {line:?}"))),
                };
                if size == 0 {
                    break;
                }
                read_exactly(input, size, &mut each).await?;
                let end = read_line(input, complaints).await?;
                if !end.is_empty() {
                    return Err(complain(complaints, format!("after a chunk {end:?}")));
                }
            }
            let mut trailers = Vec::new();
            loop {
                let line = read_line(input, complaints).await?;
                match line.split_once(':') {
                    _ if line.is_empty() => return Ok(trailers),
                    Some((name, value)) => {
                        trailers.push((name.to_owned(), value.trim().to_owned()));
                    }
                    None => return Err(complain(complaints, format!("trailer {line:?}"))),
                }
            }
        }
    }
}

async fn read_exactly<R: AsyncBufRead + Unpin>(
    input: &mut R,
    length: u64,
    each: &mut impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut left = length;
    while left > 0 {
        let part = input.fill_buf().await?;
        if part.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = usize::try_from(left).map_or(part.len(), |left| left.min(part.len()));
        each(&part[..taken]);
        input.consume(taken);
        left -= taken as u64;
    }
    Ok(())
}

async fn read_line<R: AsyncBufRead + Unpin>(
    input: &mut R,
    complaints: &mut Vec<String>,
) -> io::Result<String> {
    let mut line = Vec::new();
    input
        .take(HEAD_MAX as u64)
        .read_until(b'\n', &mut line)
        .await?;
    if !line.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let Some(line) = line.strip_suffix(b"\r\n") else {
        let line = line.escape_ascii().to_string();
        return Err(complain(complaints, format!("line end of {line:?}")));
    };
    Ok(line.iter().map(|&byte| char::from(byte)).collect())
}

/// Records a complaint after which the reader cannot continue.
fn complain(complaints: &mut Vec<String>, what: String) -> io::Error {
    complaints.push(what);
    io::Error::new(io::ErrorKind::InvalidData, "malformed body")
}
