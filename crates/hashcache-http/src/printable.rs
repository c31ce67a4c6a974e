//! Text from clients, origins and files of others, made safe to print on a terminal.

use std::ops::RangeInclusive;

use crate::octets;

/// Makes `text` from clients and origins safe to print: control characters and characters that are
/// invisible on a terminal become `?`.
pub fn printable(text: &str) -> String {
    let is_invisible = |c: char| INVISIBLE.iter().any(|range| range.contains(&c));
    let is_odd = |c: char| c.is_control() || is_invisible(c);
    text.chars()
        .map(|c| if is_odd(c) { '?' } else { c })
        .collect()
}

/// Formats a stored response's URL as [`printable`] text; octets that are not UTF-8 become `%9B`.
pub fn printable_url(url: &str) -> String {
    let octets = octets(url);
    let mut text = String::with_capacity(octets.len());
    for chunk in octets.utf8_chunks() {
        text.push_str(&printable(chunk.valid()));
        let encoded = chunk.invalid().iter().map(|octet| format!("%{octet:02X}"));
        text.extend(encoded);
    }
    text
}

/// Unicode characters that have no width, or change the direction of other characters.
const INVISIBLE: [RangeInclusive<char>; 4] = [
    '\u{61c}'..='\u{61c}',
    '\u{200b}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_not_printed() {
        assert_eq!(printable("\u{1b}[2J\u{9b}1mé\u{202e}\n"), "?[2J?1mé??");
    }

    #[test]
    fn octets_of_a_url_that_are_no_text_are_encoded() {
        let url = crate::octet_text(b"http://a/\x9b31m\xff?\xe2\x80\xae=\xc3\xa9");
        assert_eq!(printable_url(&url), "http://a/%9B31m%FF??=é");
    }
}
