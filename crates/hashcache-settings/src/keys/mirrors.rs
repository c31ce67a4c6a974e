//! Mirrors of package registries.

use super::types::MIRROR;
use crate::key::{Key, Section};

pub(super) static SECTION: Section = Section {
    heading: "Mirrors",
    keys: KEYS,
};

static KEYS: &[Key] = &[many!("mirror", reloadable.mirrors, MIRROR)
    .flag()
    .example("[\"npm=https://registry.example/\"]")
    .about("Mirror a package registry at /mirror/NAME/; KIND is pypi, npm, crates or apt")
    .details(
        "URL is the registry's base URL; after it, separated by spaces, the other places that \
             its index links files from. NAME is the kind unless given. A [[mirror]] table says \
             the same.",
    )
    .page("mirrors.md#details")];
