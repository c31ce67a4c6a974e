//! What benchmarks request: four workloads, each from a seed.
//!
//! A client visits a page with its objects, or a single object, which is new or was visited before.
//! Either clients send one request each in turn ([`Workload::request`]), or a client takes a whole
//! visit and sends its requests as it likes ([`Workload::visit`]).
//!
//! - `pages` (module `pages`): pages of 13 objects of their own.
//! - `polymix`, `shared`, `singles` (module `polymix`): the objects of Web Polygraph's Polymix-4,
//!   on pages, on pages that share images, and without pages.
//!
//! `draw` draws numbers from distributions.
//!
//! Used by `hashcache bench engine`, `hashcache-sim` and campaigns. Invariant: equal seeds give
//! equal requests, whatever the store answers.

mod content;
pub mod draw;
mod pages;
mod polymix;

use std::collections::{HashSet, VecDeque};

use content::Contents;
pub use content::{Object, Sizes, Type};
use pages::Pages;
use polymix::{Form, Polymix};

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Pages of --related objects of their own, requested as a whole, by Zipf's law
    Pages,
    /// Polymix-4: 1 to 13 images per page, 20 % single objects, a hot set
    Polymix,
    /// The same, but half of the images are shared by 16 pages of a site
    Shared,
    /// The objects of Polymix-4 without pages
    Singles,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is requested.
    pub object: Object,
    /// Number of the page that it belongs to; 0: none.
    pub group: u64,
    /// What a store can do with it.
    pub kind: Kind,
}

/// What a store can do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The object was stored before: a hit, unless the store lost it.
    Again,
    /// First request for an object that may be stored.
    New,
    /// The response may not be stored.
    Uncacheable,
}

/// Objects and requests for them.
pub struct Workload {
    random: fastrand::Rng,
    contents: Contents,
    named_hosts: Option<NamedHosts>,
    source: Box<dyn Source>,
    clients: Vec<Visit>,
    turn: usize,
    /// Shared images that were requested.
    shown: HashSet<Object>,
}

/// Which hosts the names of objects of [`Shape::Pages`] have.
struct NamedHosts {
    /// Objects of a page.
    related: u64,
    /// Hosts of a page, which no other page has.
    hosts: u64,
}

impl NamedHosts {
    fn of(&self, number: u64) -> u64 {
        number / self.related * self.hosts + number % self.related % self.hosts
    }
}

/// Chooses visits.
trait Source: Send {
    /// The next visit of a client.
    fn visit(&mut self, draw: &mut Draw<'_>) -> Visit;

    /// Sets the working set: only about the newest `objects` objects are requested again.
    fn set_working_set(&mut self, objects: u64);
}

/// What a source needs to choose a visit.
struct Draw<'a> {
    random: &'a mut fastrand::Rng,
    contents: &'a Contents,
    /// False while the store is being filled.
    may_repeat: bool,
    /// The first object of each new visit that has not ended.
    open: Vec<Object>,
}

impl Draw<'_> {
    /// Number of the first objects of `kind`, at most `next`, whose visits have certainly ended.
    fn complete(&self, kind: Type, next: u64) -> u64 {
        let open = self.open.iter().filter(|object| object.kind() == kind);
        open.map(|object| object.number()).fold(next, u64::min)
    }
}

/// A client's visit: the objects that it has still to request.
#[derive(Clone, Debug, Default)]
struct Visit {
    objects: VecDeque<Object>,
    group: u64,
    /// First object of a new visit; `None` for a repeated one.
    new: Option<Object>,
}

impl Workload {
    /// `clients` clients request objects of `sizes`. `related`: objects of a page of
    /// [`Shape::Pages`].
    pub fn new(seed: u64, shape: Shape, sizes: Sizes, related: u64, clients: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let contents = Contents::new(seed, sizes, &mut random);
        Self {
            random,
            contents,
            named_hosts: None,
            source: match shape {
                Shape::Pages => Box::new(Pages::new(related)),
                Shape::Polymix => Box::new(Polymix::new(Form::Pages)),
                Shape::Shared => Box::new(Polymix::new(Form::SharedImages)),
                Shape::Singles => Box::new(Polymix::new(Form::Singles)),
            },
            clients: vec![Visit::default(); clients],
            turn: 0,
            shown: HashSet::new(),
        }
    }

