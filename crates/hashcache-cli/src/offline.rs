//! `hashcache offline`: shows or sets if a running proxy regards the line to the Internet as down.
//!
//! Called by `main`. Sends a GET to the admin listener, or a POST if a mode is given.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use hashcache_proxy::Offline;
use hashcache_settings::Environment;
use serde_json::{Value, json};

use crate::admin_client::{AdminArgs, refusal, view};
use crate::output::say;

/// Arguments for `hashcache offline`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "While the line counts as down, nothing is sent to the Internet: stored pages are \
    served,\nalso stale ones unless their site forbids that, and other requests get a page that \
    says so.\nThe mode holds until the next one, or until the proxy is started again; then that of \
    the\nconfiguration holds.\nExit status: 0 done, 2 failed."
)]
pub struct OfflineArgs {
    /// on: the line is down. off: it is up. auto: it is down while sites that were reached before
    /// cannot be reached. Without a mode, the state is shown
    #[arg(value_name = "MODE", value_parser = modes())]
    mode: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: AdminArgs,
}

fn modes() -> PossibleValuesParser {
    PossibleValuesParser::new(Offline::WORDS.map(|(word, _)| word))
}

/// Shows or changes the state.
pub fn run(args: &OfflineArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = args.proxy.listener(environment)?;
    let answer = match &args.mode {
        None => view(proxy.address, PATH, None)?,
        Some(mode) => match proxy.change(PATH, &json!({ "mode": mode }).to_string())? {
            (200, answer) => answer,
            (status, answer) => return Err(refusal(status, &answer).into()),
        },
    };
    let state: Value = serde_json::from_str(&answer).context("the answer is no JSON")?;
    let text = if args.json {
        format!("{state}\n")
    } else {
        told(&state)
    };
    say(&text);
    Ok(ExitCode::SUCCESS)
}

/// Formats the state as text.
fn told(state: &Value) -> String {
    let mode = state["mode"].as_str().unwrap_or_default();
    let line = match state["offline"].as_bool() {
        Some(true) => "offline: the line counts as down",
        _ => "online: the line counts as up",
    };
    format!("{line} (mode {mode})\n")
}

const PATH: &str = "/-/offline";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_told_in_words() {
        let state = json!({ "mode": "auto", "offline": true });
        assert_eq!(
            told(&state),
            "offline: the line counts as down (mode auto)\n"
        );
        let state = json!({ "mode": "off", "offline": false });
        assert_eq!(told(&state), "online: the line counts as up (mode off)\n");
    }
}
