//! The workloads `polymix`, `shared` and `singles`: objects and popularity of Web Polygraph's
//! Polymix-4, which the paper measures with.
//!
//! Objects by share of requests: images 65 %, HTML 15 %, downloads 0.5 %, others 19.5 %; 80 % of
//! them may be stored, by type. A page is HTML with `zipf(13)` images (4.5 on average), which are
//! requested always. 68.75 % of the pages and single objects are repeats, which makes 60 % hits if
//! nothing is lost. A repeat is drawn uniformly from the newest objects of its type (the working
//! set), one in ten from a hot set of 1 % of it. Nine in ten repeats then request not the drawn
//! object but the smallest cacheable one within four places of it.
//!
//! Not modelled: validation and reload requests (15 %), POST and HEAD (1.6 %), aborted requests,
//! modification of objects, robots' think times and the phases of a run.

use super::content::{Object, Type};
use super::draw::whole;
use super::{Draw, Source, Visit};

/// What a client visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Pages with images of their own, and single objects.
    Pages,
    /// Pages that share half of their images with others of their site, and single objects.
    SharedImages,
    /// Single objects.
    Singles,
}

pub struct Polymix {
    form: Form,
    worlds: Vec<World>,
}

/// All objects of a type, numbered in the order of their first visit.
struct World {
    kind: Type,
    /// Share of the visits, in relation to the other worlds.
    weight: f64,
    /// The number of the next new object.
    next: u64,
    /// The newest so many objects are visited again.
    working_set: u64,
    /// Where in the working set the hot set begins.
    hot_at: u64,
    /// Repeats until the hot set moves.
    hot_for: u64,
}

impl Polymix {
    pub fn new(form: Form) -> Self {
        let images = (form == Form::Singles).then_some((Type::Image, IMAGES));
        let others = [
            (Type::Html, HTML),
            (Type::Download, DOWNLOADS),
            (Type::Other, OTHERS),
        ];
        let world = |(kind, weight)| World {
            kind,
            weight,
            next: 0,
            working_set: 1,
            hot_at: 0,
            hot_for: 0,
        };
        Self {
            form,
            worlds: images.into_iter().chain(others).map(world).collect(),
        }
    }

    /// The images of a page, the same at every visit.
    fn images(&self, draw: &Draw<'_>, page: Object) -> Vec<Object> {
        let mut choices = draw.contents.choices(page);
        let number = page.number();
        let mut images: Vec<Object> = (0..draw.contents.zipf(page, IMAGES_MAX))
            .map(|place| {
                if self.form == Form::SharedImages && choices.f64() < SHARED {
                    let image = choices.u64(..SITE_IMAGES);
                    Object::new(Type::SharedImage, number / SITE_PAGES * SITE_IMAGES + image)
                } else {
                    Object::new(Type::Image, number << IMAGE_BITS | place)
                }
            })
            .collect();
        images.sort_unstable();
        images.dedup();
        images
    }
}

impl Source for Polymix {
    fn visit(&mut self, draw: &mut Draw<'_>) -> Visit {
        let weights = self.worlds.iter().map(|world| world.weight);
        let mut at = draw.random.f64() * weights.sum::<f64>();
        let drawn = self.worlds.iter().position(|world| {
            at -= world.weight;
            at < 0.0
        });
        let world = &mut self.worlds[drawn.unwrap_or(0)];
        let recurrence = match self.form {
            Form::Pages => RECURRENCE,
            Form::SharedImages => SHARED_RECURRENCE,
            Form::Singles => SINGLES_RECURRENCE,
        };
        let again = draw.may_repeat && draw.random.f64() < recurrence;
        let any = self.form == Form::Singles;
        let known = if again { world.known(draw, any) } else { None };
        let number = known.unwrap_or(world.next);
        world.next += u64::from(known.is_none());
        let first = Object::new(world.kind, number);
        let is_page = world.kind == Type::Html && self.form != Form::Singles;
        let mut visit = Visit {
            objects: [first].into(),
            group: if is_page { number + 1 } else { 0 },
            new: known.is_none().then_some(first),
        };
        if is_page {
            visit.objects.extend(self.images(draw, first));
        }
        visit
    }

