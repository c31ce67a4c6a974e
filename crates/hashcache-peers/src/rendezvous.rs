//! Weighted rendezvous hashing: each URL has one owner among the members of a site, and an order of
//! the other members (Thaler and Ravishankar 1998; the weights are from Schindelhauer and Schomaker
//! 2005, "logarithmic method").
//!
//! The proxy computes the owner of a URL, once per request. Members with the same list agree
//! without a message. When a member is added or removed, only the URLs that it owns move.
//!
//! Cost: one MD5 over name and URL and one logarithm per member.

use crate::members::{Member, MembersError, by_score, check};

/// The members of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// Name and weight, in list order.
    members: Vec<(String, u32)>,
}

impl Members {
    /// The given members. Names are hashed unchanged: the same host in another letter case is
    /// another member.
    pub fn new(members: &[Member<'_>]) -> Result<Members, MembersError> {
        let members: Vec<(String, u32)> = members
            .iter()
            .map(|member| (member.name.to_owned(), member.weight))
            .collect();
        check(&members)?;
        Ok(Members { members })
    }

    /// The members in order of preference, as indices into the list; each occurs once, and the
    /// first is the owner.
    pub fn order(&self, url: &[u8]) -> Vec<usize> {
        let score = |(name, weight): &(String, u32)| f64::from(*weight) / -unit(name, url).ln();
        by_score(self.members.iter().map(score))
    }
}

/// A number above 0 and below 1 from the first 8 octets of MD5(name ‖ URL).
fn unit(name: &str, url: &[u8]) -> f64 {
    let mut context = md5::Context::new();
    context.consume(name);
    context.consume(url);
    let digest = u128::from_be_bytes(context.finalize().0);
    // The middle of one of 2^52 steps. A float has 53 bits, so this is exact and never 0 or 1.
    let step = digest >> (128 - 52);
    (2 * step + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(members: &[(&'static str, u32)]) -> Members {
        let member = |&(name, weight): &(&'static str, u32)| Member { name, weight };
        Members::new(&members.iter().map(member).collect::<Vec<_>>()).unwrap()
    }

    fn url(n: u32) -> String {
        format!("http://host{n}.test/{n}")
    }

    /// The share of 100,000 URLs that each member owns.
    fn shares(members: &Members) -> Vec<f64> {
        let mut counts = vec![0_u32; members.members.len()];
        for n in 0..100_000 {
            counts[members.order(url(n).as_bytes())[0]] += 1;
        }
        counts
            .into_iter()
            .map(|count| f64::from(count) / 1e5)
            .collect()
    }

    #[test]
    fn the_hash_is_the_first_8_octets_of_md5_of_name_and_url() {
        // printf 'ahttp://example.com/' | md5sum
        let expected = f64::from(0x8702_3edc_u32) / 2_f64.powi(32);
        let unit = unit("a", b"http://example.com/");
        assert!((0.0..2_f64.powi(-32)).contains(&(unit - expected)));
    }

    #[test]
    fn each_member_owns_the_share_of_its_weight() {
        let shares = shares(&members(&[("a", 1), ("b", 2), ("c", 5), ("d", 12)]));
        for (share, expected) in shares.into_iter().zip([0.05, 0.1, 0.25, 0.6]) {
            assert!((share - expected).abs() < 0.005, "{share} ≠ {expected}");
        }
    }

    #[test]
    fn only_the_urls_of_a_lost_member_move_and_go_to_their_second() {
        let all = members(&[("a", 1), ("b", 3), ("c", 1)]);
        let without_c = members(&[("a", 1), ("b", 3)]);
        for n in 0..2_000 {
            let order = all.order(url(n).as_bytes());
            let left: Vec<usize> = order.into_iter().filter(|index| *index != 2).collect();
            assert_eq!(without_c.order(url(n).as_bytes()), left);
        }
    }

    #[test]
    fn a_larger_weight_only_attracts_urls() {
        let before = members(&[("a", 1), ("b", 1), ("c", 1)]);
        let after = members(&[("a", 1), ("b", 1), ("c", 2)]);
        for n in 0..2_000 {
            let (old, new) = (
                before.order(url(n).as_bytes()),
                after.order(url(n).as_bytes()),
            );
            assert!(old[0] == new[0] || new[0] == 2);
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let one = members(&[("a", 1), ("b", 2), ("c", 3)]);
        let other = members(&[("c", 3), ("a", 1), ("b", 2)]);
        for n in 0..2_000 {
            let names = |members: &Members| -> Vec<String> {
                let order = members.order(url(n).as_bytes());
                order
                    .into_iter()
                    .map(|it| members.members[it].0.clone())
                    .collect()
            };
            assert_eq!(names(&one), names(&other));
        }
    }

    #[test]
    fn extreme_members_still_give_an_order_of_all() {
        assert!(members(&[]).order(b"").is_empty());
        assert_eq!(members(&[("a", u32::MAX)]).order(b""), [0]);
        assert_eq!(members(&[("", u32::MAX), ("b", 1)]).order(b"").len(), 2);
    }
}
