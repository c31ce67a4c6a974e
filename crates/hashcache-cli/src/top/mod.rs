//! `hashcache top`: the figures of a running proxy in a terminal.
//!
//! Called by `main`. Asks the admin listener every two seconds; `screen` draws.
//!
//! Invariant: the terminal is left as it was found, also after a panic.

mod screen;

use std::io::{IsTerminal as _, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;

use self::screen::{Shown, draw};
use crate::admin_client::{AdminArgs, AdminClient};
use crate::fault::Fault;
use crate::output::say;
use crate::settings::Environment;

/// Arguments of `hashcache top`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Keys: q, Esc or Ctrl-C ends.\nExit status: 0 done, 2 failed.")]
pub struct TopArgs {
    /// Print the figures once, as JSON
    #[arg(long)]
    json: bool,
    /// The proxy to ask.
    #[command(flatten)]
    proxy: AdminArgs,
}

/// Shows the figures until a key ends it.
pub fn run(args: &TopArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let client = AdminClient::new(&args.proxy, environment)?;
    // Before the screen is taken: an error must be readable.
    let first = view(&client)?;
    if args.json {
        say(&format!("{first:#}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    if !stdout().is_terminal() {
        let fault = Fault::new("standard output is not a terminal");
        return Err(fault.hint("`--json` prints the figures once").into());
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = watch(&mut terminal, &client, first);
    ratatui::restore();
    ended?;
    Ok(ExitCode::SUCCESS)
}

fn view(client: &AdminClient) -> anyhow::Result<Value> {
    let text = client.get("/-/view")?;
    serde_json::from_str(&text).context("the answer is no JSON")
}

fn watch(terminal: &mut DefaultTerminal, client: &AdminClient, first: Value) -> anyhow::Result<()> {
    let mut shown = Shown::new(client.address().to_string(), first);
    #[expect(clippy::disallowed_methods, reason = "a terminal shows the present")]
    let now = Instant::now;
    let mut asked = now();
    loop {
        terminal.draw(|frame| draw(frame, &shown))?;
        let rest = EVERY.saturating_sub(now() - asked);
        if event::poll(rest)? {
            if is_end(&event::read()?) {
                return Ok(());
            }
            continue;
        }
        asked = now();
        match view(client) {
            Ok(view) => shown.update(view),
            Err(error) => shown.fail(&error),
        }
    }
}

fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else {
        return false;
    };
    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => is_interrupt,
            _ => false,
        }
}

const EVERY: Duration = Duration::from_secs(2);