    fn set_working_set(&mut self, objects: u64) {
        // Objects that may not be stored are visited, too. Pages that share images have fewer.
        let all = match self.form {
            Form::SharedImages => objects as f64 / CACHEABLE / SHARED_DISTINCT,
            Form::Pages | Form::Singles => objects as f64 / CACHEABLE,
        };
        for world in &mut self.worlds {
            let share = world.weight / (IMAGES + HTML + DOWNLOADS + OTHERS);
            world.working_set = whole(all * share).max(1);
            (world.hot_at, world.hot_for) = (0, 0);
        }
    }
}

impl World {
    /// An object whose first visit has ended, if there are as many as the working set. `any`: the
    /// object may be uncacheable.
    fn known(&mut self, draw: &mut Draw<'_>, any: bool) -> Option<u64> {
        let end = draw.complete(self.kind, self.next);
        let oldest = end.checked_sub(self.working_set)?;
        if self.hot_for == 0 {
            self.hot_at = draw.random.u64(..self.working_set);
            self.hot_for = self.working_set;
        }
        self.hot_for -= 1;
        let place = if draw.random.f64() < HOT_REPEATS {
            let hot = (self.working_set / HOT_PART).max(1);
            (self.hot_at + draw.random.u64(..hot)) % self.working_set
        } else {
            draw.random.u64(..self.working_set)
        };
        let drawn = oldest + place;
        if draw.random.f64() >= SMALL_SHARE {
            return Some(drawn);
        }
        let near = drawn.saturating_sub(NEAR).max(oldest)..=(drawn + NEAR).min(end - 1);
        let object = |number: &u64| Object::new(self.kind, *number);
        near.filter(|number| any || draw.contents.is_cacheable(object(number)))
            .min_by_key(|number| draw.contents.bytes(object(number)))
            .or(Some(drawn))
    }
}

/// Shares of the requests, in 1/100.
const IMAGES: f64 = 65.0;
const HTML: f64 = 15.0;
const DOWNLOADS: f64 = 0.5;
const OTHERS: f64 = 19.5;
/// Share of all requests that may be stored.
const CACHEABLE: f64 = 0.8;
const IMAGES_MAX: u32 = 13;
const IMAGE_BITS: u32 = 4;
/// Share of visits that are repeats: 55 % of requests shall hit, and 80 % of repeats can.
const RECURRENCE: f64 = 0.55 / 0.8;
/// Without pages the repeats are not chosen among objects that may be stored, as images of a page
/// are not; otherwise 60 % hits would leave more objects to be stored than with pages.
const SINGLES_RECURRENCE: f64 = 0.74;
/// Share of repeats that request an object of the hot set.
const HOT_REPEATS: f64 = 0.1;
/// The hot set is one part in so many of the working set. Polygraph moves it "from time to time";
/// here it moves after as many repeats as the working set has objects.
const HOT_PART: u64 = 100;
/// Share of repeats that request the smallest object among the neighbours.
const SMALL_SHARE: f64 = 0.9;
const NEAR: u64 = 4;
/// Share of a page's images that are drawn from the images of its site. A choice of ours, as the
/// next two: Polymix-4 shares none.
const SHARED: f64 = 0.5;
const SITE_PAGES: u64 = 16;
const SITE_IMAGES: u64 = 12;
/// With that, 16 pages draw 36 times from 12 images and meet 11.5 of them: 78 % of the objects are
/// distinct, and 22 % of the requests of new visits are for images that were requested before. So
/// fewer visits must be repeats for as many hits.
const SHARED_DISTINCT: f64 = 0.78;
const SHARED_RECURRENCE: f64 = 0.606;
