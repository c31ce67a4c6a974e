//! Lines and records of a trace, as bytes, one at a time.
//!
//! Lines end at a line feed only, and a carriage return before it belongs to the line end. Empty
//! lines are counted and passed over.
//!
//! Invariant: at most [`LINE_BYTES_MAX`] bytes are kept, and no line is kept longer than until the
//! next one is asked for.

use std::io::{self, BufRead, Read as _};

use super::{LINE_BYTES_MAX, Reason};

/// One line, or the reason for which it is not kept.
pub struct Line<'a> {
    /// From 1.
    pub number: u64,
    /// Without the line end.
    pub bytes: Result<&'a [u8], Reason>,
}

/// See the module's head.
pub struct Lines {
    input: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// The lines of `input`.
    pub fn new(input: Box<dyn BufRead + Send>) -> Self {
        Self {
            input,
            line: Vec::new(),
            number: 0,
        }
    }

    /// What has not been read yet.
    pub fn into_input(self) -> Box<dyn BufRead + Send> {
        self.input
    }

    /// The next line; `None` at the end.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            self.line.clear();
            let most = LINE_BYTES_MAX as u64 + 1;
            let input = &mut self.input;
            if input.take(most).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.len() > LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
                self.input.skip_until(b'\n')?;
                return Ok(Some(self.kept(Err(Reason::TooLong))));
            }
            for end in [b'\n', b'\r'] {
                if self.line.last() == Some(&end) {
                    self.line.pop();
                }
            }
            if !self.line.is_empty() {
                break;
            }
        }
        Ok(Some(self.kept(Ok(()))))
    }

    /// The next `bytes` bytes; `None` at the end. Numbers count records.
    pub fn next_record(&mut self, bytes: usize) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let input = &mut self.input;
        let found = input.take(bytes as u64).read_to_end(&mut self.line)?;
        if found == 0 {
            return Ok(None);
        }
        self.number += 1;
        let whole = if found == bytes {
            Ok(())
        } else {
            Err(Reason::Cut)
        };
        Ok(Some(self.kept(whole)))
    }

    fn kept(&self, whole: Result<(), Reason>) -> Line<'_> {
        Line {
            number: self.number,
            bytes: whole.map(|()| &self.line[..]),
        }
    }
}
