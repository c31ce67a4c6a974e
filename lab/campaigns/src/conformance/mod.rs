//! `cargo campaign conformance`: the public suite of HTTP caching tests against the proxy, as a
//! forward proxy and in front of an origin.
//!
//! The suite (github.com/http-tests/cache-tests) is not part of this repository: get a checkout
//! with its dependencies (`npm install`) and name it. Its origin and client run under Node.js, the
//! proxy on a port that the system chooses, with an empty cache.
//!
//! With `--through-parent`, the suite runs through our proxy and a parent of it instead: see
//! `parent`.
//!
//! Invariant: a required test may fail only if it is in [`FORBIDDEN`], with the clause that forbids
//! the behaviour it requires, or with `set_cookie = "protect"` in [`PROTECTED`]. A listed test that
//! passes fails the run too, so that the lists stay correct.

mod parent;

use std::collections::HashMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::campaign::Campaign;
use crate::proxy_process::ProxyCommand;
use crate::report::Report;
use parent::ParentKind;

/// Required tests for behaviour that a clause forbids; docs/CONFORMANCE.md has the exchanges.
const FORBIDDEN: [(&str, &str); 1] = [(
    "headers-store-Transfer-Encoding",
    "RFC 9112 6.1: a transfer coding is taken out of the field only by decoding it",
)];

/// Tests, one required and one optimal, that want a response with Set-Cookie stored, which the
/// default setting does only where the origin says that it is for everybody.
const PROTECTED: [(&str, &str); 2] = [
    ("headers-store-Set-Cookie", "set_cookie = \"protect\""),
    ("other-set-cookie", "set_cookie = \"protect\""),
];

/// This share of the optimal tests, in 1/100, must pass: 64 of the 70 open ones. Tests listed in
/// [`PROTECTED`] do not count where they must fail.
const OPTIMAL_PERCENT: usize = 91;

/// Arguments of `conformance`.
#[derive(clap::Args)]
pub struct Args {
    /// Checkout of the suite, with its dependencies installed
    #[arg(long, value_name = "DIR")]
    suite: PathBuf,
    /// Run only the tests whose ids are in this file, one a line, and what they depend on
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
    /// Node.js, 20 or later
    #[arg(long, default_value = "node", value_name = "FILE")]
    node: PathBuf,
    /// The proxy's setting for responses that set cookies
    #[arg(long, value_enum, default_value_t = SetCookie::Protect)]
    set_cookie: SetCookie,
    /// Only through the proxy and such a parent of it: what the parent alone passes may not be lost
    #[arg(long, value_enum, value_name = "PARENT")]
    through_parent: Option<ParentKind>,
}

/// The proxy's `set_cookie`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum SetCookie {
    #[default]
    Protect,
    Rfc,
}

impl SetCookie {
    fn word(self) -> &'static str {
        match self {
            Self::Protect => "protect",
            Self::Rfc => "rfc",
        }
    }

    /// Why a test must fail, if it must.
    fn must_fail(self, id: &str) -> Option<&'static str> {
        let protected = match self {
            Self::Protect => &PROTECTED[..],
            Self::Rfc => &[],
        };
        let mut listed = FORBIDDEN.iter().chain(protected);
        listed
            .find(|(listed, _)| *listed == id)
            .map(|(_, why)| *why)
    }
}

/// How the proxy stands to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    Accelerate,
}

/// Runs the suite in both modes, or through a parent.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let suite = Suite::find(args, campaign.folder())?;
    if let Some(kind) = args.through_parent {
        return parent::run(&suite, kind, campaign);
    }
    for mode in [Mode::Forward, Mode::Accelerate] {
        let origin = suite.origin()?;
        let mut command = suite.proxy(campaign)?;
        if mode == Mode::Accelerate {
            command = command.flag("accelerate", origin.url());
        }
        let mut proxy = command.start()?;
        let outcome = suite.outcome(mode, &origin, &proxy.url())?;
        outcome.judge(&mut campaign.report, mode);
        campaign.check_running(mode.word(), &mut proxy)?;
    }
    Ok(())
}

/// The checkout of the suite, and what all runs of it share.
struct Suite<'a> {
    args: &'a Args,
    directory: PathBuf,
    only: Option<PathBuf>,
    scripts: Scripts,
}

impl<'a> Suite<'a> {
    fn find(args: &'a Args, folder: &Path) -> anyhow::Result<Self> {
        let directory = args.suite.canonicalize();
        let directory =
            directory.with_context(|| format!("cannot find {}", args.suite.display()))?;
        ensure!(
            directory.join("test-engine/client/runner.mjs").is_file(),
            "{} is no checkout of the suite",
            directory.display()
        );
        ensure!(
            directory.join("node_modules").is_dir(),
            "the suite has no dependencies yet: run `npm install` in {}",
            directory.display()
        );
        let only = args.only.as_ref().map(|only| {
            let found = only.canonicalize();
            found.with_context(|| format!("cannot find {}", only.display()))
        });
        Ok(Self {
            args,
            directory,
            only: only.transpose()?,
            scripts: Scripts::write(folder)?,
        })
    }

