//! The Grafana board and the alert rules of `packaging/`, held against what proxies export: each
//! metric, label and value that they name must be there.
//!
//! The rules are also given to `promtool` (Debian's package `prometheus`); without it that test
//! says so and ends.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use hashcache_testkit::Client;
use serde_json::Value;

use super::Home;
use super::proxy_intercept::authority;
use super::proxy_link::Pair;
use super::proxy_process::Proxy;
use super::proxy_sites::{front, get, plain, site};

/// Labels of one sample.
type Labels = BTreeMap<String, String>;

/// Labels that Prometheus adds.
const ADDED: [&str; 3] = ["job", "instance", "alertname"];

/// A metric in an expression.
#[derive(Debug, PartialEq, Eq)]
struct Selector {
    name: String,
    /// Label, operator, value.
    matchers: Vec<(String, String, String)>,
}

fn packaged(name: &str) -> PathBuf {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    packaging.join(name)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_word(byte: char) -> bool {
    byte.is_ascii_alphanumeric() || byte == '_'
}

/// The metrics of ours in an expression of PromQL.
fn selectors(expression: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(is_word) {
        let end = rest[at..].find(|it| !is_word(it));
        let end = end.map_or(rest.len(), |end| at + end);
        let (name, after) = (&rest[at..end], &rest[end..]);
        rest = after;
        if !name.starts_with("hashcache_") && !name.starts_with("process_") {
            continue;
        }
        let mut matchers = Vec::new();
        if let Some(inner) = after.strip_prefix('{') {
            let (inner, after) = inner.split_once('}').expect("no value has a brace");
            matchers = inner.split("\",").map(matcher).collect();
            rest = after;
        }
        found.push(Selector {
            name: name.to_owned(),
            matchers,
        });
    }
    found
}

/// Splits `label="value"` into label, operator and value. The closing quote may be missing: `split`
/// has removed it from all matchers but the last.
fn matcher(text: &str) -> (String, String, String) {
    let (label, value) = text.split_once('"').expect("a value in quotes");
    let at = label.find(|it| !is_word(it)).expect("an operator");
    let (label, operator) = label.split_at(at);
    let value = value.trim_end_matches('"');
    (label.to_owned(), operator.to_owned(), value.to_owned())
}

/// The labels in `by (…)` of an expression.
fn grouped_by(expression: &str) -> BTreeSet<String> {
    let groups = expression.split("by (").skip(1);
    let labels = groups.flat_map(|group| group.split(')').next().unwrap_or("").split(','));
    labels.map(|label| label.trim().to_owned()).collect()
}

/// The labels `{{label}}` of a text.
fn shown(text: &str) -> Vec<String> {
    let parts = text.split("{{").skip(1);
    let labels = parts.filter_map(|part| part.split_once("}}"));
    let label = |(inside, _): (&str, &str)| {
        let first = inside.split('|').next().unwrap_or("").trim();
        let label = first.strip_prefix("$labels.").unwrap_or(first);
        (!label.starts_with("$value")).then(|| label.to_owned())
    };
    labels.filter_map(label).collect()
}

/// All samples that proxies of each kind export.
struct Exported(BTreeMap<String, Vec<Labels>>);

impl Exported {
    fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (sample, _) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let labels = labels.trim_end_matches('}').split("\",");
            let labels = labels.filter(|it| !it.is_empty()).map(matcher);
            let labels = labels.map(|(label, _, value)| (label, value)).collect();
            self.0.entry(name.to_owned()).or_default().push(labels);
        }
    }

    /// Why `expression` finds nothing, if that is so.
    fn lacks(&self, expression: &str) -> Option<String> {
        let mut labels = BTreeSet::from(ADDED.map(str::to_owned));
        for selector in selectors(expression) {
            let Some(samples) = self.0.get(&selector.name) else {
                return Some(format!("no metric {}", selector.name));
            };
            labels.extend(samples.iter().flat_map(Labels::keys).cloned());
            for (label, operator, value) in &selector.matchers {
                if ADDED.contains(&&**label) {
                    continue;
                }
                let is_there = |value: &str| {
                    let mut samples = samples.iter();
                    samples.any(|it| it.get(label).is_some_and(|it| it == value))
                };
                let values: Vec<&str> = match &**operator {
                    "=" => vec![value],
                    "=~" | "!~" => value.split('|').collect(),
                    other => return Some(format!("the operator {other} is not tested")),
                };
                if let Some(value) = values.into_iter().find(|value| !is_there(value)) {
                    let name = &selector.name;
                    return Some(format!("no {label}=\"{value}\" of {name}"));
                }
            }
        }
        let mut grouped = grouped_by(expression).into_iter();
        let unknown = grouped.find(|label| !labels.contains(label));
        unknown.map(|label| format!("no label {label}"))
    }

    fn has_label(&self, expression: &str, label: &str) -> bool {
        let names = selectors(expression).into_iter();
        let mut samples = names.flat_map(|it| self.0.get(&it.name).into_iter().flatten());
        ADDED.contains(&label) || samples.any(|labels| labels.contains_key(label))
    }
}

async fn metrics(proxy: &Proxy) -> String {
    let mut client = Client::connect(proxy.admin()).await.unwrap();
    let answer = client.get("/metrics", &[("Host", "localhost")]).await;
    String::from_utf8(answer.unwrap().body).unwrap()
}

