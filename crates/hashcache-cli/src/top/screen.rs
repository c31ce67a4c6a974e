//! The screen of `hashcache top`.
//!
//! Drawn anew at each update and each change of the window. On a narrow or low terminal the parts
//! are below each other, and parts that do not fit are left out.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use hashcache_settings::units::{about_size, show_percent};

/// The data on the screen.
pub(super) struct Shown {
    /// Address of the proxy's admin listener.
    admin: String,
    view: Value,
    /// Requests per second, the latest first.
    course: VecDeque<u64>,
    /// The reason why the latest figures are missing.
    failure: Option<String>,
}

impl Shown {
    pub(super) fn new(admin: String, view: Value) -> Self {
        let mut shown = Self {
            admin,
            view: Value::Null,
            course: VecDeque::new(),
            failure: None,
        };
        shown.update(view);
        shown
    }

    pub(super) fn update(&mut self, view: Value) {
        let rate = view["rates"]["requests"].as_f64().unwrap_or(0.0);
        // In tenths, so that rates below one request per second are visible.
        self.course.push_front(whole(rate * 10.0));
        self.course.truncate(COURSE);
        self.view = view;
        self.failure = None;
    }

    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.failure = Some(error.to_string());
    }
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown) {
    let area = frame.area();
    let rows = [
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(10),
        Constraint::Min(4),
    ];
    let [title, figures, course, middle, bottom] = Layout::vertical(rows).areas(area);
    frame.render_widget(heading(shown), title);
    frame.render_widget(figures_of(&shown.view), figures);
    draw_course(frame, shown, course);
    let is_wide = area.width >= WIDE;
    let (left, right) = halves(middle, is_wide);
    frame.render_widget(sources(&shown.view), left);
    if let Some(right) = right {
        frame.render_widget(state(&shown.view), right);
    }
    let most = if is_wide { bottom.width / NAMES } else { 1 };
    let tables: Vec<_> = tables(&shown.view).take(most.into()).collect();
    let areas = Layout::horizontal(tables.iter().map(|_| Constraint::Fill(1)))
        .spacing(GAP)
        .split(bottom);
    for ((heading, lines), area) in tables.into_iter().zip(areas.iter()) {
        frame.render_widget(names(lines, heading, area.width), *area);
    }
}

/// Tables of names, the most important first. Empty tables are left out, except sites.
fn tables(view: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    let has_lines = |key: &str| view[key].as_array().is_some_and(|it| !it.is_empty());
    let tables = ["sites", "clients", "users", "networks"].map(|key| (key, &view[key]));
    let tables = tables.into_iter();
    tables.filter(move |(key, _)| *key == "sites" || has_lines(key))
}

/// Two areas side by side, or the whole area if there is no room.
fn halves(area: Rect, is_wide: bool) -> (Rect, Option<Rect>) {
    if !is_wide {
        return (area, None);
    }
    let half = Constraint::Percentage(50);
    let [left, right] = Layout::horizontal([half, half]).spacing(GAP).areas(area);
    (left, Some(right))
}

fn heading(shown: &Shown) -> Paragraph<'_> {
    let view = &shown.view;
    if let Some(failure) = &shown.failure {
        let text = format!("{failure}; q ends");
        return Paragraph::new(text).style(Style::new().fg(Color::Red));
    }
    let store = view["store"].as_str().unwrap_or("-");
    let color = match store {
        "ready" => Color::Green,
        _ => Color::Red,
    };
    let store = match view["offline"].as_bool() {
        Some(true) => format!("{store}, offline"),
        _ => store.to_owned(),
    };
    let up = view["uptime_seconds"].as_u64().unwrap_or(0) / 60;
    let line = Line::from(vec![
        Span::from("HashCache ").bold(),
        Span::from(view["version"].as_str().unwrap_or_default()),
        Span::from("  cache "),
        Span::from(store).fg(color),
        Span::from(format!(
            "  up {} h {} min  {}  q ends",
            up / 60,
            up % 60,
            shown.admin
        )),
    ]);
    Paragraph::new(line)
}

