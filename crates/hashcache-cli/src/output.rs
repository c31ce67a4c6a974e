//! Output and exit status of all subcommands.

use std::io::Write as _;

/// Exit status when the data has faults.
pub const NOT_WELL: u8 = 1;

/// Writes to standard output and flushes; a closed pipe is not a reason to panic.
pub fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
}

/// Writes to standard error; unlike `eprint!` it does not panic if standard error is closed.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
