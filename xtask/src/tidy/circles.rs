//! No circles: neither the top-level modules of a crate nor the files of a folder, nested folders
//! included, import each other.
//!
//! An import is a `use` or a path that begins with `crate`, `self` or `super`; re-exports are
//! followed to the file that has the item. Tests may import whatever they test. A folder's own
//! `mod.rs` may import its files: it declares them and passes on what they offer.
//!
//! Invariant: a circle that is allowed in [`ALLOWED`] can only shrink: a member that is in no
//! circle any more is an error.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree};

/// Circles that are left, as modules of one crate.
struct Allowed {
    of_crate: &'static str,
    /// The folder with the circle; `None` for top-level modules of the crate.
    within: Option<&'static str>,
    members: &'static [&'static str],
    /// Why it is still there; `cargo xtask tidy` does not read it.
    #[expect(dead_code, reason = "for the reader of this table")]
    reason: &'static str,
}

const ALLOWED: &[Allowed] = &[
    Allowed {
        of_crate: "crates/hashcache-settings",
        within: None,
        members: &[
            "access",
            "environment",
            "file",
            "given",
            "key",
            "keys",
            "limit",
            "mirror",
            "peers",
            "site",
            "values",
        ],
        reason: "a row of the table of settings names the reader of its value, and readers of \
                 tables look up other rows",
    },
    Allowed {
        of_crate: "crates/hashcache-proxy",
        within: Some("metrics"),
        members: &[
            "metrics/exposition",
            "metrics/figures",
            "metrics/links",
            "metrics/moment",
            "metrics/origins",
            "metrics/peers",
            "metrics/quotas",
            "metrics/table",
        ],
        reason: "a row of the table of metrics reads a snapshot of all sources, which the \
                 exposition has together with the table",
    },
];

/// Looks for circles in every crate.
pub fn circles(tree: &Tree) -> Vec<Finding> {
    find(tree, ALLOWED)
}

fn find(tree: &Tree, allowed: &[Allowed]) -> Vec<Finding> {
    let mut findings = vec![];
    for of_crate in crates(tree) {
        let imports = Imports::new(tree, &of_crate);
        let folders = imports.folders();
        let folders = folders.iter().map(|folder| Some(folder.as_str()));
        for within in [None].into_iter().chain(folders) {
            let graph = imports.graph(within);
            let of_folder = |it: &&Allowed| it.of_crate == of_crate && it.within == within;
            let allowed: Vec<&Allowed> = allowed.iter().filter(of_folder).collect();
            let knots = knots(&graph);
            for knot in &knots {
                let covers = |it: &&Allowed| knot.iter().all(|name| it.members.contains(&&**name));
                if !allowed.iter().any(covers) {
                    findings.push(imports.finding(knot, &graph));
                }
            }
            let in_a_knot: BTreeSet<&String> = knots.iter().flatten().collect();
            for name in allowed.iter().flat_map(|it| it.members) {
                if !in_a_knot.contains(&(*name).to_owned()) {
                    let what = format!(
                        "`{name}` of `{of_crate}` is in no circle any more: take it out of ALLOWED"
                    );
                    findings.push(Finding::new("xtask/src/tidy/circles.rs", 0, what));
                }
            }
        }
    }
    findings
}

/// Directories of crates.
fn crates(tree: &Tree) -> BTreeSet<String> {
    let roots = ["/src/lib.rs", "/src/main.rs"];
    let of_root = |(path, _): (&str, &str)| {
        let root = roots.iter().find(|root| path.ends_with(**root))?;
        Some(path[..path.len() - root.len()].to_owned())
    };
    tree.ending(".rs").filter_map(of_root).collect()
}

/// Names of modules, and of those that each imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// What the files of a crate import. A module is named by its path from `src`: `request/hit`; the
/// root has the empty name.
struct Imports {
    /// The file of each module.
    files: BTreeMap<String, String>,
    /// What each module imports of which other one.
    edges: BTreeMap<(String, String), String>,
}

impl Imports {
    fn new(tree: &Tree, of_crate: &str) -> Self {
        let source = format!("{of_crate}/src/");
        let mut files = BTreeMap::new();
        let mut codes = BTreeMap::new();
        let mut tests: BTreeSet<String> = BTreeSet::new();
        for (path, text) in tree
            .below(&source)
            .filter(|(path, _)| path.ends_with(".rs"))
        {
            let name = module_name(&path[source.len()..]);
            tests.extend(test_modules(text).map(|test| joined(&name, &test)));
            codes.insert(name.clone(), without_tests(&code(text)));
            files.insert(name, path.to_owned());
        }
        let is_test = |name: &str| tests.iter().any(|test| is_within(name, test));
        codes.retain(|name, _| !is_test(name));
        files.retain(|name, _| !is_test(name));
        let paths: BTreeMap<&String, Paths> = codes
            .iter()
            .map(|(name, code)| (name, Paths::new(code, name, &files)))
            .collect();
        let mut edges = BTreeMap::new();
        for (name, own) in &paths {
            for path in &own.all {
                let target = resolve(path, &files, &paths, 0);
                if target != **name && !name.is_empty() && !target.is_empty() {
                    edges
                        .entry(((*name).clone(), target))
                        .or_insert_with(|| path.join("::"));
                }
            }
        }
        Self { files, edges }
    }