/// Hits, requests and saved bytes: now, in the last day and in the last week.
fn figures_of(view: &Value) -> Table<'_> {
    let spans = ["recent", "day", "week"].map(|span| &view[span]);
    let number = |span: &Value, key: &str| span[key].as_u64().unwrap_or(0);
    let row = |name: &'static str, show: &dyn Fn(&Value) -> String| {
        let cells = spans.iter().map(|span| right(show(span)));
        Row::new([Cell::from(name)].into_iter().chain(cells))
    };
    let rows = [
        row("hits", &|it| {
            show_percent(number(it, "hits"), number(it, "requests"))
        }),
        row("requests", &|it| number(it, "requests").to_string()),
        row("saved", &|it| {
            let saved = number(it, "saved_bytes");
            let part = show_percent(saved, number(it, "served_bytes"));
            format!("{} ({part})", about_size(saved))
        }),
        row("to clients", &|it| about_size(number(it, "client_bytes"))),
    ];
    let header = ["", "last minute", "24 hours", "7 days"].map(|it| right(it.to_owned()));
    let widths = [
        Constraint::Length(11),
        Constraint::Length(16),
        Constraint::Length(16),
        Constraint::Length(16),
    ];
    Table::new(rows, widths).header(Row::new(header).bold())
}

fn draw_course(frame: &mut Frame<'_>, shown: &Shown, area: Rect) {
    let rate = |key: &str| shown.view["rates"][key].as_f64().unwrap_or(0.0);
    let title = format!(
        "{:.1} requests/s, {}/s to clients, {}/s from origins",
        rate("requests"),
        about_size(whole(rate("client_bytes"))),
        about_size(whole(rate("origin_bytes")))
    );
    let data: Vec<u64> = shown.course.iter().copied().collect();
    let sparkline = Sparkline::default()
        .block(Block::new().title(title.bold()))
        .data(data)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(sparkline, area);
}

/// Sources of the bytes in the last day.
fn sources(view: &Value) -> Table<'_> {
    let kinds = view["day"]["kinds"].as_object();
    let mut kinds: Vec<(&str, u64, u64)> = kinds
        .into_iter()
        .flatten()
        .map(|(name, counts)| {
            let count = |key: &str| counts[key].as_u64().unwrap_or(0);
            (name.as_str(), count("requests"), count("bytes"))
        })
        .filter(|(_, requests, _)| *requests > 0)
        .collect();
    kinds.sort_by_key(|(.., bytes)| std::cmp::Reverse(*bytes));
    let rows = kinds.into_iter().map(|(name, requests, bytes)| {
        Row::new([
            Cell::from(name.to_owned()),
            right(requests.to_string()),
            right(about_size(bytes)),
        ])
    });
    let header = [
        Cell::from("source, 24 hours"),
        right("requests".to_owned()),
        right("bytes".to_owned()),
    ];
    let widths = [
        Constraint::Min(12),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    Table::new(rows, widths).header(Row::new(header).bold())
}

/// Memory by purpose, devices, connections and peers.
fn state(view: &Value) -> Table<'_> {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let mut rows: Vec<(String, String)> = Vec::new();
    for (name, bytes) in view["memory"].as_object().into_iter().flatten() {
        rows.push((name.clone(), about_size(count(bytes))));
    }
    let (disk, rates) = (&view["disk"], &view["rates"]);
    let per_second = |key: &str| rates[key].as_f64().unwrap_or(0.0);
    rows.push((
        format!("devices, {} failed", count(&disk["devices_out"])),
        count(&disk["devices"]).to_string(),
    ));
    rows.push((
        "reads, writes".to_owned(),
        format!(
            "{:.0}/s, {:.0}/s",
            per_second("reads"),
            per_second("writes")
        ),
    ));
    let connections = &view["connections"];
    rows.push((
        "clients, tunnels".to_owned(),
        format!(
            "{}, {}",
            count(&connections["clients"]),
            count(&connections["tunnels"])
        ),
    ));
    let peers = view["peers"].as_array().into_iter().flatten();
    let down = peers.filter(|peer| peer["up"] != true).count();
    if down > 0 {
        rows.push(("peers that are down".to_owned(), down.to_string()));
    }
    let rows = rows
        .into_iter()
        .map(|(name, value)| Row::new([Cell::from(name), right(value)]));
    let widths = [Constraint::Min(12), Constraint::Length(12)];
    Table::new(rows, widths).header(Row::new([Cell::from("memory, disks, state")]).bold())
}

