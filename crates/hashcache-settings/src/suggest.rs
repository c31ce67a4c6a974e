//! "Did you mean …": the known name that is nearest to an unknown name.

/// Setting names in other caches, with our name for each.
const FOREIGN: [(&str, &str); 9] = [
    ("http_port", "listen"),
    ("port", "listen"),
    ("cache_dir", "cache"),
    ("cache_mem", "memory"),
    ("proxy_pass", "accelerate"),
    ("upstream", "accelerate"),
    ("maximum_object_size", "max_object_size"),
    ("visible_hostname", "name"),
    ("rules", "rule"),
];

/// Returns the name in `known` that `unknown` most likely stands for, if any is similar enough.
///
/// A key without its table (`head_time` for `limits.head_time`) has distance 0. Otherwise one wrong
/// letter in three is accepted: a wrong suggestion is worse than none.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let unknown = unknown.to_lowercase().replace('-', "_");
    let own = FOREIGN
        .iter()
        .find(|(foreign, _)| *foreign == unknown)
        .map(|&(_, own)| own);
    let last = unknown.rsplit('.').next().unwrap_or(&unknown);
    known
        .into_iter()
        .map(|name| {
            let distance = if own == Some(name) || name.rsplit('.').next() == Some(last) {
                0
            } else {
                strsim::damerau_levenshtein(&unknown, &name.to_lowercase())
            };
            (distance, name)
        })
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, _)| distance <= unknown.len().div_ceil(3))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] = [
        "listen",
        "cache_size",
        "memory",
        "limits.head_time",
        "policy",
    ];

    #[test]
    fn a_slip_of_the_finger_finds_the_name_meant() {
        for (unknown, meant) in [
            ("lsiten", "listen"),
            ("cache-sise", "cache_size"),
            ("Memory", "memory"),
            ("limit.head_tme", "limits.head_time"),
            ("polcy", "policy"),
        ] {
            assert_eq!(nearest(unknown, KNOWN), Some(meant), "{unknown}");
        }
    }

    #[test]
    fn a_key_without_its_table_finds_the_table() {
        assert_eq!(nearest("head_time", KNOWN), Some("limits.head_time"));
    }

    #[test]
    fn the_words_of_other_caches_are_understood() {
        assert_eq!(nearest("cache_mem", KNOWN), Some("memory"));
        assert_eq!(nearest("http_port", KNOWN), Some("listen"));
    }

    #[test]
    fn a_name_like_no_other_gets_no_suggestion() {
        assert_eq!(nearest("frobnicate", KNOWN), None);
        assert_eq!(nearest("", KNOWN), None);
    }
}