    /// The same requests, where the names of objects of [`Shape::Pages`] begin with a host: the
    /// `related` objects of a page have `hosts` hosts. See [`scheme_and_host`].
    pub fn with_hosts_in_names(self, related: u64, hosts: u64) -> Self {
        Self {
            named_hosts: Some(NamedHosts { related, hosts }),
            ..self
        }
    }

    /// The URL of `object`.
    pub fn name(&self, object: Object) -> String {
        match &self.named_hosts {
            Some(named) if object.kind() == Type::Web => {
                format!(
                    "http://{:x}.{}",
                    named.of(object.number()),
                    object.address()
                )
            }
            _ => format!("http://{}", object.address()),
        }
    }

    /// Sets the working set: only about the newest `objects` objects are requested again.
    pub fn set_working_set(&mut self, objects: u64) {
        self.source.set_working_set(objects);
    }

    /// The next object to fill the store with.
    pub fn fill(&mut self) -> Request {
        loop {
            let request = self.next(false);
            if request.kind == Kind::New {
                return request;
            }
        }
    }

    /// All requests of the next visit of `client`, a number below that of the clients. The page
    /// comes first. Objects that this visit requests for the first time are requested again only
    /// after the client's next visit has begun.
    pub fn visit(&mut self, client: usize) -> Vec<Request> {
        self.whole_visit(client, true)
    }

    /// The same, with a page or an object that was not requested before, to fill a store with.
    pub fn new_visit(&mut self, client: usize) -> Vec<Request> {
        self.whole_visit(client, false)
    }

    fn whole_visit(&mut self, client: usize, may_repeat: bool) -> Vec<Request> {
        self.begin_visit(client, may_repeat);
        let objects = std::mem::take(&mut self.clients[client].objects);
        let visit = &self.clients[client];
        let (group, is_new) = (visit.group, visit.new.is_some());
        let mut requests: Vec<Request> = objects
            .into_iter()
            .map(|object| Request {
                object,
                group,
                kind: self.kind_of(object, is_new),
            })
            .collect();
        // In `pages`, objects that may not be stored stand between the others.
        let page = requests
            .iter()
            .position(|it| it.object.kind() != Type::Dynamic);
        if let Some(page) = page {
            requests[..=page].rotate_right(1);
        }
        requests
    }

    /// The next request.
    pub fn request(&mut self) -> Request {
        self.next(true)
    }

    fn next(&mut self, may_repeat: bool) -> Request {
        let client = self.turn;
        self.turn = (self.turn + 1) % self.clients.len();
        loop {
            if let Some(object) = self.clients[client].objects.pop_front() {
                let visit = &self.clients[client];
                let (group, is_new) = (visit.group, visit.new.is_some());
                let kind = self.kind_of(object, is_new);
                return Request {
                    object,
                    group,
                    kind,
                };
            }
            self.begin_visit(client, may_repeat);
        }
    }

    fn begin_visit(&mut self, client: usize, may_repeat: bool) {
        self.clients[client] = Visit::default();
        let open = self.clients.iter().filter_map(|visit| visit.new);
        self.clients[client] = self.source.visit(&mut Draw {
            open: open.collect(),
            random: &mut self.random,
            contents: &self.contents,
            may_repeat,
        });
    }

    fn kind_of(&mut self, object: Object, is_new: bool) -> Kind {
        if !self.contents.is_cacheable(object) {
            return Kind::Uncacheable;
        }
        // An image may be new to a page although another page has requested it before.
        let is_new = match object.kind() {
            Type::SharedImage => self.shown.insert(object),
            _ => is_new,
        };
        if is_new { Kind::New } else { Kind::Again }
    }

    /// The content of `object`.
    pub fn content(&self, object: Object) -> &[u8] {
        self.contents.content(object)
    }

    /// What is stored beside the content.
    pub fn metadata(&self, object: Object) -> Vec<u8> {
        self.contents.metadata(object)
    }

