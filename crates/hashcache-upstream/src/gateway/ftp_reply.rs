//! Replies from an FTP server (RFC 959, section 4.2): one line, or several lines of which the first
//! and the last have the same code.
//!
//! Called by `ftp` with each line in turn; the fuzz target `ftp_reply` reads only this file.
//!
//! Invariants: no input panics. If a reply has several lines, only the last line is kept. An
//! address that a server names for a data connection is read and thrown away.
//! Cost: a copy of the last line.

use hashcache_http::UnixTime;

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// 100 to 599.
    pub(crate) code: u16,
    /// The last line after the code, without the line end.
    pub(crate) text: Vec<u8>,
}

/// The bytes are not an FTP reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAReply;

/// Reads the lines in a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    /// The code of a reply, if more lines follow.
    open: Option<u16>,
    lines: usize,
}

impl ReplyReader {
    /// Takes a line without the line end; returns a reply if this was the last line.
    ///
    /// # Errors
    /// The line does not start with a code, or the reply has more than [`LINES_MAX`] lines.
    pub(crate) fn take(&mut self, line: &[u8]) -> Result<Option<Reply>, NotAReply> {
        self.lines += 1;
        if self.lines > LINES_MAX {
            return Err(NotAReply);
        }
        let head = code_of(line);
        let Some(open) = self.open else {
            let (code, ends) = head.ok_or(NotAReply)?;
            if !ends {
                self.open = Some(code);
                return Ok(None);
            }
            return Ok(Some(reply(code, line)));
        };
        // Lines between the first and the last line may contain anything.
        match head {
            Some((code, true)) if code == open => Ok(Some(reply(code, line))),
            _ => Ok(None),
        }
    }
}

fn reply(code: u16, line: &[u8]) -> Reply {
    let text = line.get(4..).unwrap_or_default().to_vec();
    Reply { code, text }
}

/// Returns the code of a line, and true if the line is the last line of a reply.
fn code_of(line: &[u8]) -> Option<(u16, bool)> {
    let &[a @ b'1'..=b'5', b, c, ref rest @ ..] = line else {
        return None;
    };
    if !b.is_ascii_digit() || !c.is_ascii_digit() {
        return None;
    }
    let code = [a, b, c]
        .iter()
        .fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    match rest.first() {
        None | Some(b' ') => Some((code, true)),
        Some(b'-') => Some((code, false)),
        Some(_) => None,
    }
}

impl Reply {
    /// Returns true if the server has executed the command.
    pub(crate) fn is_done(&self) -> bool {
        self.code / 100 == 2
    }

    /// Returns true if a transfer starts; another reply follows at the end of the transfer.
    pub(crate) fn is_begun(&self) -> bool {
        self.code / 100 == 1
    }

    /// Returns the number in a reply to SIZE.
    pub(crate) fn size(&self) -> Option<u64> {
        let digits = self.text.trim_ascii();
        let is_number = !digits.is_empty() && digits.len() <= 18;
        if self.code != 213 || !is_number || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let append = |n: u64, digit: &u8| n * 10 + u64::from(digit - b'0');
        Some(digits.iter().fold(0, append))
    }

    /// Returns the time in a reply to MDTM: `YYYYMMDDhhmmss` in UTC (RFC 3659, section 2.3).
    pub(crate) fn modified(&self) -> Option<UnixTime> {
        match self.code {
            213 => time_value(self.text.trim_ascii()),
            _ => None,
        }
    }

    /// Returns the port in a reply to EPSV: `(|||6446|)` with any delimiter (RFC 2428, section 3).
    pub(crate) fn extended_port(&self) -> Option<u16> {
        let open = self.text.iter().position(|&byte| byte == b'(')?;
        let inside = &self.text[open + 1..];
        let &delimiter = inside.first().filter(|byte| !byte.is_ascii_digit())?;
        let mut parts = inside.split(|&byte| byte == delimiter);
        let [a, _protocol, _address, port] = [(); 4].map(|()| parts.next());
        match a? {
            [] => number(port?).filter(|port| *port > 0),
            _ => None,
        }
    }