/// The metrics of a box with a link, a box that intercepts, and a box in front of a site.
async fn exported() -> Exported {
    let mut exported = Exported(BTreeMap::new());
    let pair = Pair::start(&[], &[]).await;
    exported.add(&metrics(&pair.child.proxy).await);
    let (home, origin) = (Home::new(), plain("page").await);
    let in_front = front(&home, &site(&[&origin], ""));
    get(&in_front, "/", &[]).await;
    exported.add(&metrics(&in_front).await);
    let home = Home::new();
    drop(authority(&home, &[]));
    let ca = home.path().join("ca");
    let ca = format!("--intercept-ca={}", ca.display());
    let flags = [ca.as_str(), "--intercept=a.test"];
    let intercepting = Proxy::start(&home.path().join("c.img"), &flags).unwrap();
    exported.add(&metrics(&intercepting).await);
    let home = Home::new();
    let limits = "[[limit]]\nname = \"pupil\"\nper = \"all\"\nquota = \"500MiB\"\nevery = \"day\"\n\
                  [[access]]\naction = \"limit\"\nlimits = [\"pupil\"]\nclients = [\"all\"]\n";
    let config = home.file("limits.toml", limits);
    let config = format!("--config={}", config.display());
    let limiting = Proxy::start(&home.path().join("c.img"), &[&config]).unwrap();
    get(&limiting, &origin.url("/"), &[]).await;
    exported.add(&metrics(&limiting).await);
    exported
}

/// The expressions of the board, each with the labels that its legend names.
fn of_board(board: &Value) -> Vec<(String, Vec<String>)> {
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let targets = targets.flatten();
    let mut all: Vec<_> = targets
        .map(|target| (text(&target["expr"]), shown(&text(&target["legendFormat"]))))
        .collect();
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter(|it| it["type"] == "query");
    all.extend(queries.map(|it| (text(&it["definition"]), Vec::new())));
    all
}

/// The expressions of the alert rules by their names, each with the labels that its summary names.
fn of_rules(rules: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let rules = rules.split("- alert: ").skip(1);
    rules
        .map(|rule| {
            let (name, rest) = rule.split_once('\n').unwrap();
            let (_, rest) = rest.split_once("expr: ").unwrap();
            let (expression, rest) = rest.split_once("labels:").unwrap();
            (name.to_owned(), (expression.to_owned(), shown(rest)))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_board_and_the_alerts_name_metrics_that_proxies_export() {
    let exported = exported().await;
    let board: Value = serde_json::from_str(&read(&packaged("grafana/hashcache.json"))).unwrap();
    let of_board = of_board(&board);
    assert!(of_board.len() > 40, "{of_board:?}");
    let of_rules = of_rules(&read(&packaged("prometheus/hashcache.rules.yml")));
    assert!(of_rules.len() > 10, "{of_rules:?}");
    for (expression, labels) in of_board.iter().chain(of_rules.values()) {
        let has_metric = !selectors(expression).is_empty() || expression.contains("up{");
        assert!(has_metric, "no metric in {expression}");
        if let Some(lack) = exported.lacks(expression) {
            panic!("{lack}: {expression}");
        }
        for label in labels {
            assert!(
                exported.has_label(expression, label),
                "no label {label}: {expression}"
            );
        }
    }
}

#[test]
fn the_panels_of_the_board_have_places_of_their_own() {
    let board: Value = serde_json::from_str(&read(&packaged("grafana/hashcache.json"))).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let place = |panel: &Value| {
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        (side("x"), side("y"), side("w"), side("h"))
    };
    let mut ids = BTreeSet::new();
    for (n, panel) in panels.iter().enumerate() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let (x, y, w, h) = place(panel);
        assert!(x + w <= 24, "{panel}");
        for other in &panels[..n] {
            let (ox, oy, ow, oh) = place(other);
            let apart = x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y;
            assert!(apart, "{} and {}", panel["title"], other["title"]);
        }
        let is_row = panel["type"] == "row";
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert!(is_row || targets > 0, "{panel}");
        // Where it is imported, a variable chooses the source of the data.
        assert!(is_row || panel["datasource"]["uid"] == "${datasource}");
    }
}

#[test]
fn each_alert_is_in_the_page_on_watching() {
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/WATCHING.md"));
    let rules = of_rules(&read(&packaged("prometheus/hashcache.rules.yml")));
    let described = page.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("| `Hashcache")?.split_once('`')?;
        Some(format!("Hashcache{name}"))
    });
    let described: BTreeSet<String> = described.collect();
    let named: BTreeSet<String> = rules.into_keys().collect();
    assert_eq!(described, named);
}

#[test]
fn promtool_finds_the_rules_right_and_they_fire_when_they_should() {
    let (rules, tests) = ("hashcache.rules.yml", "hashcache.rules.test.yml");
    for arguments in [["check", "rules", rules], ["test", "rules", tests]] {
        let mut command = Command::new("promtool");
        let command = command.args(arguments).current_dir(packaged("prometheus"));
        let output = match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: promtool is not installed");
                return;
            }
            output => output.unwrap(),
        };
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn selectors_are_found_in_expressions() {
    let found = selectors(
        "sum by (a) (rate(hashcache_x_total{job=~\"$job\",a=\"b|c\"}[5m])) / hashcache_y > 0",
    );
    let text = |text: &str| text.to_owned();
    assert_eq!(
        found,
        [
            Selector {
                name: text("hashcache_x_total"),
                matchers: vec![
                    (text("job"), text("=~"), text("$job")),
                    (text("a"), text("="), text("b|c")),
                ],
            },
            Selector {
                name: text("hashcache_y"),
                matchers: vec![],
            },
        ]
    );
    assert_eq!(shown("{{ $labels.a }} {{b}} {{ $value | x }}"), ["a", "b"]);
}
