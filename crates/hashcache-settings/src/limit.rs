//! Limits: `[[limit]]` tables of a configuration file.
//!
//! Called by `file` for each table. A fault names the field, with a hint for the correct value.

use hashcache_proxy::{LimitPer, LimitSettings, Quota, QuotaEnd, QuotaPeriod, Rate};
use serde::Deserialize;

use super::access::is_name;
use super::file::{ArrayTable, WrittenTable};
use super::words::one_of;
use crate::fault::{Fault, Faults};
use crate::units::parse_size;

/// A `[[limit]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    name: String,
    per: Option<String>,
    quota: Option<String>,
    every: Option<String>,
    used_up: Option<String>,
    bandwidth: Option<String>,
    burst: Option<String>,
    requests: Option<u64>,
    requests_burst: Option<u64>,
}

impl ArrayTable for LimitTable {
    const ARRAY: &'static str = "limit";
    type Meaning = LimitSettings;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<LimitSettings, Faults> {
        self.settings()
    }

    fn name(meaning: &LimitSettings) -> Option<&str> {
        Some(&meaning.name)
    }
}

impl LimitTable {
    /// Returns the limit, or every fault in the fields.
    pub fn settings(self) -> Result<LimitSettings, Faults> {
        let mut faults = Vec::new();
        if !is_name(&self.name) {
            let fault = Fault::new(format!("`{}` is not a name for a limit", self.name));
            faults.push(fault.hint("use a letter, then letters, digits, `-` and `_`"));
        }
        let per = self.per.as_deref().map(|word| one_of(&LimitPer::ALL, word));
        let per = kept(
            per.transpose().map_err(|fault| fault.at("per")),
            &mut faults,
        );
        let quota = kept(self.quota(), &mut faults).flatten();
        let bandwidth = kept(self.bandwidth(), &mut faults).flatten();
        let requests = kept(self.requests(), &mut faults).flatten();
        if faults.is_empty() && quota.is_none() && bandwidth.is_none() && requests.is_none() {
            let fault = Fault::new(format!("the limit `{}` limits nothing", self.name));
            faults.push(fault.hint("give it `quota`, `bandwidth` or `requests`"));
        }
        if !faults.is_empty() {
            return Err(Faults(faults));
        }
        Ok(LimitSettings {
            name: self.name,
            per: per.flatten().unwrap_or(LimitPer::Client),
            quota,
            bandwidth,
            requests,
        })
    }

    fn quota(&self) -> Result<Option<Quota>, Fault> {
        let Some(quota) = &self.quota else {
            return match (&self.every, &self.used_up) {
                (None, None) => Ok(None),
                (Some(_), _) => Err(Fault::new("`every` needs `quota`")),
                (None, Some(_)) => Err(Fault::new("`used_up` needs `quota`")),
            };
        };
        let Some(every) = &self.every else {
            let fault = Fault::new("`quota` needs `every`");
            return Err(fault.hint("write every = \"day\", \"week\" or \"month\""));
        };
        Ok(Some(Quota {
            bytes: at_least(QUOTA_MIN, positive_size("quota", quota)?, "quota", quota)?,
            period: one_of(&QuotaPeriod::ALL, every).map_err(|fault| fault.at("every"))?,
            end: match self.used_up.as_deref() {
                None | Some("refuse") => QuotaEnd::Refuse,
                Some(word) => QuotaEnd::Slow(rate("used_up", word).map_err(|fault| {
                    fault.hint("write \"refuse\", or the bytes per second that are left: \"64KiB\"")
                })?),
            },
        }))
    }

    fn bandwidth(&self) -> Result<Option<Rate>, Fault> {
        let Some(bandwidth) = &self.bandwidth else {
            return match self.burst {
                None => Ok(None),
                Some(_) => Err(Fault::new("`burst` needs `bandwidth`")),
            };
        };
        let per_second = rate("bandwidth", bandwidth)?;
        let burst = self.burst.as_deref();
        let burst = burst
            .map(|burst| positive_size("burst", burst))
            .transpose()?;
        Ok(Some(Rate {
            per_second,
            burst: burst.unwrap_or(per_second),
        }))
    }

    fn requests(&self) -> Result<Option<Rate>, Fault> {
        let per_second = match (self.requests, self.requests_burst) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(Fault::new("`requests_burst` needs `requests`")),
            (Some(0), _) | (_, Some(0)) => {
                return Err(Fault::new(
                    "no request would be served: write a number above 0",
                ));
            }
            (Some(per_second), _) => per_second,
        };
        Ok(Some(Rate {
            per_second,
            burst: self.requests_burst.unwrap_or(per_second),
        }))
    }
}

