//! `cargo campaign conformance --through-parent ours|squid`: the suite through our proxy and a
//! parent of it.
//!
//! The suite runs twice, each time with empty caches and an origin of its own: through the parent
//! alone, and through our proxy, which fetches everything through such a parent.
//!
//! Limit: each required test that the parent alone passes is passed through both, except those
//! that our proxy must fail (see `FORBIDDEN` and `PROTECTED`).

use serde_json::json;

use super::{Mode, Outcome, Suite};
use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;
use crate::report::{Report, Verdict};
use crate::squid::process::{Installed, Settings, Squid};

/// Which program is the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ParentKind {
    /// Another process of the proxy
    Ours,
    /// An installed Squid
    Squid,
}

/// Runs the suite through the parent and through both.
pub(super) fn run(
    suite: &Suite<'_>,
    kind: ParentKind,
    campaign: &mut Campaign,
) -> anyhow::Result<()> {
    let alone = {
        let origin = suite.origin()?;
        let mut parent = Parent::start(suite, kind, "alone", campaign)?;
        let outcome = suite.outcome(Mode::Forward, &origin, &parent.url())?;
        parent.check(campaign)?;
        outcome
    };
    let both = {
        let origin = suite.origin()?;
        let mut parent = Parent::start(suite, kind, "parent", campaign)?;
        let command = suite.proxy(campaign)?.flag("parent", parent.url());
        // What went to the origin directly would not be a test of the parent.
        let mut child = command.flag("direct", "never").start()?;
        let outcome = suite.outcome(Mode::Forward, &origin, &child.url())?;
        campaign.check_running("child", &mut child)?;
        parent.check(campaign)?;
        outcome
    };
    for kind in ["required", "optimal", "check"] {
        compare(kind, &alone, &both, &mut campaign.report);
    }
    Ok(())
}

/// A row about the tests of one kind.
fn compare(kind: &str, alone: &Outcome, both: &Outcome, report: &mut Report) {
    let tests = both.tests.iter();
    let ids: Vec<&str> = tests
        .filter(|test| test.asked && test.kind == kind && !test.targeted)
        .map(|test| &*test.id)
        .collect();
    let passed = |outcome: &Outcome| ids.iter().filter(|id| outcome.passed(id, 0)).count();
    let lost: Vec<&str> = ids
        .iter()
        .filter(|id| alone.passed(id, 0) && !both.passed(id, 0))
        .filter(|id| both.set_cookie.must_fail(id).is_none())
        .copied()
        .collect();
    let mut detail = format!(
        "{} of {} through the parent alone, {} through both, {} lost",
        passed(alone),
        ids.len(),
        passed(both),
        lost.len()
    );
    for id in &lost {
        detail += &format!("\n        {id}: {}", both.why(id));
    }
    report.figures(
        format!("through a parent: {kind}"),
        match kind {
            "required" => lost.is_empty().into(),
            _ => Verdict::Told,
        },
        detail,
        json!({
            "of": ids.len(),
            "passed_alone": passed(alone),
            "passed_both": passed(both),
            "lost": lost,
        }),
    );
}

/// A running parent.
enum Parent {
    Ours(ProxyProcess),
    Squid(Squid),
}

impl Parent {
    fn start(
        suite: &Suite<'_>,
        kind: ParentKind,
        name: &str,
        campaign: &Campaign,
    ) -> anyhow::Result<Self> {
        match kind {
            ParentKind::Ours => Ok(Self::Ours(suite.proxy(campaign)?.start()?)),
            ParentKind::Squid => {
                let installed = Installed::find(None)?;
                let settings = Settings::new(name);
                let squid = Squid::start(&installed, campaign.folder(), &settings)?;
                Ok(Self::Squid(squid))
            }
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Ours(proxy) => proxy.url(),
            Self::Squid(squid) => format!("http://{}", squid.http),
        }
    }

    fn check(&mut self, campaign: &mut Campaign) -> anyhow::Result<()> {
        match self {
            Self::Ours(proxy) => campaign.check_running("parent", proxy),
            // Squid starts a worker that ended again, and the suite sees that tests fail.
            Self::Squid(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{FORBIDDEN, SetCookie, Test};
    use super::*;

    fn outcome(results: &[(&str, bool)]) -> Outcome {
        let test = |(id, _): &(&str, bool)| Test {
            id: (*id).to_owned(),
            asked: true,
            kind: "required".to_owned(),
            targeted: false,
            depends_on: vec![],
        };
        let value = |passed| {
            if passed {
                Value::Bool(true)
            } else {
                json!(["Assertion", "why"])
            }
        };
        let pairs = results.iter();
        Outcome {
            tests: results.iter().map(test).collect(),
            results: pairs
                .map(|(id, passed)| ((*id).to_owned(), value(*passed)))
                .collect(),
            set_cookie: SetCookie::Protect,
        }
    }

    #[test]
    fn a_required_test_is_lost_if_the_parent_alone_passes_it() {
        let (forbidden, _) = FORBIDDEN[0];
        for (alone, both, held) in [
            (("a", true), ("a", true), true),
            (("a", false), ("a", false), true),
            (("a", false), ("a", true), true),
            (("a", true), ("a", false), false),
            ((forbidden, true), (forbidden, false), true),
        ] {
            let mut report = Report::new("test", false);
            let (alone, both) = (outcome(&[alone]), outcome(&[both]));
            compare("required", &alone, &both, &mut report);
            assert_eq!(report.finish().is_ok(), held, "{alone:?} {both:?}");
        }
    }
}
