//! `cargo campaign models` and `cargo campaign stress`: the engine's random tests, with any number
//! of operations.
//! They are the tests of `crates/hashcache/tests/it`, built for release: `model` compares random
//! operations with a map; in `stress`, many threads run all operations at once and check the
//! content byte by byte.
//!
//! Invariant: a failure names the seed that reproduces it.

use anyhow::{Context as _, bail};

use crate::campaign::Campaign;
use crate::cargo;

/// Arguments of `models`.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Operations on each policy
    #[arg(long, default_value_t = 10_000_000)]
    operations: u64,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies, all by default
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
}

/// Arguments of `stress`.
#[derive(clap::Args)]
pub struct StressArgs {
    /// How long, for each policy
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same in seconds, for a try
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Threads that do everything at once
    #[arg(long, default_value_t = 64)]
    threads: u64,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies, all by default
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
}

const MAP_TEST: &str = "model::a_look_up_yields_the_last_put_or_nothing";
const KILL_TEST: &str = "model::after_kills_a_look_up_yields_nothing_older_than_at_the_last_flush";
const STRESS_TEST: &str = "stress::never_a_wrong_byte_however_many_do_everything_at_once";

/// Operations that the tests run by default, without kills and with them.
const OPERATIONS: u64 = 100_000;
const KILL_OPERATIONS: u64 = 4 * 3_000;

/// Random operations against a map, then as many again with kills between them.
pub fn models(args: &ModelArgs, campaign: &mut Campaign) -> anyhow::Result<()> {
    for (name, policy) in policies(&args.policy) {
        for (test, each) in [
            (MAP_TEST, OPERATIONS),
            // A tenth of the operations: after each kill the test looks up all names again.
            (KILL_TEST, 10 * KILL_OPERATIONS),
        ] {
            let rounds = args.operations.div_ceil(each);
            let mut variables = vec![
                ("HASHCACHE_TEST_ROUNDS", rounds.to_string()),
                ("HASHCACHE_TEST_SEED", args.seed.to_string()),
            ];
            variables.extend(policy.clone());
            let what = if each == OPERATIONS {
                "a map"
            } else {
                "a map, kills"
            };
            campaign
                .report
                .outcome(format!("{name}: {what}"), play(test, &variables));
        }
    }
    Ok(())
}

/// Many threads at once.
pub fn stress(args: &StressArgs, campaign: &mut Campaign) -> anyhow::Result<()> {
    let seconds = args.seconds.unwrap_or(args.minutes * 60);
    for (name, policy) in policies(&args.policy) {
        let mut variables = vec![
            ("HASHCACHE_TEST_SECONDS", seconds.to_string()),
            ("HASHCACHE_TEST_THREADS", args.threads.to_string()),
            ("HASHCACHE_TEST_SEED", args.seed.to_string()),
        ];
        variables.extend(policy);
        campaign.report.outcome(name, play(STRESS_TEST, &variables));
    }
    Ok(())
}

/// Runs one test of the engine; returns how long it took, or its output.
fn play(test: &str, variables: &[(&str, String)]) -> anyhow::Result<String> {
    let output = cargo()
        .args([
            "test",
            "--release",
            "-p",
            "hashcache",
            "--test",
            "it",
            "--",
            "--exact",
            test,
        ])
        .args(["--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let result = said.lines().find(|line| line.starts_with("test result:"));
    let passed = result.is_some_and(|line| line.contains("1 passed"));
    if output.status.success() && passed {
        return Ok(result.unwrap_or_default().to_owned());
    }
    let told = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let told: Vec<String> = told.collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    bail!("{} {test}\n{said}{errors}", told.join(" "))
}

/// The name and the variable of each run: one run per named policy, or one for all.
fn policies(named: &[String]) -> Vec<(String, Option<(&'static str, String)>)> {
    let one = |name: &String| (name.clone(), Some(("HASHCACHE_TEST_POLICY", name.clone())));
    if named.is_empty() {
        return vec![("every policy".to_owned(), None)];
    }
    named.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn the_tests_that_are_run_exist() {
        for test in [MAP_TEST, KILL_TEST, STRESS_TEST] {
            let (file, name) = test.split_once("::").unwrap();
            let path = root().join(format!("crates/hashcache/tests/it/{file}.rs"));
            let source = std::fs::read_to_string(path).unwrap();
            assert!(source.contains(&format!("fn {name}(")), "{test}");
        }
    }
}