fn positive_size(field: &str, word: &str) -> Result<u64, Fault> {
    match parse_size(word) {
        Ok(0) => Err(Fault::new(format!("`{word}` is nothing at all")).at(field)),
        read => read.map_err(|fault| fault.at(field)),
    }
}

/// Parses a rate in bytes per second.
fn rate(field: &str, word: &str) -> Result<u64, Fault> {
    at_least(RATE_MIN, positive_size(field, word)?, field, word)
}

/// Returns `bytes`, or a fault if they are fewer than `least`: most likely the unit was forgotten.
fn at_least(least: u64, bytes: u64, field: &str, word: &str) -> Result<u64, Fault> {
    if bytes >= least {
        return Ok(bytes);
    }
    let fault = Fault::new(format!("`{word}` is less than {least} bytes")).at(field);
    Err(fault.hint("write the number with its unit: \"500KiB\", \"2MiB\", \"1GiB\""))
}

/// Least rate: slower than any line over which a page can be loaded.
const RATE_MIN: u64 = 1 << 10;
/// Least quota: less than a page.
const QUOTA_MIN: u64 = 64 << 10;

/// Returns the value; a fault is added to `faults`.
fn kept<T>(read: Result<T, Fault>, faults: &mut Vec<Fault>) -> Option<T> {
    read.map_err(|fault| faults.push(fault)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Result<LimitSettings, Faults> {
        toml::from_str::<LimitTable>(text).unwrap().settings()
    }

    #[test]
    fn every_field_of_a_limit_is_read() {
        let read = limit(
            "name = \"pupil\"
             per = \"user\"
             quota = \"1GiB\"
             every = \"week\"
             used_up = \"64KiB\"
             bandwidth = \"2MiB\"
             burst = \"8MiB\"
             requests = 20
             requests_burst = 60",
        );
        let expected = LimitSettings {
            name: "pupil".into(),
            per: LimitPer::User,
            quota: Some(Quota {
                bytes: 1 << 30,
                period: QuotaPeriod::Week,
                end: QuotaEnd::Slow(64 << 10),
            }),
            bandwidth: Some(Rate {
                per_second: 2 << 20,
                burst: 8 << 20,
            }),
            requests: Some(Rate {
                per_second: 20,
                burst: 60,
            }),
        };
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn a_limit_is_for_each_client_refuses_and_has_a_second_as_burst() {
        let text =
            "name = \"a\"\nquota = \"1GB\"\nevery = \"day\"\nbandwidth = \"1MB\"\nrequests = 5";
        let read = limit(text).unwrap();
        assert_eq!(read.per, LimitPer::Client);
        assert_eq!(read.quota.unwrap().end, QuotaEnd::Refuse);
        assert_eq!(read.bandwidth.unwrap().burst, 1_000_000);
        assert_eq!(read.requests.unwrap().burst, 5);
    }

    #[test]
    fn what_a_limit_lacks_or_has_too_much_is_said() {
        let said = |text: &str| {
            let Faults(faults) = limit(&format!("name = \"a\"\n{text}")).unwrap_err();
            faults[0].what.clone()
        };
        assert_eq!(said(""), "the limit `a` limits nothing");
        assert_eq!(said("quota = \"1GiB\""), "`quota` needs `every`");
        assert_eq!(said("every = \"day\""), "`every` needs `quota`");
        assert_eq!(said("used_up = \"refuse\""), "`used_up` needs `quota`");
        assert_eq!(said("burst = \"1MiB\""), "`burst` needs `bandwidth`");
        assert_eq!(
            said("requests_burst = 2"),
            "`requests_burst` needs `requests`"
        );
        assert!(said("requests = 0").starts_with("no request would be served"));
        assert_eq!(
            said("bandwidth = \"0\""),
            "bandwidth: `0` is nothing at all"
        );
        assert_eq!(
            said("quota = \"500\"\nevery = \"day\""),
            "quota: `500` is less than 65536 bytes"
        );
        assert_eq!(
            said("bandwidth = \"1000\""),
            "bandwidth: `1000` is less than 1024 bytes"
        );
        assert!(
            said("quota = \"1GiB\"\nevery = \"day\"\nused_up = \"64\"")
                .starts_with("used_up: `64` is less")
        );
        assert!(said("quota = \"1GiB\"\nevery = \"year\"").starts_with("every: `year` is not"));
        assert!(said("per = \"host\"\nrequests = 1").starts_with("per: `host` is not one of"));
        let Faults(faults) = limit("name = \"1\"\nrequests = 1").unwrap_err();
        assert_eq!(faults[0].what, "`1` is not a name for a limit");
    }
}