    /// Top-level modules with files in a folder of their name.
    fn folders(&self) -> BTreeSet<String> {
        let nested = self.files.keys().filter(|name| name.contains('/'));
        nested.map(|name| top(name).to_owned()).collect()
    }

    /// Imports between top-level modules, or between all files `within` a folder, nested folders
    /// included.
    fn graph(&self, within: Option<&str>) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in self.edges.keys() {
            let (from, to) = match within {
                None => (top(from), top(to)),
                // A folder's `mod.rs` may import its files.
                Some(folder)
                    if is_within(from, folder) && is_within(to, folder) && !is_within(to, from) =>
                {
                    (&**from, &**to)
                }
                Some(_) => continue,
            };
            if from != to {
                graph
                    .entry(from.to_owned())
                    .or_default()
                    .insert(to.to_owned());
            }
        }
        graph
    }

    /// The imports of one circle in `knot`.
    fn finding(&self, knot: &BTreeSet<String>, graph: &Graph) -> Finding {
        let circle = shortest_circle(knot, graph);
        let file_of = |name: &String| {
            let own = self.files.get(name);
            let inside = || {
                self.files
                    .iter()
                    .find(|(module, _)| is_within(module, name))
            };
            own.or_else(|| inside().map(|(_, path)| path))
        };
        let imports = circle.iter().zip(circle.iter().cycle().skip(1));
        let imports = imports.filter_map(|(from, to)| {
            let is_it = |edge: &&(String, String)| {
                is_within(&edge.0, from) && is_within(&edge.1, to)
                    || (&edge.0, &edge.1) == (from, to)
            };
            let edge = self.edges.keys().find(is_it)?;
            Some(format!("`{}` imports `{}`", edge.0, self.edges[edge]))
        });
        let imports: Vec<String> = imports.collect();
        let path = circle.first().and_then(file_of).map_or("", String::as_str);
        let what = format!(
            "modules import each other in a circle of {}: {}",
            knot.len(),
            imports.join(", ")
        );
        Finding::new(path, 0, what)
    }
}

/// The name of the module in the file at `path` from `src`.
fn module_name(path: &str) -> String {
    let name = path.strip_suffix(".rs").unwrap_or(path);
    let name = name.strip_suffix("/mod").unwrap_or(name);
    match name {
        "lib" | "main" => String::new(),
        _ => name.to_owned(),
    }
}

fn joined(module: &str, name: &str) -> String {
    match module {
        "" => name.to_owned(),
        _ => format!("{module}/{name}"),
    }
}

