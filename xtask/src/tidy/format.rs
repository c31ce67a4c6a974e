//! docs/FORMAT.md says of every record what the code says: field by field, offset and size.
//!
//! The document has a heading `record: NAME` before each table `offset | size | field | meaning`;
//! the code has a list `NAME_LAYOUT` of (field, offset, size) in `crates/hashcache/src/format`.
//! Rows whose offset or size is no number (parts of variable length) are the document's alone.

use std::collections::BTreeMap;

use super::{Finding, Tree, numbered};

const DOCUMENT: &str = "docs/FORMAT.md";
const SOURCES: &str = "crates/hashcache/src/format";
/// Ends the name of a record's list.
const LAYOUT: &str = "_LAYOUT";

/// Field, offset, size.
type Field = (String, u64, u64);

/// A record as one side tells it.
struct Record {
    path: String,
    line: usize,
    fields: Vec<Field>,
}

/// Compares the two.
pub fn format(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![];
    let Some(text) = tree.text(DOCUMENT) else {
        return vec![Finding::new(DOCUMENT, 0, "is missing")];
    };
    let told = records_of_document(text, &mut findings);
    let mut coded = BTreeMap::new();
    for (path, text) in tree
        .below(SOURCES)
        .filter(|(path, _)| path.ends_with(".rs"))
    {
        coded.extend(records_of_source(path, text, &mut findings));
    }
    if coded.is_empty() {
        let what = format!("no list `…{LAYOUT}` in the code to compare with");
        findings.push(Finding::new(SOURCES, 0, what));
    }
    for (name, record) in &coded {
        match told.get(name) {
            None => {
                let what = format!("record {name} is not in {DOCUMENT}");
                findings.push(Finding::new(&record.path, record.line, what));
            }
            Some(telling) => findings.extend(differences(name, telling, record)),
        }
        findings.extend(gaps(name, record));
    }
    for (name, record) in told.iter().filter(|(name, _)| !coded.contains_key(*name)) {
        let what = format!("record {name} has no list `{name}{LAYOUT}` in the code");
        findings.push(Finding::new(&record.path, record.line, what));
    }
    findings
}

/// Fields on which the two do not agree, name, offset and size together.
fn differences(name: &str, told: &Record, coded: &Record) -> Vec<Finding> {
    let show = |(field, offset, size): &Field| format!("{field} (offset {offset}, size {size})");
    let missing = |from: &Record, other: &Record, whom: &str| -> Vec<Finding> {
        let only = from
            .fields
            .iter()
            .filter(|field| !other.fields.contains(field));
        only.map(|field| {
            let what = format!("record {name}: {} is in the {whom} only", show(field));
            Finding::new(&from.path, from.line, what)
        })
        .collect()
    };
    [
        missing(told, coded, "document"),
        missing(coded, told, "code"),
    ]
    .concat()
}

/// Fields of the code that overlap or leave bytes between them that nobody accounts for.
fn gaps(name: &str, record: &Record) -> Vec<Finding> {
    let mut findings = vec![];
    let mut end = record.fields.first().map_or(0, |&(_, offset, _)| offset);
    for (field, offset, size) in &record.fields {
        if *offset != end {
            let what = format!("record {name}: {field} begins at {offset}, not at {end}");
            findings.push(Finding::new(&record.path, record.line, what));
        }
        end = offset.saturating_add(*size);
    }
    findings
}

fn records_of_document(text: &str, findings: &mut Vec<Finding>) -> BTreeMap<String, Record> {
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    let mut current: Option<String> = None;
    for (number, line) in numbered(text) {
        if line.starts_with('#') {
            current = line.split_once("record:").map(|(_, name)| canonical(name));
            if let Some(name) = &current {
                let record = Record {
                    path: DOCUMENT.to_owned(),
                    line: number,
                    fields: vec![],
                };
                if records.insert(name.clone(), record).is_some() {
                    let what = format!("record {name} is told twice");
                    findings.push(Finding::new(DOCUMENT, number, what));
                }
            }
            continue;
        }
        let Some(record) = current.as_ref().and_then(|name| records.get_mut(name)) else {
            continue;
        };
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        if let (true, [offset, size, field, ..]) = (line.starts_with('|'), cells.as_slice())
            && let (Some(offset), Some(size)) = (number_of(offset), number_of(size))
        {
            record.fields.push(((*field).to_owned(), offset, size));
        }
    }
    records
}

