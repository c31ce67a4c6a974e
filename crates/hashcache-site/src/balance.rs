//! The order in which requests try the origins of a site.
//!
//! Called once per forwarded request, under the site's lock. Pure: the weights, which follow from
//! the origins' health, and the number of busy requests are arguments.
//!
//! Invariants: an origin with weight 0 is never in the order, and no origin is in it twice. With
//! [`Balance::Hash`], the loss of an origin moves only the URLs of that origin.
//! Cost: one pass over the origins and a sort; `Hash` reads the URL once per origin.

/// How the requests to a site are spread over the origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight.
    #[default]
    RoundRobin,
    /// The origin with the fewest unfinished requests, by weight.
    LeastBusy,
    /// Always the same origin for a URL.
    Hash,
    /// The first origin in the list that is in service.
    First,
}

/// The load and weight of an origin, for the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// The origin's share of requests; 0: the origin is out of service.
    pub(crate) weight: u32,
    /// The origin's unfinished requests.
    pub(crate) busy: u32,
}

/// Chooses among the origins of a site.
#[derive(Clone, Debug)]
pub(crate) struct Balancer {
    balance: Balance,
    /// The credit of each origin, for nginx's smooth weighted round-robin: an origin with weight 3
    /// beside two origins with weight 1 gets a, b, a, c, a and not a, a, a, b, c.
    owed: Vec<i64>,
}

impl Balancer {
    pub(crate) fn new(balance: Balance, origins: usize) -> Self {
        Self {
            balance,
            owed: vec![0; origins],
        }
    }

    /// The origins in service for a request to `url`, in the order in which to try them.
    pub(crate) fn order(&mut self, loads: &[Load], url: &[u8]) -> Vec<usize> {
        debug_assert_eq!(loads.len(), self.owed.len());
        let mut order: Vec<usize> = (0..loads.len().min(self.owed.len()))
            .filter(|&n| loads[n].weight > 0)
            .collect();
        match self.balance {
            Balance::First => {}
            Balance::Hash => {
                let score = |n: usize| rendezvous(url, n, loads[n].weight);
                order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            }
            Balance::RoundRobin => {
                self.take_turn(&order, loads);
                order.sort_by_key(|&n| -self.owed[n]);
                self.settle(&order, loads);
            }
            Balance::LeastBusy => {
                let least = order.iter().map(|&n| Busyness::from_load(loads[n])).min();
                let equal = order.iter().copied();
                let equal: Vec<usize> = equal
                    .filter(|&n| Some(Busyness::from_load(loads[n])) == least)
                    .collect();
                self.take_turn(&equal, loads);
                order.sort_by_key(|&n| (Busyness::from_load(loads[n]), -self.owed[n]));
                self.settle(&order[..equal.len()], loads);
            }
        }
        order
    }

    fn take_turn(&mut self, candidates: &[usize], loads: &[Load]) {
        for &n in candidates {
            self.owed[n] += i64::from(loads[n].weight);
        }
    }

    /// Charges the weights of all candidates to the first candidate, which has its turn.
    fn settle(&mut self, candidates: &[usize], loads: &[Load]) {
        let all: i64 = candidates.iter().map(|&n| i64::from(loads[n].weight)).sum();
        if let Some(&first) = candidates.first() {
            self.owed[first] -= all;
        }
    }
}

/// Unfinished requests by weight, including the request to be sent; compared as a fraction.
#[derive(Clone, Copy, Debug)]
struct Busyness {
    busy: u64,
    weight: u64,
}

impl Busyness {
    fn from_load(load: Load) -> Self {
        Self {
            busy: u64::from(load.busy) + 1,
            weight: load.weight.into(),
        }
    }
}

impl Ord for Busyness {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (one, two) = (self.busy * other.weight, other.busy * self.weight);
        one.cmp(&two)
    }
}

impl PartialOrd for Busyness {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Busyness {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Busyness {}

/// The score of origin `n` for a URL (weighted rendezvous hashing). It depends on no other origin,
/// so a changed weight moves URLs only to or from that origin.
fn rendezvous(url: &[u8], n: usize, weight: u32) -> f64 {
    // FNV-1a over the URL and the number, then the finalizer of SplitMix64, because FNV by itself
    // spreads the last bytes badly. The hash is equal in every process, so that several boxes
    // choose alike.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in url.iter().chain(&(n as u64).to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    // 53 bits, as many as a float holds, above 0 and below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let fraction = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    f64::from(weight) / -fraction.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(weights: &[u32]) -> Vec<Load> {
        let load = |&weight: &u32| Load { weight, busy: 0 };
        weights.iter().map(load).collect()
    }

