//! How caches learn that an object has changed.

use std::fmt;

use hashcache_http::{Heuristic, ReuseOptions, Rules, Seconds, StoreOptions};

/// A scheme that keeps caches current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Every object has this lifetime, then it is discarded: Harvest. A cache takes over what is
    /// left of the lifetime in the cache above it.
    Fixed(Seconds),
    /// The same, but what has outlived it is validated.
    Validated(Seconds),
    /// The same, and while it is validated the old content is served, for as long again.
    WhileRevalidating(Seconds),
    /// A minute at first, doubled each time the object proves unchanged, up to this: the paper's
    /// proposal, and the setting `adaptive`.
    Doubling(Seconds),
    /// A tenth of the time since the last change, up to this: the default of RFC 9111 and ours.
    Heuristic(Seconds),
    /// Origins tell the caches below them what has changed, and these tell the caches below them,
    /// as far as those have the object.
    Invalidation,
    /// Origins tell all caches at which site something has changed, and caches remove all objects
    /// with the label of that site: purges by label.
    GroupPurge,
}

impl Scheme {
    /// Whether what is stale is discarded and not validated.
    pub(super) fn discards(self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    /// How caches store under it.
    pub(super) fn store_options(self) -> StoreOptions {
        let mut options = StoreOptions {
            rules: Rules::none(),
            ..StoreOptions::default()
        };
        let guess = |percent, max| Heuristic { percent, max };
        match self {
            Self::Fixed(lifetime)
            | Self::Validated(lifetime)
            | Self::WhileRevalidating(lifetime) => options.rules = rule(lifetime),
            Self::Invalidation | Self::GroupPurge => options.rules = rule(Seconds::YEAR),
            Self::Doubling(max) => {
                options.heuristic = guess(0, max);
                options.adaptive = true;
            }
            Self::Heuristic(max) => options.heuristic = guess(10, max),
        }
        options
    }

    /// How caches serve under it.
    pub(super) fn reuse_options(self) -> ReuseOptions {
        let stale_while_revalidate = match self {
            Self::WhileRevalidating(lifetime) => lifetime,
            _ => Seconds::ZERO,
        };
        ReuseOptions {
            stale_while_revalidate,
            ..ReuseOptions::default()
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed(_) => "fixed",
            Self::Validated(_) => "validated",
            Self::WhileRevalidating(_) => "while-revalidating",
            Self::Doubling(_) => "doubling",
            Self::Heuristic(_) => "heuristic",
            Self::Invalidation => "invalidation",
            Self::GroupPurge => "group-purge",
        })
    }
}

/// The freshness rule with which an operator gives every object this lifetime.
fn rule(lifetime: Seconds) -> Rules {
    let seconds = lifetime.get();
    let text = format!("[[rule]]\npath = \"/**\"\nlifetime = \"{seconds}s\"\n");
    Rules::from_toml(&text).expect("the rule is written above")
}