    /// Mean size of the next objects to fill the store with, as records, bytes. Uses them up.
    pub fn sample_record_bytes(mut self) -> u32 {
        let sum: u64 = (0..SAMPLE)
            .map(|_| {
                let object = self.fill().object;
                self.contents.record_bytes(object)
            })
            .sum();
        u32::try_from(sum / SAMPLE).expect("objects are at most a few MiB")
    }
}

/// Scheme and host of a name.
pub fn scheme_and_host(name: &[u8]) -> &[u8] {
    let path = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    path.map(|(at, _)| at).nth(2).map_or(name, |at| &name[..at])
}

const SAMPLE: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 4] = [Shape::Pages, Shape::Polymix, Shape::Shared, Shape::Singles];

    fn filled(shape: Shape, objects: u64) -> (Workload, HashSet<Object>) {
        let mut workload = Workload::new(1, shape, Sizes::ByType, 13, 8);
        workload.set_working_set(objects / 4);
        let stored: HashSet<Object> = (0..objects).map(|_| workload.fill().object).collect();
        assert_eq!(stored.len() as u64, objects, "an object came twice");
        (workload, stored)
    }

    #[test]
    fn about_60_of_100_requests_are_for_stored_objects_and_20_to_26_for_new_ones() {
        for shape in SHAPES {
            let (mut workload, _) = filled(shape, 20_000);
            let requests: Vec<Request> = (0..40_000).map(|_| workload.request()).collect();
            let share = |kind| {
                let of_kind = requests.iter().filter(|request| request.kind == kind);
                of_kind.count() as f64 / 40_000.0
            };
            let (again, new) = (share(Kind::Again), share(Kind::New));
            assert!((0.57..0.63).contains(&again), "{shape:?}: {again}");
            assert!((0.18..0.26).contains(&new), "{shape:?}: {new}");
        }
    }

    #[test]
    fn an_object_is_requested_again_only_after_its_first_request() {
        for shape in SHAPES {
            let (mut workload, mut stored) = filled(shape, 8_000);
            for _ in 0..20_000 {
                let request = workload.request();
                match request.kind {
                    Kind::Again => assert!(stored.contains(&request.object), "{request:?}"),
                    Kind::New => assert!(stored.insert(request.object), "{request:?}"),
                    Kind::Uncacheable => assert!(!stored.contains(&request.object)),
                }
            }
        }
    }

    #[test]
    fn repeats_stay_within_the_working_set() {
        for shape in [Shape::Pages, Shape::Polymix, Shape::Singles] {
            let (mut workload, mut stored) = filled(shape, 20_000);
            workload.set_working_set(1_000);
            let mut order: Vec<Object> = Vec::new();
            let mut repeated = HashSet::new();
            for _ in 0..4_000 {
                let request = workload.request();
                match request.kind {
                    Kind::New => {
                        stored.insert(request.object);
                        order.push(request.object);
                    }
                    Kind::Again => {
                        repeated.insert(request.object);
                    }
                    Kind::Uncacheable => {}
                }
            }
            // The working set moves on by what is new meanwhile.
            let most = 1_000 + order.len() + 300;
            assert!(repeated.len() <= most, "{shape:?}: {}", repeated.len());
        }
    }

    #[test]
    fn a_visit_begins_with_its_page_and_repeats_only_visits_that_have_ended() {
        for shape in SHAPES {
            let mut workload = Workload::new(1, shape, Sizes::ByType, 13, 8);
            workload.set_working_set(500);
            let mut stored = HashSet::new();
            for n in 0..1_000 {
                let new = workload.new_visit(n % 8);
                stored.extend(new.iter().map(|request| request.object));
            }
            // What these clients requested last is still on its way.
            let mut open: Vec<HashSet<Object>> = vec![HashSet::new(); 8];
            let mut again = 0;
            for n in 0..2_000 {
                let client = n * 5 % 8;
                stored.extend(open[client].drain());
                let visit = workload.visit(client);
                assert_ne!(visit[0].object.kind(), Type::Dynamic, "{shape:?}");
                assert!(visit.iter().all(|it| it.group == visit[0].group));
                let repeats = visit.iter().filter(|it| it.kind == Kind::Again);
                for request in repeats.filter(|it| it.object.kind() != Type::SharedImage) {
                    assert!(stored.contains(&request.object), "{shape:?}: {request:?}");
                    again += 1;
                }
                open[client] = visit.iter().map(|request| request.object).collect();
            }
            assert!(again > 1_000, "{shape:?}: {again}");
        }
    }

    #[test]
    fn requests_follow_from_the_seed_alone() {
        for shape in SHAPES {
            let requests = |seed| -> Vec<Request> {
                let mut workload = Workload::new(seed, shape, Sizes::ByType, 13, 8);
                workload.set_working_set(500);
                (0..1_500).for_each(|_| {
                    workload.fill();
                });
                (0..2_000).map(|_| workload.request()).collect()
            };
            assert_eq!(requests(7), requests(7), "{shape:?}");
            assert_ne!(requests(7), requests(8), "{shape:?}");
        }
    }

    #[test]
    fn a_page_has_as_many_hosts_as_asked_for_and_shares_none() {
        for hosts in [1, 3] {
            let workload = Workload::new(1, Shape::Pages, Sizes::Web, 13, 8);
            let mut workload = workload.with_hosts_in_names(13, hosts);
            let mut page_of = std::collections::HashMap::new();
            for _ in 0..13_000 {
                let request = workload.fill();
                let name = workload.name(request.object);
                let host = scheme_and_host(name.as_bytes()).to_vec();
                assert!(host.starts_with(b"http://") && host.ends_with(b".example"));
                let first = *page_of.entry(host).or_insert(request.group);
                assert_eq!(first, request.group, "{name}");
            }
            let pages: HashSet<u64> = page_of.values().copied().collect();
            let all = pages.len() as u64 * hosts;
            // The last pages are not requested as a whole.
            assert!((all - 8 * (hosts - 1)..=all).contains(&(page_of.len() as u64)));
        }
        assert_eq!(scheme_and_host(b"no URL"), b"no URL");
    }

    #[test]
    fn pages_of_several_clients_are_interleaved() {
        let (mut workload, _) = filled(Shape::Pages, 20_000);
        let groups: Vec<u64> = (0..1_000).map(|_| workload.request().group).collect();
        let neighbours = groups.windows(2).filter(|two| two[0] == two[1]).count();
        assert!(neighbours < 100, "{neighbours}");
        let same_client = groups.windows(9).filter(|nine| nine[0] == nine[8]).count();
        assert!(same_client > 850, "{same_client}");
    }

    #[test]
    fn polymix_requests_have_the_types_of_polymix_4() {
        for shape in [Shape::Polymix, Shape::Shared, Shape::Singles] {
            let (mut workload, _) = filled(shape, 20_000);
            let types: Vec<Type> = (0..40_000)
                .map(|_| workload.request().object.kind())
                .collect();
            let share = |of: &[Type]| {
                let found = types.iter().filter(|kind| of.contains(kind));
                found.count() as f64 / 40_000.0
            };
            let images = share(&[Type::Image, Type::SharedImage]);
            assert!((0.62..0.70).contains(&images), "{shape:?}: {images}");
            let html = share(&[Type::Html]);
            assert!((0.13..0.17).contains(&html), "{shape:?}: {html}");
            let singles = share(&[Type::Other, Type::Download]);
            assert!((0.17..0.23).contains(&singles), "{shape:?}: {singles}");
        }
    }

    #[test]
    fn only_shared_images_are_stored_for_one_page_and_requested_for_another() {
        for shape in [Shape::Polymix, Shape::Shared] {
            let (mut workload, _) = filled(shape, 20_000);
            let mut pages = std::collections::HashMap::new();
            let mut foreign = 0;
            for _ in 0..20_000 {
                let request = workload.request();
                let first = *pages.entry(request.object).or_insert(request.group);
                foreign += u32::from(first != request.group);
            }
            assert_eq!(foreign > 0, shape == Shape::Shared, "{shape:?}: {foreign}");
        }
    }
}
