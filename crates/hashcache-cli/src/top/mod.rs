//! `hashcache top`: the figures of a running proxy in a terminal.
//!
//! Called by `main`. A thread requests the figures from the admin listener every two seconds;
//! `screen` draws. Another thread waits for signals: `event::poll` never returns after the terminal
//! is gone.
//!
//! Invariant: the terminal is restored to the earlier state, also after a panic, when the proxy is
//! gone, and when a signal stops the program.

mod screen;

use std::io::{IsTerminal as _, stdout};
use std::net::SocketAddr;
use std::process::{self, ExitCode};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::screen::{Shown, draw};
use crate::admin_client::{AdminArgs, view};
use crate::output::say;

/// Arguments for `hashcache top`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Keys: q, Esc or Ctrl-C ends. So do the signals TERM, HUP and INT. It also ends when the proxy has
not answered for 30 seconds.
Exit status: 0 done, 2 failed.")]
pub struct TopArgs {
    /// Print the figures once, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: AdminArgs,
}

/// The proxy and the token.
#[derive(Clone, Debug)]
struct Watched {
    admin: SocketAddr,
    token: Option<String>,
}

impl Watched {
    fn new(args: &TopArgs, environment: &Environment) -> anyhow::Result<Self> {
        let proxy = args.proxy.listener(environment)?;
        Ok(Self {
            admin: proxy.address,
            token: proxy.token_to_send()?,
        })
    }

    fn view(&self) -> anyhow::Result<Value> {
        let text = view(self.admin, "/-/view", self.token.as_deref())?;
        serde_json::from_str(&text).context("the answer is no JSON")
    }
}

/// Shows the figures until a key or a signal stops the program, or the proxy is gone.
pub fn run(args: &TopArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = Watched::new(args, environment)?;
    // Before the screen is taken: an error must be readable.
    let first = proxy.view()?;
    if args.json {
        say(&format!("{first:#}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    if !stdout().is_terminal() {
        let fault = Fault::new("standard output is not a terminal");
        return Err(fault.hint("`--json` prints the figures once").into());
    }
    let shown = Shown::new(proxy.admin.to_string(), first);
    let views = ask_again(proxy)?;
    end_with_signals()?;
    // Restores the terminal if this program panics.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = watch(&mut terminal, &views, shown);
    ratatui::restore();
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// A thread requests the figures every two seconds: a proxy that hangs must not prevent the program
/// from stopping.
fn ask_again(proxy: Watched) -> anyhow::Result<Receiver<anyhow::Result<Value>>> {
    let (sender, views) = mpsc::sync_channel(1);
    let asking = move || {
        loop {
            thread::sleep(EVERY);
            if sender.send(proxy.view()).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("top".to_owned());
    thread.spawn(asking).context("cannot start a thread")?;
    Ok(views)
}

/// Restores the terminal and stops the program on a signal.
fn end_with_signals() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT]).context("cannot handle signals")?;
    let waiting = move || {
        if signals.forever().next().is_some() {
            // Fails if the terminal is gone.
            let _ = ratatui::try_restore();
            process::exit(0);
        }
    };
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(waiting).context("cannot start a thread")?;
    Ok(())
}

/// # Errors
/// The terminal fails, or the proxy has not answered for [`GONE`].
fn watch(
    terminal: &mut DefaultTerminal,
    views: &Receiver<anyhow::Result<Value>>,
    mut shown: Shown,
) -> anyhow::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a terminal shows the present")]
    let now = Instant::now;
    let (mut answered, mut failure) = (now(), None);
    loop {
        terminal.draw(|frame| draw(frame, &shown))?;
        if event::poll(KEYS)? && is_end(&event::read()?) {
            return Ok(());
        }
        match views.try_recv() {
            Ok(Ok(view)) => {
                answered = now();
                shown.update(view);
            }
            Ok(Err(error)) => {
                shown.fail(&error);
                failure = Some(error);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => anyhow::bail!("the figures are not asked for"),
        }
        if now() - answered >= GONE {
            let hangs = || Fault::new("the proxy does not answer").into();
            return Err(failure.unwrap_or_else(hangs));
        }
    }
}

fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else {
        return false;
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => is_control,
            _ => false,
        }
}

const EVERY: Duration = Duration::from_secs(2);
/// Interval at which the program checks for new figures and keys.
const KEYS: Duration = Duration::from_millis(250);
/// A proxy that has not answered for this time is gone. A restart takes less.
const GONE: Duration = Duration::from_secs(30);