fn records_of_source(
    path: &str,
    text: &str,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    for (number, line) in numbered(text) {
        let Some((_, after)) = line.split_once("const ") else {
            continue;
        };
        let Some((constant, _)) = after.split_once(':') else {
            continue;
        };
        let Some(name) = constant.trim().strip_suffix(LAYOUT) else {
            continue;
        };
        let rest: Vec<&str> = text.lines().skip(number - 1).collect();
        let fields = list(&rest.join("\n"));
        if fields.is_none() {
            let what =
                format!("{name}{LAYOUT} is no list of (\"field\", offset, size) in plain numbers");
            findings.push(Finding::new(path, number, what));
        }
        let record = Record {
            path: path.to_owned(),
            line: number,
            fields: fields.unwrap_or_default(),
        };
        records.insert(canonical(name), record);
    }
    records
}

/// The tuples of the list whose declaration `text` begins with; `None` if it has another form.
fn list(text: &str) -> Option<Vec<Field>> {
    let (_, body) = text.split_once('=')?;
    let (body, _) = body.split_once(';')?;
    let without_comments: Vec<&str> = body
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .collect();
    let body = without_comments.concat();
    let body = body.trim().strip_prefix("&[")?.strip_suffix(']')?;
    let tuples = body.split('(').skip(1).map(|tuple| {
        let (tuple, _) = tuple.split_once(')')?;
        let parts: Vec<&str> = tuple
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect();
        let [field, offset, size] = parts[..] else {
            return None;
        };
        let field = field.strip_prefix('"')?.strip_suffix('"')?;
        Some((field.to_owned(), number_of(offset)?, number_of(size)?))
    });
    tuples
        .collect::<Option<Vec<Field>>>()
        .filter(|fields| !fields.is_empty())
}

/// A name in the form of a constant: both sides may write it as suits them.
fn canonical(name: &str) -> String {
    name.trim()
        .trim_matches('`')
        .to_uppercase()
        .replace(['-', ' '], "_")
}

fn number_of(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const CODE: &str = "//! Superblock.\n\
        pub(crate) const SUPER_BLOCK_LAYOUT: &[(&str, usize, usize)] = &[\n\
            (\"magic\", 0, 8), // eight letters\n\
            (\"version\", 8, 4),\n\
        ];\n";
    const TOLD: &str = "# Format\n## record: super block\n\
        | offset | size | field | meaning |\n|---|---|---|---|\n\
        | 0 | 8 | `magic` | who we are |\n| 0x8 | 4 | version | 1 |\n| 12 | n | rest | more |\n";

    fn found(document: &str, code: &str) -> Vec<String> {
        findings(
            format,
            &[
                (DOCUMENT, document),
                ("crates/hashcache/src/format/a.rs", code),
            ],
        )
    }

    #[test]
    fn a_document_that_agrees_with_the_code_is_fine() {
        assert_eq!(found(TOLD, CODE), [""; 0]);
    }

    #[test]
    fn a_field_of_another_size_offset_or_name_is_found_on_both_sides() {
        for (from, to) in [
            ("| 0x8 | 4 |", "| 8 | 2 |"),
            ("| 0x8 |", "| 9 |"),
            ("version", "edition"),
        ] {
            let found = found(&TOLD.replace(from, to), CODE);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found[0].starts_with("docs/FORMAT.md:2: "), "{found:?}");
            assert!(
                found[1].contains("version (offset 8, size 4) is in the code only"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_record_that_only_one_side_has_is_found() {
        let more = format!("{TOLD}## record: BATCH\n");
        let expected = "docs/FORMAT.md:8: record BATCH has no list `BATCH_LAYOUT` in the code";
        assert_eq!(found(&more, CODE), [expected]);
        let more =
            format!("{CODE}const BATCH_LAYOUT: &[(&str, usize, usize)] = &[(\"a\", 0, 1)];\n");
        let expected = "crates/hashcache/src/format/a.rs:6: record BATCH is not in docs/FORMAT.md";
        assert_eq!(found(TOLD, &more), [expected]);
    }

    #[test]
    fn bytes_that_no_field_accounts_for_are_found() {
        let code = CODE.replace("(\"version\", 8, 4)", "(\"version\", 12, 4)");
        let document = TOLD.replace("| 0x8 |", "| 12 |");
        let expected = "record SUPER_BLOCK: version begins at 12, not at 8";
        assert!(found(&document, &code)[0].ends_with(expected));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_found_not_passed_over() {
        let code = CODE.replace("8, 4", "MAGIC_BYTES, 4");
        assert!(found(TOLD, &code)[0].contains("in plain numbers"));
    }

    #[test]
    fn nothing_to_compare_is_found() {
        assert_eq!(
            findings(format, &[("a.rs", CODE)]),
            ["docs/FORMAT.md: is missing"]
        );
        assert_eq!(found("# Format\n", "//! Nothing.\n").len(), 1);
    }
}