    /// Starts the suite's origin.
    fn origin(&self) -> anyhow::Result<Origin> {
        Origin::start(
            &self.args.node,
            &self.scripts,
            &self.directory,
            free_port()?,
        )
    }

    /// A proxy with an empty cache.
    fn proxy(&self, campaign: &Campaign) -> anyhow::Result<ProxyCommand> {
        let command = campaign.proxy()?.flag("cache-size", "256MiB");
        Ok(command.flag("set-cookie", self.args.set_cookie.word()))
    }

    /// Runs the tests through the proxy at this URL.
    fn outcome(&self, mode: Mode, origin: &Origin, proxy: &str) -> anyhow::Result<Outcome> {
        let mut driver = Command::new(&self.args.node);
        driver.arg("--no-warnings").env("SUITE", &self.directory);
        let base = match mode {
            Mode::Forward => {
                driver.arg("--import").arg(&self.scripts.forward);
                driver.env("FORWARD_PROXY", proxy);
                origin.url()
            }
            Mode::Accelerate => proxy.to_owned(),
        };
        driver
            .arg(&self.scripts.driver)
            .arg(&self.directory)
            .arg(base);
        driver.args(self.only.as_ref());
        let mut outcome = outcome(&mut driver)?;
        outcome.set_cookie = self.args.set_cookie;
        Ok(outcome)
    }
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::Forward => "forward",
            Mode::Accelerate => "accelerate",
        }
    }
}

/// Our scripts for the suite, written where Node.js can read them.
struct Scripts {
    driver: PathBuf,
    forward: PathBuf,
    loopback: PathBuf,
}

impl Scripts {
    fn write(directory: &Path) -> anyhow::Result<Self> {
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            Ok::<_, anyhow::Error>(path)
        };
        Ok(Self {
            driver: write("driver.mjs", include_str!("driver.mjs"))?,
            forward: write("forward.mjs", include_str!("forward.mjs"))?,
            loopback: write("loopback.mjs", include_str!("loopback.mjs"))?,
        })
    }
}

/// The suite's origin, ended by its own id when dropped.
struct Origin {
    child: Child,
    port: u16,
}

impl Origin {
    fn start(node: &Path, scripts: &Scripts, suite: &Path, port: u16) -> anyhow::Result<Self> {
        let child = Command::new(node)
            .arg("--import")
            .arg(&scripts.loopback)
            .arg("test-engine/server/server.mjs")
            .current_dir(suite)
            .env("npm_config_protocol", "http")
            .env("npm_config_port", port.to_string())
            .env("npm_config_pidfile", scripts.driver.with_extension("pid"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", node.display()))?;
        let mut origin = Self { child, port };
        for _ in 0..200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(origin);
            }
            if let Some(status) = origin.child.try_wait()? {
                bail!("the suite's origin ended with {status}");
            }
            sleep(Duration::from_millis(100));
        }
        bail!("the suite's origin does not listen on port {port}")
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago; the suite's origin cannot let the system choose.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// What the driver prints.
#[derive(Debug, Deserialize)]
struct Outcome {
    tests: Vec<Test>,
    /// `true`, or the failure: its kind, then words.
    results: HashMap<String, Value>,
    #[serde(skip)]
    set_cookie: SetCookie,
}

#[derive(Debug, Deserialize)]
struct Test {
    id: String,
    asked: bool,
    kind: String,
    targeted: bool,
    depends_on: Vec<String>,
}

fn outcome(driver: &mut Command) -> anyhow::Result<Outcome> {
    let output = driver.output().context("cannot run the suite")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the suite ended with {}: {said}",
        output.status
    );
    let text = String::from_utf8(output.stdout).context("the suite printed no text")?;
    let line = text.lines().last().context("the suite printed nothing")?;
    serde_json::from_str(line).context("the suite printed something else than its results")
}

impl Outcome {
    /// Whether a test and all tests that it depends on passed.
    fn passed(&self, id: &str, depth: u32) -> bool {
        // Its dependencies are in the run even if only the test itself was requested.
        let test = self.tests.iter().find(|test| test.id == id);
        self.results.get(id) == Some(&Value::Bool(true))
            && depth < 16
            && test.is_some_and(|test| {
                let mut others = test.depends_on.iter();
                others.all(|other| self.passed(other, depth + 1))
            })
    }