/// Whether `name` is `folder` or a module in it.
fn is_within(name: &str, folder: &str) -> bool {
    let rest = name.strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn top(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// Modules in files of their own that `text` declares for tests alone.
fn test_modules(text: &str) -> impl Iterator<Item = String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = |(n, line): (usize, &&str)| {
        let declared = line.strip_suffix(';')?.rsplit_once("mod ")?.1;
        let is_test = n > 0 && is_test_attribute(lines[n - 1]);
        is_test.then(|| declared.to_owned())
    };
    let found: Vec<String> = lines.iter().enumerate().filter_map(declared).collect();
    found.into_iter()
}

fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[cfg(test") || line.starts_with("#[cfg(all(test")
}

/// `text` without comments, strings and characters.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(inside) = rest.strip_prefix("r#\"") {
            inside.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if c == '"' {
            string_length(rest)
        } else if c == '\'' {
            character_length(rest)
        } else {
            code.push(c);
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    code
}

/// How long the string is that `rest` begins with.
fn string_length(rest: &str) -> usize {
    let mut is_escaped = true;
    for (at, c) in rest.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// How long the character is that `rest` begins with; 1 for a lifetime.
fn character_length(rest: &str) -> usize {
    let inside = &rest[1..];
    if let Some(escaped) = inside.strip_prefix('\\') {
        let first = escaped.chars().next().map_or(0, char::len_utf8);
        return escaped[first..]
            .find('\'')
            .map_or(rest.len(), |end| end + first + 3);
    }
    let first = inside.chars().next().map_or(0, char::len_utf8);
    if inside[first..].starts_with('\'') {
        first + 2
    } else {
        1
    }
}

/// `code` without modules for tests.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = ["#[cfg(test", "#[cfg(all(test"]
        .iter()
        .filter_map(|it| rest.find(it))
        .min()
    {
        let (before, test) = rest.split_at(at);
        kept.push_str(before);
        let end = item_length(test);
        rest = &test[end..];
    }
    kept + rest
}

/// How long the item is that an attribute at the start of `item` belongs to: to the end of its
/// block, or to its semicolon.
fn item_length(item: &str) -> usize {
    let mut depth = 0;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

/// A path from the root of the crate, name by name.
type CratePath = Vec<String>;

/// The paths that a module names.
#[derive(Default)]
struct Paths {
    all: Vec<CratePath>,
    /// Those of `use`, by the name they have in the module.
    imported: BTreeMap<String, CratePath>,
}

impl Paths {
    fn new(code: &str, module: &str, files: &BTreeMap<String, String>) -> Self {
        let mut paths = Self::default();
        let mut rest = code;
        while let Some(at) = next_use(rest) {
            paths.add_plain(&rest[..at], module, files);
            let inside = &rest[at + 4..];
            let end = inside.find(';').unwrap_or(inside.len());
            for (path, name) in expanded(&[], &inside[..end]) {
                if let Some(path) = absolute(&path, module, files) {
                    paths.imported.insert(name, path.clone());
                    paths.all.push(path);
                }
            }
            rest = &inside[end..];
        }
        paths.add_plain(rest, module, files);
        paths
    }

    /// Paths outside of `use`.
    fn add_plain(&mut self, code: &str, module: &str, files: &BTreeMap<String, String>) {
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in code.split(|c: char| !is_name(c)) {
            let names: CratePath = word.split("::").map(str::to_owned).collect();
            let begins = ["crate", "self", "super"].contains(&names[0].as_str());
            if begins && names.len() > 1 {
                self.all.extend(absolute(&names, module, files));
            }
        }
    }
}

/// Where the next `use` stands.
fn next_use(code: &str) -> Option<usize> {
    let is_word = |at: &usize| {
        let before = code[..*at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || c == ';' || c == '}' || c == '{')
    };
    code.match_indices("use ").map(|(at, _)| at).find(is_word)
}

/// The paths of a tree of `use`, each with the name it is given.
fn expanded(before: &[String], tree: &str) -> Vec<(CratePath, String)> {
    let tree = tree.trim();
    if let Some((prefix, inside)) = tree.split_once('{') {
        let mut path = before.to_vec();
        let names = prefix.split("::").map(str::trim);
        path.extend(names.filter(|it| !it.is_empty()).map(str::to_owned));
        let inside = inside.trim_end().strip_suffix('}').unwrap_or(inside);
        return branches(inside)
            .iter()
            .flat_map(|branch| expanded(&path, branch))
            .collect();
    }
    if tree.is_empty() {
        return vec![];
    }
    let (names, alias) = match tree.split_once(" as ") {
        Some((names, alias)) => (names, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut path = before.to_vec();
    path.extend(names.split("::").map(|it| it.trim().to_owned()));
    if path.len() > 1 && path.last().is_some_and(|it| it == "self") {
        path.pop();
    }
    let name = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    vec![(path, name)]
}

/// The parts of `inside` between commas that are in no inner braces.
fn branches(inside: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (vec![], 0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[from..]);
    parts
}

/// `path` of `module` from the root of the crate; `None` when it leads into another crate.
fn absolute(path: &[String], module: &str, files: &BTreeMap<String, String>) -> Option<CratePath> {
    let mut own: CratePath = module.split('/').map(str::to_owned).collect();
    own.retain(|it| !it.is_empty());
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            own.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|it| it == "super") {
                own.pop();
                rest = &rest[1..];
            }
        }
        first if files.contains_key(&joined(module, first)) => {}
        _ => return None,
    }
    own.extend_from_slice(rest);
    Some(own)
}

/// The module that has what `path` names.
fn resolve(
    path: &[String],
    files: &BTreeMap<String, String>,
    paths: &BTreeMap<&String, Paths>,
    depth: usize,
) -> String {
    let mut length = path.len();
    while length > 0 && !files.contains_key(&path[..length].join("/")) {
        length -= 1;
    }
    let module = path[..length].join("/");
    let passed_on = path
        .get(length)
        .and_then(|name| paths.get(&module)?.imported.get(name));
    match passed_on {
        Some(other) if depth < 8 => {
            let whole = [other.as_slice(), &path[length + 1..]].concat();
            resolve(&whole, files, paths, depth + 1)
        }
        _ => module,
    }
}

/// Sets of modules each of which reaches all others of its set.
fn knots(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> = graph
        .keys()
        .map(|from| (from, reached(from, graph)))
        .collect();
    let mut knots: Vec<BTreeSet<String>> = vec![];
    for (from, all) in &reached {
        let is_mutual = |to: &&String| reached.get(to).is_some_and(|back| back.contains(*from));
        let knot: BTreeSet<String> = all.iter().filter(is_mutual).cloned().collect();
        if knot.len() > 1 && !knots.contains(&knot) {
            knots.push(knot);
        }
    }
    knots
}

fn reached(from: &String, graph: &Graph) -> BTreeSet<String> {
    let (mut all, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for to in graph.get(next).into_iter().flatten() {
            if all.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    all
}

/// A circle through the first of `knot` that no other is shorter than.
fn shortest_circle(knot: &BTreeSet<String>, graph: &Graph) -> Vec<String> {
    let Some(first) = knot.first() else {
        return vec![];
    };
    let mut ways = vec![vec![first.clone()]];
    let mut seen = BTreeSet::new();
    loop {
        let mut longer = vec![];
        for way in &ways {
            let last = way.last().unwrap_or(first);
            for to in graph.get(last).into_iter().flatten() {
                if to == first {
                    return way.clone();
                }
                if seen.insert(to.clone()) {
                    longer.push([way.as_slice(), std::slice::from_ref(to)].concat());
                }
            }
        }
        if longer.is_empty() {
            return knot.iter().cloned().collect();
        }
        ways = longer;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const PROXY: &str = "crates/hashcache-proxy";

    fn found(files: &[(&str, &str)], allowed: &[Allowed]) -> Vec<String> {
        let paths: Vec<(String, &str)> = files
            .iter()
            .map(|(path, text)| (format!("{PROXY}/src/{path}"), *text))
            .collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|(path, text)| (&**path, *text)).collect();
        let found = find(&tree(&files), allowed);
        found.iter().map(ToString::to_string).collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod fetch;\nmod metrics;\npub use fetch::A;");

    #[test]
    fn a_circle_that_was_planted_between_folders_is_rejected() {
        let files = [
            ROOT,
            ("fetch/mod.rs", "mod pump;\npub use pump::A;"),
            ("fetch/pump.rs", "use crate::metrics::{Counter, Kind as K};"),
            ("metrics.rs", "fn count(a: &crate::fetch::A) {}"),
        ];
        assert_eq!(
            found(&files, &[]),
            ["crates/hashcache-proxy/src/fetch/mod.rs: \
                modules import each other in a circle of 2: \
                `fetch/pump` imports `metrics::Counter`, `metrics` imports `fetch::A`"]
        );
    }

    #[test]
    fn a_circle_of_files_is_rejected_also_by_way_of_what_the_folder_passes_on() {
        let files = [
            ROOT,
            ("fetch/mod.rs", "mod piece;\nmod pump;\npub use pump::take;"),
            ("fetch/piece.rs", "use super::take;"),
            ("fetch/pump.rs", "use super::piece::Piece;"),
        ];
        let found = found(&files, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("`fetch/pump` imports `fetch::piece::Piece`"),
            "{found:?}"
        );
    }

    #[test]
    fn a_folder_and_its_own_files_are_no_circle() {
        let files = [
            ROOT,
            ("fetch/mod.rs", "mod pump;\nuse pump::Pump;\npub struct A;"),
            ("fetch/pump.rs", "use super::A;\nuse std::fs::{self, File};"),
        ];
        assert!(found(&files, &[]).is_empty());
    }

    #[test]
    fn tests_comments_and_strings_make_no_circle() {
        let test = "// use crate::fetch::A;\nconst A: &str = \"crate::fetch::A\";\n\
            const B: char = '\"';\n\
            #[cfg(test)]\nmod tests { use crate::fetch::A; fn f() {} }\n\
            #[cfg(all(test, loom))]\nmod models;";
        let files = [
            ROOT,
            ("fetch/mod.rs", "use crate::metrics::Counter;"),
            ("metrics.rs", test),
            ("metrics/models.rs", "use crate::fetch::A;"),
        ];
        assert!(found(&files, &[]).is_empty());
    }

    #[test]
    fn a_circle_that_is_allowed_can_only_shrink() {
        let files = [
            ROOT,
            ("fetch/mod.rs", "use crate::metrics::Counter;"),
            ("metrics.rs", "use crate::fetch::A;"),
        ];
        let allowed = |members| Allowed {
            of_crate: PROXY,
            within: None,
            members,
            reason: "a test",
        };
        assert!(found(&files, &[allowed(&["fetch", "metrics"])]).is_empty());
        let more = found(&files, &[allowed(&["fetch", "metrics", "server"])]);
        assert_eq!(
            more,
            [
                "xtask/src/tidy/circles.rs: `server` of `crates/hashcache-proxy` is in no circle \
                any more: take it out of ALLOWED"
            ]
        );
        // What is allowed must cover the whole circle.
        assert_eq!(found(&files, &[allowed(&["fetch"])]).len(), 1);
    }
}
