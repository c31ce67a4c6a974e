//! The outcomes of a command with many steps, one line each: fuzz targets, planted faults.
//!
//! Used by the commands that continue after a failure. Invariant: a run in which a step failed ends
//! with an error.

use anyhow::{Result, ensure};

/// The outcomes of one run.
#[derive(Debug, Default)]
pub struct Outcomes {
    passed: usize,
    failed: Vec<String>,
}

impl Outcomes {
    /// Prints the outcome of `name` at once, since a run takes minutes.
    pub fn push(&mut self, name: &str, outcome: Result<String>) {
        match outcome {
            Ok(detail) => {
                self.passed += 1;
                println!("passed  {name:<NAME_COLUMNS$}  {detail}");
            }
            Err(error) => {
                self.failed.push(name.to_owned());
                println!("FAILED  {name:<NAME_COLUMNS$}  {error:#}");
            }
        }
    }

    /// Ends the run; the error names what failed.
    pub fn finish(self) -> Result<()> {
        println!("{} passed, {} failed", self.passed, self.failed.len());
        ensure!(self.failed.is_empty(), "failed: {}", self.failed.join("; "));
        Ok(())
    }
}

const NAME_COLUMNS: usize = 46;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_run() {
        let mut outcomes = Outcomes::default();
        outcomes.push("good", Ok("1 run".to_owned()));
        assert!(outcomes.finish().is_ok());
        let mut outcomes = Outcomes::default();
        outcomes.push("good", Ok(String::new()));
        outcomes.push("bad", Err(anyhow::anyhow!("broken")));
        let error = outcomes.finish().unwrap_err();
        assert_eq!(error.to_string(), "failed: bad");
    }
}
