//! Requests for layouts: made from a seed, or taken from a trace.
//!
//! - `table3`: what the paper's section 4 measures Foxy with (its Table 3, by Web Polygraph): sizes
//!   exp(5 KB), 40 % of the requests for objects that were requested before, by zipf(0.6), and four
//!   servers.
//! - `dec`: in the proportions of the trace that sections 2 and 3 measure with, which nobody
//!   publishes any more (its Table 1: 32 % hits in memory, 4 % reads, 64 % writes). Clients request
//!   the objects of a page in turn, all of one server. A page is new, or it was requested before:
//!   each distance back in the order of requests from one page to all is as likely on a scale of
//!   logarithms. Sizes are log-normal with the mean of that trace, 10.6 KB. The rest is our choice:
//!   1 to 13 objects a page, 2000 servers by zipf(0.8).
//!
//! Invariant: equal seeds give equal requests. An object is equally long in all its requests, but
//! for those of a trace.

use std::collections::HashMap;

use hashcache_workload::draw::{normal, whole, zipf};
use hashcache_workload::scheme_and_host;

use super::Object;
use hashcache_sim::workload::{FOXY_HIT_RATIO, Foxy};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is requested.
    pub object: Object,
    /// How long it is.
    pub bytes: u64,
}

/// Which requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `table3`.
    Table3,
    /// `dec`.
    Dec,
}

/// Makes requests without an end.
pub struct Source(Maker);

enum Maker {
    Table3(Foxy),
    Dec(Dec),
}

impl Source {
    /// Requests that follow from `seed`, of so many clients.
    pub fn new(shape: Shape, seed: u64, clients: usize) -> Self {
        Self(match shape {
            Shape::Table3 => Maker::Table3(Foxy::new(seed, FOXY_HIT_RATIO)),
            Shape::Dec => Maker::Dec(Dec::new(seed, clients)),
        })
    }

    /// The next request.
    pub fn request(&mut self) -> Request {
        match &mut self.0 {
            Maker::Table3(foxy) => {
                let object = foxy.object();
                let (number, server) = (object.number, object.server);
                Request {
                    object: Object { number, server },
                    bytes: object.bytes,
                }
            }
            Maker::Dec(dec) => dec.request(),
        }
    }
}

/// Makes the requests of `dec`.
struct Dec {
    seed: u64,
    random: fastrand::Rng,
    /// Pages that were requested so far.
    known: u64,
    /// They, in the order of their requests.
    history: Vec<u64>,
    /// What each client has still to request of its page, last first.
    clients: Vec<Vec<Request>>,
    turn: usize,
}

impl Dec {
    fn new(seed: u64, clients: usize) -> Self {
        Self {
            seed,
            random: fastrand::Rng::with_seed(seed),
            known: 0,
            history: vec![],
            clients: vec![vec![]; clients.max(1)],
            turn: 0,
        }
    }

    fn request(&mut self) -> Request {
        self.turn = (self.turn + 1) % self.clients.len();
        if self.clients[self.turn].is_empty() {
            let page = self.page();
            self.history.push(page);
            self.clients[self.turn] = self.objects_of(page);
        }
        let next = self.clients[self.turn].pop();
        next.expect("a page has objects")
    }

    fn page(&mut self) -> u64 {
        let pages = self.history.len();
        if pages > 0 && self.random.f64() < DEC_AGAIN {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let back = (pages as f64).powf(self.random.f64());
            let back = usize::try_from(whole(back)).map_or(pages, |back| back.clamp(1, pages));
            return self.history[pages - back];
        }
        self.known += 1;
        self.known - 1
    }

    /// The last one first.
    fn objects_of(&self, page: u64) -> Vec<Request> {
        let mut own = self.random_of(page);
        let server = zipf(&mut own, u64::from(DEC_SERVERS), DEC_ZIPF);
        let server = u32::try_from(server).unwrap_or(0);
        let objects = own.u64(1..=DEC_OBJECTS_MAX);
        let object = |place| {
            let number = page * DEC_OBJECTS_MAX + place;
            let bytes = DEC_MEDIAN_BYTES * (DEC_SIGMA * normal(&mut own)).exp();
            Request {
                object: Object { number, server },
                bytes: whole(bytes).clamp(1, DEC_BYTES_MAX),
            }
        };
        (0..objects).map(object).collect()
    }

