//! The page that shows a person their remaining quotas and their other limits.
//!
//! Called by `request::own` for `http://proxy/quota` and for `/quota` of the proxy itself.
//!
//! Invariant: the page shows only the usage of the client or user that requests it. The usage of a
//! limit with `per = "all"` is shown to all clients.

use std::fmt::Write as _;

use bytes::Bytes;
use hashcache_access::quota::{LimitPer, QuotaEnd, Standing};
use hashcache_base::frame::{Escaped, Size, document};
use http::{Response, StatusCode};

use super::{PageReader, page};

/// Input for the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaPage<'a> {
    /// The user, if known.
    pub(crate) user: Option<&'a str>,
    pub(crate) standings: &'a [Standing],
    /// Person to contact for more.
    pub(crate) contact: Option<&'a str>,
    pub(crate) reader: PageReader,
}

/// Returns the page.
pub(crate) fn quota(shown: &QuotaPage<'_>) -> Response<Bytes> {
    let title = "What you have left";
    let contact = shown.contact.unwrap_or("the operator of the proxy");
    let advice =
        format!("What the proxy has stored costs nothing. If you need more, ask {contact}.");
    let limits = shown.standings.iter();
    let limits = limits.map(|standing| (heading(standing, shown.user), lines(standing)));
    let body = match shown.reader {
        PageReader::Browser => {
            let mut main = String::new();
            for (heading, lines) in limits {
                // Writing to a `String` cannot fail, here and below.
                let _ = write!(main, "<h2>{}</h2>", Escaped(&heading));
                for line in lines {
                    let _ = write!(main, "<p>{}</p>", Escaped(&line));
                }
            }
            if shown.standings.is_empty() {
                let _ = write!(main, "<p>{NO_LIMITS}</p>");
            }
            let _ = write!(main, "<p class=a>{}</p>", Escaped(&advice));
            document(title, &main)
        }
        PageReader::Program => {
            let mut text = format!("{title}\n\n");
            for (heading, lines) in limits {
                let _ = writeln!(text, "{heading}:");
                for line in lines {
                    let _ = writeln!(text, "  {line}");
                }
            }
            if shown.standings.is_empty() {
                let _ = writeln!(text, "{NO_LIMITS}");
            }
            let _ = writeln!(text, "\n{advice}");
            text
        }
    };
    page(StatusCode::OK, shown.reader, body)
}

/// Returns a limit's name and the subject that it limits.
fn heading(standing: &Standing, user: Option<&str>) -> String {
    let whose = match (standing.limit.per, user) {
        (LimitPer::All, _) => "for all together".to_owned(),
        (LimitPer::User, Some(user)) => format!("for {user}"),
        (LimitPer::Client | LimitPer::User, _) => "for your device".to_owned(),
    };
    format!("{}, {whose}", standing.limit.name)
}

fn lines(standing: &Standing) -> Vec<String> {
    let limit = &standing.limit;
    let mut lines = Vec::new();
    if let (Some(quota), Some((used, ends))) = (&limit.quota, &standing.used) {
        let (all, period) = (Size(quota.bytes), quota.period.as_str());
        let left = quota.bytes.saturating_sub(*used);
        lines.push(match (left, quota.end) {
            (0, QuotaEnd::Refuse) => {
                format!("{all} per {period} are used up. What needs the Internet is refused.")
            }
            (0, QuotaEnd::Slow(rate)) => format!(
                "{all} per {period} are used up. What needs the Internet comes with {} per second.",
                Size(rate)
            ),
            (left, _) => format!("{} of {all} per {period} are left.", Size(left)),
        });
        lines.push(format!("It begins anew on {ends}."));
    }
    if let Some(rate) = limit.bandwidth {
        lines.push(format!("At most {} per second.", Size(rate.per_second)));
    }
    if let Some(rate) = limit.requests {
        lines.push(format!("At most {} requests per second.", rate.per_second));
    }
    lines
}

const NO_LIMITS: &str = "No limits apply to you.";

#[cfg(test)]
mod tests {
    use hashcache_access::quota::{LimitSettings, Quota, QuotaPeriod, Rate};

    use super::*;

    fn standing(per: LimitPer, used: u64, end: QuotaEnd) -> Standing {
        let limit = LimitSettings {
            name: "pupil <b>".into(),
            per,
            quota: Some(Quota {
                bytes: 1 << 30,
                period: QuotaPeriod::Week,
                end,
            }),
            bandwidth: None,
            requests: Some(Rate {
                per_second: 20,
                burst: 40,
            }),
        };
        let used = Some((used, "Monday 30 November, 00:00".to_owned()));
        Standing { limit, used }
    }

    fn text(standings: &[Standing], reader: PageReader) -> String {
        let shown = QuotaPage {
            user: Some("anna"),
            standings,
            contact: Some("Ms Abara"),
            reader,
        };
        String::from_utf8(quota(&shown).into_body().to_vec()).unwrap()
    }

    #[test]
    fn a_person_reads_what_is_left_until_when_and_whom_to_ask() {
        let half = standing(LimitPer::User, 1 << 29, QuotaEnd::Refuse);
        let over = standing(LimitPer::Client, 2 << 30, QuotaEnd::Slow(64 << 10));
        let said = text(&[half, over], PageReader::Program);
        for part in [
            "pupil <b>, for anna:",
            "512 MiB of 1 GiB per week are left.",
            "It begins anew on Monday 30 November, 00:00.",
            "At most 20 requests per second.",
            "pupil <b>, for your device:",
            "1 GiB per week are used up. What needs the Internet comes with 64 KiB per second.",
            "ask Ms Abara.",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(text(&[], PageReader::Program).contains(NO_LIMITS));
    }

    #[test]
    fn names_are_escaped_for_a_browser() {
        let over = standing(LimitPer::All, 1 << 30, QuotaEnd::Refuse);
        let said = text(&[over], PageReader::Browser);
        assert!(
            said.contains("<h2>pupil &lt;b&gt;, for all together</h2>"),
            "{said}"
        );
        assert!(
            said.contains("What needs the Internet is refused."),
            "{said}"
        );
    }
}
