//! CARP version 1: each URL has one member in an array of caches, selected by a hash over URL and
//! member name (draft-vinod-carp-v1-03, sections 3.1 to 3.4).
//!
//! The proxy computes the order of the parents, once per request. All caches and all proxy.pac
//! files with the same list select the same member, without a message. If a member cannot be
//! reached, the next member in the order takes over the URLs, and only these URLs move.
//!
//! The selection follows the draft. **Squid selects differently** with more than one member:
//! Squid's loop hashes the URL again for each member, starting from the preceding hash.
//!
//! Cost: one pass over the URL, and one floating-point multiplication per member.

use crate::members::{Member, MembersError, by_score, check};

/// The draft's constant for spreading hashes.
const MULTIPLIER: u32 = 0x6253_1965;

/// The members of an array, with the values that the draft computes from names and load factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Hash and load factor multiplier of each member, in list order.
    members: Vec<(u32, f64)>,
}

impl Array {
    /// An array with these members. Names are hashed in lower case, as the draft requires, so names
    /// that differ only in case are equal.
    pub fn new(members: &[Member<'_>]) -> Result<Array, MembersError> {
        let members: Vec<(String, u32)> = members
            .iter()
            .map(|member| (member.name.to_ascii_lowercase(), member.weight))
            .collect();
        check(&members)?;
        let multipliers = multipliers(&members);
        let hashes = members.iter().map(|(name, _)| member_hash(name.as_bytes()));
        Ok(Array {
            members: hashes.zip(multipliers).collect(),
        })
    }

    /// The members in order of preference for an absolute URL with scheme and host in lower case,
    /// as indices into the list; each occurs once.
    pub fn order(&self, url: &[u8]) -> Vec<usize> {
        let of_url = hash(url);
        let score = |(of_member, multiplier): &(u32, f64)| {
            f64::from(combined(of_url, *of_member)) * multiplier
        };
        by_score(self.members.iter().map(score))
    }
}

/// The hash in the draft, for a URL and for the name of a member before spreading.
fn hash(octets: &[u8]) -> u32 {
    octets.iter().fold(0_u32, |hash, octet| {
        hash.wrapping_add(hash.rotate_left(19))
            .wrapping_add(u32::from(*octet))
    })
}

fn member_hash(name: &[u8]) -> u32 {
    spread(hash(name))
}

fn combined(of_url: u32, of_member: u32) -> u32 {
    spread(of_url ^ of_member)
}

fn spread(hash: u32) -> u32 {
    hash.wrapping_add(hash.wrapping_mul(MULTIPLIER))
        .rotate_left(21)
}

/// The load factor multipliers, in list order.
///
/// With the loads p_1 ≤ … ≤ p_K, which add up to 1, and p_0 = 0 the draft defines
///
/// ```text
/// X_k = ((K−k+1)·(p_k − p_(k−1)) / (X_1·…·X_(k−1)) + X_(k−1)^(K−k+1)) ^ (1 / (K−k+1))
/// ```
///
/// The first is X_1 = (K·p_1)^(1/K), because X_0 = 0 and the empty product is 1.
fn multipliers(members: &[(String, u32)]) -> Vec<f64> {
    let total: f64 = members.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let mut by_load: Vec<usize> = (0..members.len()).collect();
    by_load.sort_by_key(|index| members[*index].1);

    let mut multipliers = vec![0.0; members.len()];
    let (mut load_before, mut before, mut product) = (0.0, 0.0_f64, 1.0);
    for (index, left) in by_load.into_iter().zip((1..=members.len()).rev()) {
        let load = f64::from(members[index].1) / total;
        // The number of members is far below 2^32.
        let left = f64::from(u32::try_from(left).unwrap_or(u32::MAX));
        let multiplier =
            (left * (load - load_before) / product + before.powf(left)).powf(left.recip());
        multipliers[index] = multiplier;
        (load_before, before) = (load, multiplier);
        product *= multiplier;
    }
    multipliers
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &[u8] = b"http://www.example1.test/page/1";

    fn array(members: &[(&'static str, u32)]) -> Array {
        let member = |&(name, weight): &(&'static str, u32)| Member { name, weight };
        Array::new(&members.iter().map(member).collect::<Vec<_>>()).unwrap()
    }

    /// The share of 100,000 URLs for which each member is first.
    fn shares(array: &Array) -> Vec<f64> {
        let mut counts = vec![0_u32; array.members.len()];
        for n in 0..100_000 {
            counts[array.order(format!("http://host{n}.test/{n}").as_bytes())[0]] += 1;
        }
        counts
            .into_iter()
            .map(|count| f64::from(count) / 1e5)
            .collect()
    }

    #[test]
    fn names_and_urls_have_the_hashes_of_the_draft() {
        // Values from an independent script, which agrees with Squid's trace for a first member.
        assert_eq!(member_hash(b"p1"), 0x24d7_685f);
        assert_eq!(member_hash(b"p2"), 0x5183_b2c2);
        assert_eq!(member_hash(b"p3"), 0x7e4f_fd25);
        assert_eq!(member_hash(b"proxy-a.example.net"), 0x959d_141d);
        assert_eq!(hash(URL), 0x4e78_76e3);
    }

    #[test]
    fn load_factors_of_1_1_2_have_the_multipliers_and_scores_of_the_draft() {
        let array = array(&[("p1", 1), ("p2", 1), ("p3", 2)]);
        let expected = [
            (0.908_560_296_4, 1_561_417_555, 1_418_641_997.0),
            (0.908_560_296_4, 3_302_073_675, 3_000_133_037.0),
            (1.211_413_728_6, 3_700_948_800, 4_483_380_185.0),
        ];
        for ((of_member, multiplier), expected) in array.members.iter().zip(expected) {
            let score = combined(hash(URL), *of_member);
            assert_eq!(score, expected.1);
            assert!((multiplier - expected.0).abs() < 1e-9);
            assert!((f64::from(score) * multiplier - expected.2).abs() < 1.0);
        }
        assert_eq!(array.order(URL), [2, 1, 0]);
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let array = array(&[("p3", 2), ("p1", 1), ("p2", 1)]);
        assert_eq!(array.order(URL), [0, 2, 1]);
    }

    #[test]
    fn equal_members_have_multipliers_of_1() {
        let array = array(&[("a", 5), ("b", 5), ("c", 5), ("d", 5)]);
        for (_, multiplier) in &array.members {
            assert!((multiplier - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_member_has_the_share_of_its_load_factor() {
        let shares = shares(&array(&[("a", 1), ("b", 2), ("c", 5), ("d", 12)]));
        for (share, expected) in shares.into_iter().zip([0.05, 0.1, 0.25, 0.6]) {
            assert!((share - expected).abs() < 0.01, "{share} ≠ {expected}");
        }
    }

    #[test]
    fn only_the_urls_of_a_lost_member_move_and_go_to_their_second() {
        let all = array(&[("a", 1), ("b", 1), ("c", 1)]);
        let without_c = array(&[("a", 1), ("b", 1)]);
        for n in 0..2_000 {
            let url = format!("http://host{n}.test/");
            let order = all.order(url.as_bytes());
            let left: Vec<usize> = order.into_iter().filter(|index| *index != 2).collect();
            assert_eq!(without_c.order(url.as_bytes()), left);
        }
    }

    #[test]
    fn extreme_weights_still_give_an_order_of_all_members() {
        let array = array(&[("a", 1), ("b", u32::MAX), ("c", 1), ("d", u32::MAX)]);
        assert!(array.members.iter().all(|(_, it)| it.is_finite()));
        let mut order = array.order(URL);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(self::array(&[]).order(URL).is_empty());
        assert_eq!(self::array(&[("a", 3)]).order(b""), [0]);
    }

    #[test]
    fn names_that_differ_in_case_are_one() {
        let member = |name| Member { name, weight: 1 };
        assert!(Array::new(&[member("Proxy"), member("proxy")]).is_err());
        assert_eq!(
            array(&[("P1", 1), ("P2", 1)]),
            array(&[("p1", 1), ("p2", 1)])
        );
    }
}
