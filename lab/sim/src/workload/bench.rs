//! The workloads of `hashcache bench engine`, as requests of a trace.

use hashcache_workload::{Kind, Shape, Sizes, Workload};

use super::{Draw, Drawn, Settings};

/// See the module's head.
pub struct Bench(Workload);

impl Bench {
    pub fn new(shape: Shape, settings: &Settings) -> Self {
        let sizes = match shape {
            Shape::Pages => Sizes::Web,
            Shape::Polymix | Shape::Shared | Shape::Singles => Sizes::ByType,
        };
        let clients = usize::try_from(settings.clients.max(1)).unwrap_or(usize::MAX);
        let mut workload = Workload::new(settings.seed, shape, sizes, PAGE_OBJECTS, clients);
        workload.set_working_set(settings.working_set);
        Self(workload)
    }
}

impl Draw for Bench {
    fn draw(&mut self, _client: u64) -> Drawn {
        let request = self.0.request();
        let name = self.0.name(request.object);
        Drawn {
            // What is named as HTML would be a page of its own, not an object of its group.
            name: name.strip_suffix(".html").unwrap_or(&name).to_owned(),
            bytes: self.0.content(request.object).len() as u64,
            group: match request.group {
                0 => String::new(),
                page => format!("http://bench.example/page/{page}"),
            },
            may_be_stored: request.kind != Kind::Uncacheable,
        }
    }
}

const PAGE_OBJECTS: u64 = 13;
