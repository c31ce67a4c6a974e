//! What every subcommand writes, and how it ends.

use std::io::Write as _;

/// Exit status when the data is not well.
pub const NOT_WELL: u8 = 1;

/// Writes to standard output at once; that nobody reads it is no reason to die of it.
pub fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
}

/// Writes to standard error; that it is closed is no reason to die of it, as `eprint!` would.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