/// The largest sites, clients, users or networks in the last day. In a narrow table, the names take
/// the column of the requests.
fn names<'a>(lines: &'a Value, heading: &'static str, width: u16) -> Table<'a> {
    let requests_width = if width < REQUESTS { 0 } else { 9 };
    let lines = lines.as_array().into_iter().flatten();
    let rows = lines.map(|line| {
        let count = |key: &str| line[key].as_u64().unwrap_or(0);
        Row::new([
            Cell::from(line["name"].as_str().unwrap_or_default()),
            right(count("requests").to_string()),
            right(show_percent(count("hits"), count("requests"))),
            right(about_size(count("client_bytes"))),
        ])
    });
    let header = [
        Cell::from(format!("{heading}, 24 hours")),
        right("requests".to_owned()),
        right("hits".to_owned()),
        right("bytes".to_owned()),
    ];
    let widths = [
        Constraint::Min(12),
        Constraint::Length(requests_width),
        Constraint::Length(5),
        Constraint::Length(7),
    ];
    Table::new(rows, widths).header(Row::new(header).bold())
}

/// A rate without its fraction; 0 if the number is no rate.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a fraction is to be cut off"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

/// Number of updates in the graph of rates; no terminal is wider.
const COURSE: usize = 500;
/// Columns from which parts are side by side.
const WIDE: u16 = 78;
/// Columns of a table of names.
const NAMES: u16 = 39;
/// Columns from which a table of names shows the requests.
const REQUESTS: u16 = 48;
/// Columns between tables that are side by side.
const GAP: u16 = 2;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn view() -> Value {
        let totals = json!({
            "requests": 200, "hits": 150, "client_bytes": 4_000_000, "served_bytes": 4_000_000,
            "origin_bytes": 1_000_000, "saved_bytes": 3_000_000,
            "kinds": { "memory": { "requests": 150, "bytes": 3_000_000 },
                       "origin": { "requests": 50, "bytes": 1_000_000 } },
        });
        json!({
            "version": "0.1.0", "store": "ready", "uptime_seconds": 7_260,
            "recent": totals, "day": totals, "week": totals,
            "rates": { "requests": 12.5, "client_bytes": 250_000.0, "origin_bytes": 0.0 },
            "memory": { "index": 1_000, "free": 2_000 },
            "disk": { "devices": 2, "devices_out": 1 },
            "connections": { "clients": 3, "tunnels": 4 },
            "peers": [{ "name": "hub", "kind": "parent", "up": false }],
            "sites": [{ "name": "a.test\u{1b}[2J", "requests": 9, "hits": 3,
                        "client_bytes": 5_000 }],
            "clients": [{ "name": "192.0.2.7", "requests": 8, "hits": 2, "client_bytes": 6_000 }],
            "users": [{ "name": "ada", "requests": 7, "hits": 1, "client_bytes": 7_000 }],
            "networks": [],
        })
    }

    fn shown() -> Shown {
        Shown::new("127.0.0.1:3180".to_owned(), view())
    }

    fn screen(width: u16, height: u16, shown: &Shown) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, shown)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        let screen = screen(100, 34, &shown());
        for text in [
            "HashCache 0.1.0  cache ready  up 2 h 1 min  127.0.0.1:3180",
            "75 %",
            "3.00MB (75 %)",
            "12.5 requests/s, 250KB/s to clients, 0/s from origins",
            "index",
            "devices, 1 failed",
            "peers that are down",
            "192.0.2.7",
            "a.test",
        ] {
            assert!(screen.contains(text), "{text} in\n{screen}");
        }
        assert!(
            !screen.contains('\u{1b}') && !screen.contains("networks"),
            "{screen}"
        );
        let usual = self::screen(80, 24, &shown());
        for text in ["a.test", "192.0.2.7", "peers that are down"] {
            assert!(usual.contains(text), "{text} in\n{usual}");
        }
        let wide = self::screen(200, 50, &shown());
        assert!(
            wide.contains("users, 24 hours") && wide.contains("ada"),
            "{wide}"
        );
    }

    #[test]
    fn no_terminal_is_too_small() {
        let shown = shown();
        for (width, height) in [(1, 1), (20, 5), (40, 20), (77, 24), (200, 3)] {
            screen(width, height, &shown);
        }
        let narrow = screen(60, 30, &shown);
        assert!(
            narrow.contains("a.test") && !narrow.contains("192.0.2.7"),
            "{narrow}"
        );
    }

    #[test]
    fn a_proxy_that_does_not_answer_is_told_and_its_figures_stay() {
        let mut shown = shown();
        shown.fail(&anyhow::anyhow!("cannot ask the proxy"));
        let screen = screen(100, 34, &shown);
        assert!(screen.contains("cannot ask the proxy; q ends"), "{screen}");
        assert!(screen.contains("a.test"), "{screen}");
        // An answer of another version lacks keys.
        shown.update(Value::Null);
        self::screen(100, 34, &shown);
    }
}
