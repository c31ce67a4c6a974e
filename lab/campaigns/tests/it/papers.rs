//! Some figures of each paper with tiny sizes, and the pages.

use std::fs;
use std::path::Path;

use super::layouts::can_run;

#[test]
fn figures_of_each_paper_are_drawn_and_both_pages_name_those_that_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("papers");
    // A row for each figure. The layouts cannot run everywhere.
    let least = if can_run() { 6 } else { 4 };
    let output = ["--output", directory.to_str().unwrap()];
    super::passed(super::campaign("papers").args(output), least);
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let page = read("README.md");
    assert!(
        !directory.join("index.html").exists(),
        "it was not asked for"
    );

    // The results that were kept give the same page again, and the page of HTML.
    let mut again = super::campaign("papers");
    let again = again.args(["--redraw", "--html", "--json"]).args(output);
    assert!(again.output().unwrap().status.success());
    assert_eq!(page, read("README.md"));
    let html = read("index.html");
    let pictures = pictures(&page);
    assert!(pictures.len() >= least, "{pictures:?}");
    for name in &pictures {
        let picture = read(name);
        assert_eq!(fault(&picture), None, "{name}");
    }
    assert_eq!(html.matches("<img ").count(), pictures.len());
    for text in [&page, &html] {
        assert!(text.contains("Figure 16") && text.contains("Not drawn:"));
    }
}

/// The pictures that a page of Markdown shows.
fn pictures(page: &str) -> Vec<String> {
    let ends = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let names = ends.filter(|name| {
        let extension = Path::new(name).extension();
        extension.is_some_and(|extension| extension == "svg")
    });
    names.map(str::to_owned).collect()
}

/// What is wrong with an XML text: an element that is not closed, or closed without being open, or
/// a number that is none.
fn fault(text: &str) -> Option<String> {
    let mut open: Vec<&str> = vec![];
    for part in text.split('<').skip(1) {
        let (tag, _) = part.split_once('>')?;
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or(tag));
        }
    }
    if let Some(name) = open.last() {
        return Some(format!("<{name}> is open at the end"));
    }
    ["NaN", "inf\""]
        .into_iter()
        .find(|word| text.contains(word))
        .map(str::to_owned)
}

#[test]
fn a_text_that_is_not_well_formed_is_told() {
    assert_eq!(fault("<svg><a b=\"1\"/><c>d</c></svg>"), None);
    assert!(fault("<svg><c></svg>").is_some());
    assert!(fault("<svg>").is_some());
    assert!(fault("<svg x=\"NaN\"/>").is_some());
}