    /// Returns the port in a reply to PASV: the last two of six numbers, `h1,h2,h3,h4,p1,p2`.
    pub(crate) fn port(&self) -> Option<u16> {
        // Some servers leave out the parentheses.
        let first = self.text.iter().position(u8::is_ascii_digit)?;
        let is_end = |byte: &u8| !byte.is_ascii_digit() && *byte != b',' && *byte != b' ';
        let numbers = &self.text[first..];
        let end = numbers.iter().position(is_end).unwrap_or(numbers.len());
        let mut values = numbers[..end].split(|&byte| byte == b',');
        let six = [(); 6].map(|()| values.next().and_then(|value| number(value.trim_ascii())));
        if values.next().is_some() || !six.iter().all(|it| it.is_some_and(|it| it < 256)) {
            return None;
        }
        let [.., high, low] = six;
        Some(high? * 256 + low?).filter(|port| *port > 0)
    }
}

/// Parses a number with at most five digits.
fn number(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a time in the RFC 3659 format, section 2.3; second fractions are ignored.
pub(crate) fn time_value(text: &[u8]) -> Option<UnixTime> {
    let (date, fraction) = text.split_at_checked(14)?;
    if !date.iter().all(u8::is_ascii_digit) || !matches!(fraction, [] | [b'.', ..]) {
        return None;
    }
    let part = |from: usize, to: usize| number(&date[from..to]).map(u64::from);
    let clock = [part(8, 10)?, part(10, 12)?, part(12, 14)?];
    UnixTime::of_utc([part(0, 4)?, part(4, 6)?, part(6, 8)?], clock)
}

/// Maximum number of lines in a reply; greetings can be long.
const LINES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Reply {
        let taken = ReplyReader::default().take(line.as_bytes());
        taken.unwrap().unwrap()
    }

    #[test]
    fn a_reply_ends_with_its_own_code_and_a_space() {
        let mut reader = ReplyReader::default();
        for line in ["220-Welcome", "", "220x", "221 no", " 220 no", "220-more"] {
            assert_eq!(reader.take(line.as_bytes()), Ok(None), "{line}");
        }
        let ended = reader.take(b"220 ready").unwrap().unwrap();
        assert_eq!((ended.code, &ended.text[..]), (220, &b"ready"[..]));
        assert_eq!(one("226").code, 226);
        for line in [
            "",
            "22",
            "HTTP/1.1 200 OK",
            "600 x",
            "099 x",
            "220x",
            "2 20",
        ] {
            let taken = ReplyReader::default().take(line.as_bytes());
            assert_eq!(taken, Err(NotAReply), "{line}");
        }
    }

    #[test]
    fn a_reply_without_an_end_is_given_up() {
        let mut reader = ReplyReader::default();
        let lines = std::iter::repeat_n(b"220-", LINES_MAX);
        assert!(lines.map(|line| reader.take(line)).all(|it| it == Ok(None)));
        assert_eq!(reader.take(b"220-"), Err(NotAReply));
    }

    #[test]
    fn ports_are_read_in_both_spellings() {
        let port = |line: &str| one(line).port();
        assert_eq!(port("227 Entering Passive Mode (10,0,0,1,4,1)"), Some(1025));
        assert_eq!(port("227 =10,0,0,1, 255, 255"), Some(65535));
        assert_eq!(port("227 Mode (10,0,0,1,256,1)"), None);
        assert_eq!(port("227 Mode (10,0,0,1,0,0)"), None);
        assert_eq!(port("227 Mode (10,0,0,4,1)"), None);
        assert_eq!(port("227 Mode (1,10,0,0,1,4,1)"), None);
        let port = |line: &str| one(line).extended_port();
        assert_eq!(port("229 Extended (|||6446|)"), Some(6446));
        assert_eq!(port("229 Extended (!1!10.0.0.1!6446!)"), Some(6446));
        assert_eq!(port("229 Extended (|||66446|)"), None);
        assert_eq!(port("229 Extended (|||0|)"), None);
        assert_eq!(port("229 Extended (64460)"), None);
        assert_eq!(port("229 Extended ("), None);
    }

    #[test]
    fn sizes_and_times_are_read() {
        assert_eq!(one("213 1048576").size(), Some(1 << 20));
        assert_eq!(one("213 9999999999999999999").size(), None);
        assert_eq!(one("213 -1").size(), None);
        assert_eq!(one("250 5").size(), None);
        let time = |line: &str| one(line).modified().map(|time| time.0);
        assert_eq!(time("213 19700102000001"), Some(86_401));
        assert_eq!(time("213 19980615100045.014"), Some(897_904_845));
        assert_eq!(time("213 19981315100045"), None);
        assert_eq!(time("213 1998061510004"), None);
        assert_eq!(time("213 19980615100045x"), None);
    }
}
