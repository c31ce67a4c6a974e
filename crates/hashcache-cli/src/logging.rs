//! Logging: lines on standard error, selected by `RUST_LOG`.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt as _;

use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;

/// The variable that selects the lines, as in most Rust programs.
const RUST_LOG: &str = "RUST_LOG";
/// The variable that disables colours, with any value (no-color.org).
const NO_COLOR: &str = "NO_COLOR";
/// The HTTP/2 crate below hyper.
const H2: &str = "h2";

/// Starts logging. Call it once, before any code logs.
pub fn start(environment: &Environment) -> Result<(), Fault> {
    let filter = filter(environment.variable(RUST_LOG).unwrap_or_default())?;
    let has_colours = stderr().is_terminal() && environment.variable(NO_COLOR).is_none();
    let lines = layer()
        .with_writer(stderr)
        .with_ansi(has_colours)
        .with_target(false);
    registry().with(lines).with(filter).init();
    Ok(())
}

/// Builds the filter: lines at level *info* and above, unless `text` has directives.
///
/// `EnvFilter` could also select lines by the spans around them. But our crates have no spans, and
/// `EnvFilter` depends on regular expressions for span fields.
fn filter(text: &str) -> Result<Targets, Fault> {
    let directives: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|directive| !directive.is_empty())
        .collect();
    if directives.is_empty() {
        return Ok(without_h2(Targets::new().with_default(LevelFilter::INFO)));
    }
    if text.contains('[') {
        return Err(unreadable("lines cannot be selected by spans or fields"));
    }
    let filter: Targets = directives
        .join(",")
        .parse()
        .map_err(|error: ParseError| unreadable(&error.to_string()))?;
    let names_h2 = filter
        .iter()
        .any(|(target, _)| target == H2 || target.starts_with("h2::"));
    Ok(if names_h2 { filter } else { without_h2(filter) })
}

/// Silences the crate h2: it warns about every client protocol error, so clients could cause
/// arbitrarily many lines.
fn without_h2(filter: Targets) -> Targets {
    filter.with_target(H2, LevelFilter::OFF)
}

fn unreadable(reason: &str) -> Fault {
    Fault::new(format!("{RUST_LOG}: {reason}"))
        .hint("write it as `debug` or `hashcache=trace,info`")
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn lines_of_level_info_are_written_when_nobody_says_anything() {
        for text in ["", " ", ","] {
            let filter = filter(text).unwrap();
            assert!(filter.would_enable("hashcache", &Level::INFO), "{text:?}");
            assert!(!filter.would_enable("hashcache", &Level::DEBUG), "{text:?}");
        }
        let all = filter("debug").unwrap();
        assert!(all.would_enable("hashcache", &Level::DEBUG));
        assert!(!all.would_enable("hashcache", &Level::TRACE));
    }

    #[test]
    fn a_crate_or_a_module_has_the_level_that_is_written_for_it() {
        let filter = filter("hashcache_proxy::fetch=trace, hashcache_wan=OFF ,info").unwrap();
        for (target, level, is_logged) in [
            ("hashcache_proxy::fetch::ask", Level::TRACE, true),
            ("hashcache_proxy::worker", Level::INFO, true),
            ("hashcache_proxy::worker", Level::DEBUG, false),
            ("hashcache_wan::chunk", Level::ERROR, false),
            ("rustls", Level::INFO, true),
        ] {
            let found = filter.would_enable(target, &level);
            assert_eq!(found, is_logged, "{target} {level}");
        }
    }

    #[test]
    fn the_library_below_http_2_is_heard_only_if_it_is_named() {
        let is_heard = |text| {
            let filter = filter(text).unwrap();
            filter.would_enable("h2::codec", &Level::ERROR)
        };
        assert!(!is_heard(""));
        assert!(!is_heard("debug"));
        assert!(is_heard("h2=trace,info"));
        assert!(is_heard("h2"));
        assert!(is_heard("info,h2::codec=warn"));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused() {
        for text in [
            "hashcache=loud",
            "a=b=info",
            "[request{url=x}]=debug",
            "a[b]",
        ] {
            let fault = filter(text).unwrap_err();
            assert!(fault.what.starts_with("RUST_LOG: "), "{text}: {fault}");
        }
    }
}
