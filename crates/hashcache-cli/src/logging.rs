//! Logging: lines on standard error, selected by `RUST_LOG`.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::fault::Fault;
use crate::settings::Environment;

/// The variable that selects the lines, as in most Rust programs.
const RUST_LOG: &str = "RUST_LOG";
/// The variable that disables colours, whatever its value (no-color.org).
const NO_COLOR: &str = "NO_COLOR";

/// Starts logging. Call it once, before any code logs.
pub fn start(environment: &Environment) -> Result<(), Fault> {
    let filter = filter(environment.variable(RUST_LOG).unwrap_or_default())?;
    let has_colours = stderr().is_terminal() && environment.variable(NO_COLOR).is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(has_colours)
        .with_target(false)
        .init();
    Ok(())
}

/// Lines of level *info* and above, unless `text` says otherwise.
fn filter(text: &str) -> Result<EnvFilter, Fault> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(text)
        .map_err(|error| {
            Fault::new(format!("{RUST_LOG}: {error}"))
                .hint("write it as `debug` or `hashcache_proxy=trace,info`")
        })?;
    if text.contains("h2=") {
        return Ok(filter);
    }
    // The crate h2 warns about every protocol error of a client; clients can cause as many as they
    // like.
    Ok(filter.add_directive("h2=off".parse().expect("a target and a level")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_level_info_are_written_when_nobody_says_anything() {
        assert_eq!(
            filter("").unwrap().max_level_hint(),
            Some(LevelFilter::INFO)
        );
        assert_eq!(
            filter("debug").unwrap().max_level_hint(),
            Some(LevelFilter::DEBUG)
        );
    }

    #[test]
    fn the_library_below_http_2_is_heard_only_if_it_is_named() {
        let shown = |text| filter(text).unwrap().to_string();
        assert!(shown("debug").contains("h2=off"));
        assert!(!shown("h2=trace,info").contains("h2=off"));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused() {
        let fault = filter("hashcache=loud").unwrap_err();
        assert!(fault.what.starts_with("RUST_LOG: "), "{fault}");
    }
}