    fn firsts(balance: Balance, loads: &[Load], times: usize) -> Vec<usize> {
        let mut balancer = Balancer::new(balance, loads.len());
        let mut first = || balancer.order(loads, b"/")[0];
        (0..times).map(|_| first()).collect()
    }

    fn url(n: usize) -> Vec<u8> {
        format!("/pages/{n}?q={}", n % 7).into_bytes()
    }

    #[test]
    fn round_robin_is_smooth_and_by_weight() {
        let turns = firsts(Balance::RoundRobin, &loads(&[3, 1, 1]), 10);
        assert_eq!(turns, [0, 1, 0, 2, 0, 0, 1, 0, 2, 0]);
        let turns = firsts(Balance::RoundRobin, &loads(&[1, 1]), 4);
        assert_eq!(turns, [0, 1, 0, 1]);
    }

    #[test]
    fn an_origin_out_of_service_is_in_no_order() {
        for balance in [
            Balance::RoundRobin,
            Balance::LeastBusy,
            Balance::Hash,
            Balance::First,
        ] {
            let mut balancer = Balancer::new(balance, 3);
            let order = balancer.order(&loads(&[0, 1, 1]), b"/");
            assert_eq!(order.len(), 2, "{balance:?}");
            assert!(!order.contains(&0), "{balance:?}");
            assert!(balancer.order(&loads(&[0, 0, 0]), b"/").is_empty());
        }
    }

    #[test]
    fn an_origin_that_returns_is_not_flooded_with_the_turns_it_missed() {
        let mut balancer = Balancer::new(Balance::RoundRobin, 2);
        for _ in 0..100 {
            assert_eq!(balancer.order(&loads(&[0, 1]), b"/"), [1]);
        }
        let mut turns = [0, 0];
        for _ in 0..20 {
            turns[balancer.order(&loads(&[1, 1]), b"/")[0]] += 1;
        }
        assert_eq!(turns, [10, 10]);
    }

    #[test]
    fn the_least_busy_origin_is_first_by_weight() {
        let mut balancer = Balancer::new(Balance::LeastBusy, 3);
        let load = |weight, busy| Load { weight, busy };
        let order = balancer.order(&[load(1, 2), load(1, 0), load(1, 1)], b"/");
        assert_eq!(order, [1, 2, 0]);
        // Eight requests on a weight of 10 are fewer than one on a weight of 1.
        let order = balancer.order(&[load(10, 8), load(1, 1), load(1, 4)], b"/");
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn origins_that_are_equally_busy_take_turns() {
        assert_eq!(
            firsts(Balance::LeastBusy, &loads(&[1, 1, 1]), 6),
            [0, 1, 2, 0, 1, 2]
        );
    }

    #[test]
    fn a_url_has_always_the_same_origin() {
        let mut balancer = Balancer::new(Balance::Hash, 4);
        for n in 0..100 {
            let once = balancer.order(&loads(&[1, 1, 1, 1]), &url(n));
            assert_eq!(once, balancer.order(&loads(&[1, 1, 1, 1]), &url(n)));
        }
    }

    #[test]
    fn a_dead_origin_moves_its_own_urls_only_and_spreads_them() {
        let mut balancer = Balancer::new(Balance::Hash, 4);
        let mut moved_to = [0; 4];
        for n in 0..4000 {
            let before = balancer.order(&loads(&[1, 1, 1, 1]), &url(n));
            let after = balancer.order(&loads(&[1, 0, 1, 1]), &url(n));
            if before[0] == 1 {
                assert_eq!(after[0], before[1]);
                moved_to[after[0]] += 1;
            } else {
                assert_eq!(after[0], before[0]);
            }
        }
        for n in [0, 2, 3] {
            assert!((250..420).contains(&moved_to[n]), "{moved_to:?}");
        }
    }

    #[test]
    fn a_url_hash_respects_weights() {
        let mut balancer = Balancer::new(Balance::Hash, 2);
        let mut counts = [0; 2];
        for n in 0..4000 {
            counts[balancer.order(&loads(&[1, 3]), &url(n))[0]] += 1;
        }
        assert!((900..1100).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn first_keeps_the_order_of_the_list() {
        assert_eq!(firsts(Balance::First, &loads(&[1, 9]), 3), [0, 0, 0]);
        let mut balancer = Balancer::new(Balance::First, 2);
        assert_eq!(balancer.order(&loads(&[0, 9]), b"/"), [1]);
    }
}
