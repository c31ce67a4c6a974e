//! A message head, split into lines and fields, and a list of everything doubtful in it.
//!
//! `reader` uses it for requests and responses. This module deliberately shares no code with the
//! proxy, because the tests use it to check that messages written by the proxy are unambiguous.

/// A start line and fields, as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// All bytes up to and including the empty line.
    pub raw: Vec<u8>,
    /// The start line without CRLF.
    pub start_line: String,
    /// Names as received, values without surrounding whitespace.
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// Returns the value of the first field with this name; case is ignored.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields_named(name).next()
    }

    /// Returns the values of all fields with this name, in order.
    pub fn fields_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let named = self
            .fields
            .iter()
            .filter(move |field| field.0.eq_ignore_ascii_case(name));
        named.map(|field| field.1.as_str())
    }

    /// Splits `raw`, which must end with an empty line, and records everything malformed.
    pub(crate) fn parse(raw: &[u8], complaints: &mut Vec<String>) -> Self {
        // Latin-1, so that every byte is a character and none is lost.
        let text: String = raw.iter().map(|&byte| char::from(byte)).collect();
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let start_line = lines.next().unwrap_or_default().to_owned();
        let mut fields = Vec::new();
        for line in lines {
            if line.starts_with([' ', '\t']) {
                complaints.push(format!("folded line {line:?}"));
            } else if let Some((name, value)) = line.split_once(':') {
                if name.is_empty() || !name.chars().all(is_token) {
                    complaints.push(format!("field name {name:?}"));
                }
                fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
            } else {
                complaints.push(format!("line without a colon {line:?}"));
            }
        }
        if text
            .replace("\r\n", "")
            .contains(|c: char| c.is_ascii_control() && c != '\t')
        {
            complaints.push(format!("control character in {text:?}"));
        }
        Self {
            raw: raw.to_vec(),
            start_line,
            fields,
        }
    }

    /// Returns the body framing. If the framing is doubtful, records a complaint and follows RFC
    /// 9112, section 6.3.
    pub(crate) fn framing(&self, complaints: &mut Vec<String>) -> Option<Framing> {
        let lengths: Vec<_> = self.fields_named("Content-Length").collect();
        let codings: Vec<_> = self.fields_named("Transfer-Encoding").collect();
        if lengths.len() > 1 || codings.len() > 1 || !(lengths.is_empty() || codings.is_empty()) {
            complaints.push(format!(
                "framed twice: length {lengths:?}, coding {codings:?}"
            ));
        }
        if let Some(coding) = codings.first() {
            if !coding.eq_ignore_ascii_case("chunked") {
                complaints.push(format!("transfer coding {coding:?}"));
            }
            return Some(Framing::Chunked);
        }
        let length = lengths.first()?;
        let digits = !length.is_empty() && length.chars().all(|c| c.is_ascii_digit());
        match length.parse() {
            Ok(length) if digits => Some(Framing::Length(length)),
            _ => {
                complaints.push(format!("length {length:?}"));
                None
            }
        }
    }
}

/// The framing of a body, which determines where the body is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}
