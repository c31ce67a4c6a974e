//! Ports as values of settings.

use toml::Value;

use super::condition::all_ports;
use super::draft::strings;
use super::ranges::Ranges;

/// Formats ports as text: a number, or a range.
pub fn port_values(ports: &Ranges) -> Value {
    let words = ports.intersection(&all_ports());
    let words = words.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    strings(&words.collect::<Vec<_>>())
}
