//! `hashcache top` in a pseudo terminal: what it shows, and how it leaves the terminal.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};

use crate::Home;
use crate::proxy_process::Proxy;

/// A terminal of 80 columns and 24 rows, and the program in it.
struct Terminal {
    keys: File,
    /// The program's side, kept open to look at its modes.
    side: File,
    output: Receiver<Vec<u8>>,
    shown: Vec<u8>,
    program: Child,
}

impl Terminal {
    fn run(arguments: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let side = File::options()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OFlags::NOCTTY.bits()).unwrap())
            .open(std::ffi::OsString::from_vec(name.into_bytes()))
            .unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_hashcache"))
            .args(arguments)
            .env_clear()
            .env("TERM", "xterm")
            .stdin(side.try_clone().unwrap())
            .stdout(side.try_clone().unwrap())
            .stderr(side.try_clone().unwrap())
            .spawn()
            .unwrap();
        let keys = File::from(ours);
        let mut screen = keys.try_clone().unwrap();
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keys,
            side,
            output,
            shown: Vec::new(),
            program,
        }
    }

    /// Waits until the program has written `text`.
    fn wait_for(&mut self, text: &str) {
        while !self
            .shown
            .windows(text.len())
            .any(|it| it == text.as_bytes())
        {
            let more = self.output.recv_timeout(Duration::from_secs(60));
            let shown = String::from_utf8_lossy(&self.shown);
            let more = more.unwrap_or_else(|_| panic!("no {text:?} in {shown:?}"));
            self.shown.extend_from_slice(&more);
        }
    }

    /// The modes that decide how keys and lines are handled.
    fn modes(&self) -> (LocalModes, OutputModes) {
        let modes = tcgetattr(&self.side).unwrap();
        (modes.local_modes, modes.output_modes)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What ends the program.
#[derive(Clone, Copy, Debug)]
enum End {
    Key(&'static [u8]),
    Signal(Signal),
}

#[test]
fn the_terminal_is_left_as_it_was() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let admin = format!("--admin={}", proxy.admin());
    for end in [
        End::Key(b"q"),
        End::Key(b"\x1b"),
        End::Key(b"\x03"),
        End::Signal(Signal::TERM),
        End::Signal(Signal::HUP),
        End::Signal(Signal::INT),
    ] {
        let mut terminal = Terminal::run(&["top", "--config=/dev/null", &admin]);
        terminal.wait_for("last minute");
        assert!(!terminal.modes().0.contains(LocalModes::ICANON));
        match end {
            End::Key(key) => terminal.keys.write_all(key).unwrap(),
            End::Signal(signal) => {
                let pid = Pid::from_child(&terminal.program);
                kill_process(pid, signal).unwrap();
            }
        }
        assert_eq!(terminal.program.wait().unwrap().code(), Some(0), "{end:?}");
        terminal.wait_for(LEAVE);
        let (local, output) = terminal.modes();
        let usual = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        assert!(local.contains(usual), "{end:?}: {local:?}");
        assert!(output.contains(OutputModes::OPOST), "{end:?}: {output:?}");
    }
}

#[test]
fn it_ends_when_its_terminal_is_closed() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let admin = format!("--admin={}", proxy.admin());
    let mut terminal = Terminal::run(&["top", "--config=/dev/null", &admin]);
    terminal.wait_for("last minute");
    let hold = File::open("/dev/null").unwrap();
    // The thread that reads the screen has the last handle of our side, until the program ends.
    terminal.keys = hold;
    kill_process(Pid::from_child(&terminal.program), Signal::HUP).unwrap();
    assert_eq!(terminal.program.wait().unwrap().code(), Some(0));
}

#[test]
fn a_proxy_that_is_gone_is_told_and_ends_it() {
    let home = Home::new();
    let mut proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let admin = format!("--admin={}", proxy.admin());
    let mut terminal = Terminal::run(&["top", "--config=/dev/null", &admin]);
    terminal.wait_for("last minute");
    let address = proxy.admin();
    proxy.kill_now();
    // Else another test's listener may get the port. Nobody listens at this socket.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.set_reuseaddr(true).unwrap();
    held.bind(address).unwrap();
    terminal.wait_for("cannot ask the proxy at");
    // The program continues for 30 seconds, because a proxy may be started again.
    terminal.wait_for(LEAVE);
    assert_eq!(terminal.program.wait().unwrap().code(), Some(2));
    terminal.wait_for("is it running?");
    let (local, output) = terminal.modes();
    assert!(local.contains(LocalModes::ICANON) && output.contains(OutputModes::OPOST));
}

#[test]
fn without_a_terminal_the_figures_are_printed_as_json_or_not_at_all() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let admin = format!("--admin={}", proxy.admin());
    let outcome = home.hashcache(&["top", &admin], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stderr.contains("`--json` prints"),
        "{}",
        outcome.stderr
    );
    let outcome = home.hashcache(&["top", "--json", &admin], &[]);
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    let view: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(view["store"], "ready");
}

/// The sequence that makes a terminal leave the alternate screen.
const LEAVE: &str = "\x1b[?1049l";