    fn random_of(&self, number: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed)
    }
}

/// Gives numbers to the names and hosts of a trace, in the order of their first requests.
#[derive(Default)]
pub struct Numbering {
    names: HashMap<Vec<u8>, u64>,
    hosts: HashMap<Vec<u8>, u32>,
}

impl Numbering {
    /// The request for this URL.
    pub fn request(&mut self, name: &[u8], bytes: u64) -> Request {
        let server = numbered(&mut self.hosts, scheme_and_host(name));
        let number = numbered(&mut self.names, name);
        Request {
            object: Object { number, server },
            bytes,
        }
    }
}

fn numbered<N: Copy + TryFrom<usize>>(numbers: &mut HashMap<Vec<u8>, N>, name: &[u8]) -> N {
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    let number = N::try_from(numbers.len());
    let number = number.unwrap_or_else(|_| unreachable!("memory has no room for as many names"));
    numbers.insert(name.to_owned(), number);
    number
}

/// With this share of repeats, the proportions of Table 1 come out where memory holds a quarter of
/// what the disk holds, as in the paper.
const DEC_AGAIN: f64 = 0.45;
const DEC_SERVERS: u32 = 2000;
const DEC_ZIPF: f64 = 0.8;
const DEC_OBJECTS_MAX: u64 = 13;
/// With this sigma, the mean is 10.6 KB.
const DEC_MEDIAN_BYTES: f64 = 3000.0;
const DEC_SIGMA: f64 = 1.59;
const DEC_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn made(shape: Shape, seed: u64) -> Vec<Request> {
        let mut source = Source::new(shape, seed, 100);
        (0..100_000).map(|_| source.request()).collect()
    }

    fn mean_bytes(requests: &[Request]) -> u64 {
        let sizes: HashMap<u64, u64> = requests
            .iter()
            .map(|request| (request.object.number, request.bytes))
            .collect();
        sizes.values().sum::<u64>() / sizes.len() as u64
    }

    /// Share of requests for objects that were requested before, in 1/100.
    fn again(requests: &[Request]) -> usize {
        let mut known = HashMap::new();
        for request in requests {
            let first = *known.entry(request.object.number).or_insert(*request);
            assert_eq!(first, *request, "an object changes");
        }
        (requests.len() - known.len()) * 100 / requests.len()
    }

    #[test]
    fn table3_has_the_parameters_of_table_3() {
        let requests = made(Shape::Table3, 1);
        assert!((39..=41).contains(&again(&requests)));
        assert!((5000..5240).contains(&mean_bytes(&requests)));
        let mut first = 0;
        for request in &requests {
            first += u32::from(request.object.number < 6_000);
        }
        // zipf(0.6): the first 6000 of n objects have (6000 / n)^0.4 of the repeats; while n grows
        // to 60,000 that is 60 % of them, 23,900, beside the first requests.
        assert!((29_400..30_400).contains(&first), "{first}");
    }

    #[test]
    fn dec_has_the_mean_size_of_the_papers_trace() {
        let requests = made(Shape::Dec, 1);
        let mean = mean_bytes(&requests);
        assert!((10_000..11_200).contains(&mean), "{mean}");
        assert!((40..=50).contains(&again(&requests)));
    }

    #[test]
    fn requests_follow_from_the_seed_alone() {
        for shape in [Shape::Table3, Shape::Dec] {
            assert_eq!(made(shape, 3), made(shape, 3));
            assert_ne!(made(shape, 3), made(shape, 4));
        }
    }

    #[test]
    fn names_and_hosts_of_a_trace_get_numbers() {
        let mut numbering = Numbering::default();
        let mut request = |name: &str| numbering.request(name.as_bytes(), 1).object;
        let first = request("http://a.example/1");
        assert_eq!(request("http://a.example/1"), first);
        let second = request("http://a.example/2");
        assert_eq!((second.number, second.server), (1, first.server));
        assert_ne!(request("http://b.example/1").server, first.server);
    }
}