    fn judge(&self, report: &mut Report, mode: Mode) {
        for (kind, targeted) in [
            ("required", false),
            ("optimal", false),
            ("check", false),
            ("required", true),
            ("optimal", true),
            ("check", true),
        ] {
            let of_kind =
                |test: &&Test| test.asked && test.kind == kind && test.targeted == targeted;
            let tests: Vec<&str> = self
                .tests
                .iter()
                .filter(of_kind)
                .map(|test| &*test.id)
                .collect();
            let (passed, failed): (Vec<&str>, Vec<&str>) =
                tests.iter().partition(|id| self.passed(id, 0));
            let must_fail = |id: &&&str| self.set_cookie.must_fail(id).is_some();
            let as_listed = failed.iter().filter(must_fail).count();
            let against_list = passed.iter().any(|id| must_fail(&id));
            // An origin sends `targeted` fields only to a cache that is deployed in front of it.
            let has_bar = (kind != "check" || targeted) && (!targeted || mode == Mode::Accelerate);
            let held = match (kind, targeted) {
                ("required", false) => as_listed == failed.len() && !against_list,
                ("optimal", false) => {
                    let counted = tests.len() - as_listed;
                    passed.len() * 100 >= counted * OPTIMAL_PERCENT && !against_list
                }
                _ => failed.is_empty(),
            };
            let name = if targeted { "CDN-Cache-Control " } else { "" };
            let what = format!("{}: {name}{kind}", mode.word());
            let detail = self.detail(&passed, &failed, has_bar);
            let figures = json!({ "passed": passed.len(), "of": tests.len(), "failed": failed });
            let verdict = if has_bar {
                held.into()
            } else {
                crate::report::Verdict::Told
            };
            report.figures(what, verdict, detail, figures);
        }
    }

    /// How many passed; where there is a bar, also what did not and why.
    fn detail(&self, passed: &[&str], failed: &[&str], has_bar: bool) -> String {
        let mut lines = vec![format!(
            "{} of {}",
            passed.len(),
            passed.len() + failed.len()
        )];
        for id in failed.iter().filter(|_| has_bar) {
            lines.push(format!("{id}: {}", self.why(id)));
        }
        lines.join("\n        ")
    }

    /// Why a test did not pass.
    fn why(&self, id: &str) -> String {
        match (self.set_cookie.must_fail(id), self.results.get(id)) {
            (Some(listed), _) => format!("must fail: {listed}"),
            (None, Some(Value::Array(words))) => words
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(": "),
            (None, Some(_)) => "it passed, but not what it depends on".to_owned(),
            (None, None) => "it was not run".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kinds: &[(&str, &str, Value)]) -> Outcome {
        let test = |(id, kind, _): &(&str, &str, Value)| Test {
            id: (*id).to_owned(),
            asked: true,
            kind: (*kind).to_owned(),
            targeted: false,
            depends_on: vec![],
        };
        let results = kinds
            .iter()
            .map(|(id, _, result)| ((*id).to_owned(), result.clone()));
        Outcome {
            tests: kinds.iter().map(test).collect(),
            results: results.collect(),
            set_cookie: SetCookie::Protect,
        }
    }

    fn holds(outcome: &Outcome) -> bool {
        let mut report = Report::new("test", false);
        outcome.judge(&mut report, Mode::Accelerate);
        report.finish().is_ok()
    }

    #[test]
    fn a_required_test_fails_only_where_a_clause_forbids_what_it_wants() {
        let (forbidden, _) = FORBIDDEN[0];
        let failed = json!(["Assertion", "why"]);
        assert!(holds(&outcome(&[("a", "required", json!(true))])));
        assert!(!holds(&outcome(&[("a", "required", failed.clone())])));
        assert!(holds(&outcome(&[(forbidden, "required", failed.clone())])));
        assert!(!holds(&outcome(&[(forbidden, "required", json!(true))])));
        assert!(holds(&outcome(&[("a", "check", failed.clone())])));
        for (cookie, kind) in PROTECTED.iter().zip(["required", "optimal"]) {
            for (result, set_cookie, held) in [
                (failed.clone(), SetCookie::Protect, true),
                (json!(true), SetCookie::Protect, false),
                (failed.clone(), SetCookie::Rfc, false),
                (json!(true), SetCookie::Rfc, true),
            ] {
                let mut outcome = outcome(&[(cookie.0, kind, result)]);
                outcome.set_cookie = set_cookie;
                assert_eq!(holds(&outcome), held, "{} {set_cookie:?}", cookie.0);
            }
        }
    }

    #[test]
    fn what_depends_on_a_failure_has_failed() {
        let mut outcome = outcome(&[
            ("a", "check", json!(["Setup"])),
            ("b", "required", json!(true)),
        ]);
        assert!(holds(&outcome));
        outcome.tests[1].depends_on = vec!["a".to_owned()];
        assert!(!holds(&outcome));
    }

    #[test]
    fn six_optimal_tests_of_seventy_may_fail() {
        let names: Vec<String> = (0..70).map(|number| number.to_string()).collect();
        for (failing, held) in [(6, true), (7, false)] {
            let tests = names.iter().enumerate();
            let tests: Vec<_> = tests
                .map(|(at, id)| (&id[..], "optimal", json!(at >= failing)))
                .collect();
            assert_eq!(holds(&outcome(&tests)), held, "{failing}");
        }
    }
}
