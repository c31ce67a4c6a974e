//! Squid's `refresh_pattern`, as freshness rules.
//!
//! A pattern is a regular expression for the whole URL; a rule has patterns for the host and the
//! path. The common forms are read: name suffixes (`\.(gif|png)$`), a directory on a host
//! (`^http://host/dir/`), a host with a name suffix (`host\.com/.*\.(exe|cab)`), every URL (`.`).
//! Other forms are left out and reported.

use std::time::Duration;

use hashcache_settings::units::show_time;
use toml::Value;

use super::draft::{Comments, Draft, Table};
use super::lines::Line;

/// The URLs that a pattern matches.
#[derive(Debug, PartialEq, Eq)]
enum Urls {
    Every,
    /// URLs on FTP or Gopher servers, or URLs for which no lifetime is guessed anyway.
    Never(&'static str),
    Some {
        host: Option<String>,
        paths: Vec<String>,
    },
}

/// Writes the rules for all `refresh_pattern` lines.
pub fn import(draft: &mut Draft, lines: &[&Line]) {
    let mut room = Room {
        rules: RULES_MAX,
        bytes: PATHS_BYTES_MAX,
    };
    for line in lines {
        import_one(draft, line, &mut room);
    }
}

/// Rules and bytes that may still be written.
struct Room {
    rules: usize,
    bytes: usize,
}

impl Room {
    /// Reserves room for a rule; `None`: there is not enough room.
    fn take(&mut self, urls: &Urls) -> Option<()> {
        let bytes = match urls {
            Urls::Some { paths, .. } => paths.iter().map(String::len).sum(),
            _ => 0,
        };
        self.bytes = self.bytes.checked_sub(bytes)?;
        self.rules = self.rules.checked_sub(1)?;
        Some(())
    }
}

fn import_one(draft: &mut Draft, line: &Line, room: &mut Room) {
    let words: Vec<&str> = line.args.iter().map(|it| &*it.text).collect();
    let (ignores_case, words) = match words.split_first() {
        Some((&"-i", words)) => (true, words),
        _ => (false, &words[..]),
    };
    let [regex, min, percent, max, options @ ..] = words else {
        return draft.missing(
            line,
            "expected a pattern, a least time, a percentage and a most time",
        );
    };
    let numbers = (
        min.parse(),
        percent.trim_end_matches('%').parse(),
        max.parse(),
    );
    let (Ok(min), Ok(percent), Ok(max)): (Result<u32, _>, Result<u32, _>, Result<u32, _>) = numbers
    else {
        return draft.missing(
            line,
            "times are minutes, and the percentage is a whole number",
        );
    };
    if regex.len() > PATTERN_MAX {
        return draft.missing(
            line,
            format_args!("its pattern is over {PATTERN_MAX} bytes"),
        );
    }
    let Some(urls) = urls(regex) else {
        let reason = "a freshness rule has patterns of the host and the path, and this regular \
                      expression is none";
        return draft.missing(line, reason);
    };
    if room.take(&urls).is_none() {
        let reason =
            format!("there are more than {RULES_MAX} lines, or {PATHS_BYTES_MAX} bytes of paths");
        return draft.missing(line, reason);
    }
    let mut comments = Comments::from_line(line);
    if ignores_case {
        comments = comments.and("Capitals and small letters are different in a rule.");
    }
    let fields = match urls {
        Urls::Never(reason) => return draft.unneeded(line, reason),
        Urls::Every if (min, percent, max) == SQUIDS_OWN => {
            let reason = "Squid's rule for everything else; the proxy's own is 10 percent and at \
                          most a day, after the rules that ship";
            return draft.unneeded(line, reason);
        }
        Urls::Every => {
            comments = comments.and("This rule stands before those that ship with the program.");
            vec![("path", Value::from("/**"))]
        }
        Urls::Some { host, paths } => {
            let host = host.map(|host| ("host", host.into()));
            let paths = ("path", super::draft::strings(&paths));
            host.into_iter().chain([paths]).collect()
        }
    };
    let for_all = fields.len() == 1 && fields[0].1.as_str() == Some("/**");
    let (field, value) = match min {
        0 => heuristic(percent, max),
        _ if for_all => {
            draft.missing(
                line,
                "the least time: for every URL it would also be for pages with cookies",
            );
            heuristic(percent, max)
        }
        _ => {
            comments = comments.and(format_args!(
                "Squid's lifetime lies between {} and {}; the rule has the first. It is for \
                 everyone, also if a response sets a cookie.",
                minutes(min),
                minutes(max.max(min)),
            ));
            ("lifetime", minutes(min).into())
        }
    };
    for option in options {
        match option_reason(option) {
            Some(reason) => draft.missing(line, format_args!("{option}: {reason}")),
            None => draft.option(
                line,
                option,
                "a reload validates: client_reload says how often",
            ),
        }
    }
    let mut fields = fields;
    fields.push((field, value));
    draft.table(Table {
        array: "rule",
        comments,
        fields,
    });
    draft.imported += 1;
}

fn heuristic(percent: u32, max: u32) -> (&'static str, Value) {
    let mut table = toml::Table::new();
    table.insert("percent".to_owned(), i64::from(percent).into());
    table.insert("max".to_owned(), minutes(max).into());
    ("heuristic", table.into())
}

fn minutes(minutes: u32) -> String {
    match minutes {
        0 => "0s".to_owned(),
        _ => show_time(Duration::from_secs(u64::from(minutes) * 60)),
    }
}

/// Reason why an option is left out; `None`: the proxy does this already.
fn option_reason(option: &str) -> Option<&'static str> {
    match option.split('=').next().unwrap_or(option) {
        "reload-into-ims" | "refresh-ims" => None,
        "override-expire" | "override-lastmod" => Some("what the origin states wins over a rule"),
        "ignore-reload" => Some("client_reload does this for all URLs"),
        "ignore-no-cache"
        | "ignore-no-store"
        | "ignore-private"
        | "ignore-must-revalidate"
        | "ignore-auth" => Some("no-store, private and no-cache of the origin win over every rule"),
        "store-stale" | "max-stale" => {
            Some("how long a response is served stale is not set by URL")
        }
        _ => Some("unknown option"),
    }
}

/// Returns the URLs that a regular expression matches, if it has a known form.
fn urls(regex: &str) -> Option<Urls> {
    if [".", ".*", "^.*$", "^"].contains(&regex) {
        return Some(Urls::Every);
    }
    if ["^ftp:", "^gopher:", "^ftp://", "^gopher://"].contains(&regex) {
        return Some(Urls::Never(
            "FTP and Gopher have lifetimes of their own: see `gateways`",
        ));
    }
    if ["(/cgi-bin/|\\?)", "(cgi-bin|\\?)", "/cgi-bin/", "\\?"].contains(&regex) {
        return Some(Urls::Never("nothing is guessed for a URL with a query"));
    }
    let (is_start, body) = match regex.strip_prefix('^') {
        Some(body) => (true, body),
        None => (false, regex),
    };
    let (is_end, body) = match body.strip_suffix('$') {
        Some(body) if !body.ends_with('\\') => (true, body),
        _ => (false, body),
    };
    let body = body.trim_start_matches(".*");
    let (before, after) = match body.split_once(".*") {
        Some((before, after)) => (before, Some(after)),
        None => (body, None),
    };
    match after {
        // A place, then a name suffix.
        Some(after) => {
            let (host, directory) = place(single(before)?, is_start)?;
            let ends = literals(after)?;
            let paths = ends.iter().map(|end| {
                let star = if end.starts_with('/') { "" } else { "*" };
                let more = if is_end { "" } else { "*" };
                format!("{directory}**/{star}{}{more}", end.trim_start_matches('/'))
            });
            some_urls(Some(host), paths.collect())
        }
        None if is_start => {
            let (host, directory) = place(single(body)?, true)?;
            let paths = match (is_end, directory.ends_with('/')) {
                (true, _) => vec![directory],
                (false, true) => vec![format!("{directory}**")],
                (false, false) => vec![format!("{directory}*"), format!("{directory}*/**")],
            };
            some_urls(Some(host), paths)
        }
        None if is_end => {
            let paths = literals(body)?
                .into_iter()
                .map(|end| match end.strip_prefix('/') {
                    Some(end) => format!("/**/{end}"),
                    None => format!("/**/*{end}"),
                });
            some_urls(None, paths.collect())
        }
        None => {
            let text = single(body)?;
            match place(text.clone(), false) {
                Some((host, directory)) => {
                    some_urls(Some(host), vec![format!("{}**", slash_at_end(&directory))])
                }
                None => some_urls(None, contained(&text)),
            }
        }
    }
}

/// Path patterns for paths that contain a text.
fn contained(text: &str) -> Vec<String> {
    let bare = text.trim_matches('/');
    let (before, after) = match (text.starts_with('/'), text.ends_with('/')) {
        (true, true) => return vec![format!("/**/{bare}/**")],
        (starts, _) => (if starts { "" } else { "*" }, "*"),
    };
    let end = if text.ends_with('/') { "/**" } else { after };
    let mut paths = vec![format!("/**/{before}{bare}{end}")];
    if !text.ends_with('/') {
        paths.push(format!("/**/{before}{bare}*/**"));
    }
    paths
}

fn some_urls(host: Option<String>, paths: Vec<String>) -> Option<Urls> {
    // These characters have a meaning in our patterns.
    let is_plain =
        |path: &String| path.starts_with('/') && !path.contains(['<', '>', '{', '[', '?', '\\']);
    let fits = !paths.is_empty() && paths.iter().all(is_plain);
    fits.then_some(Urls::Some { host, paths })
}

/// Splits a URL, or a URL part, into host and directory.
fn place(text: String, is_start: bool) -> Option<(String, String)> {
    let without_scheme = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    // If the pattern may start inside a URL, the host may have a prefix.
    let (rest, star) = match (without_scheme, is_start) {
        (Some(rest), _) => (rest, ""),
        (None, true) => return None,
        (None, false) => (&*text, "*"),
    };
    let (host, path) = match rest.split_once('/') {
        Some((host, path)) => (host, format!("/{path}")),
        None => (rest, "/".to_owned()),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let top = host.rsplit('.').next().unwrap_or_default();
    let is_host = host.contains('.')
        && !host.ends_with('.')
        && host.chars().all(is_name)
        && top.len() >= 2
        && top.chars().all(|c| c.is_ascii_alphabetic())
        && (is_start || !FILE_ENDS.contains(&top));
    is_host.then(|| (format!("{star}{}", host.trim_start_matches('.')), path))
}

fn slash_at_end(path: &str) -> String {
    if path.ends_with('/') {
        path.to_owned()
    } else {
        format!("{path}/")
    }
}

/// Returns the text, if a regular expression matches only one.
fn single(regex: &str) -> Option<String> {
    // A place's scheme does not matter: rules are for both.
    let regex = regex.replace("https?://", "http://");
    let mut all = literals(&regex)?;
    (all.len() == 1).then(|| all.remove(0))
}

/// All texts that a regular expression without repetition matches, if their number is small.
fn literals(regex: &str) -> Option<Vec<String>> {
    let chars: Vec<char> = regex.chars().collect();
    let mut at = 0;
    let all = alternatives(&chars, &mut at, 0)?;
    (at == chars.len() && all.iter().all(|it| !it.is_empty())).then_some(all)
}

/// Reads alternatives up to a closing parenthesis or the end.
fn alternatives(chars: &[char], at: &mut usize, depth: usize) -> Option<Vec<String>> {
    let mut all = Vec::new();
    loop {
        all.extend(sequence(chars, at, depth)?);
        if all.len() > LITERALS_MAX {
            return None;
        }
        match chars.get(*at) {
            Some('|') => *at += 1,
            _ => return Some(all),
        }
    }
}

/// Reads a sequence of characters, sets and groups, each of which may be optional.
fn sequence(chars: &[char], at: &mut usize, depth: usize) -> Option<Vec<String>> {
    let mut texts = vec![String::new()];
    while let Some(&c) = chars.get(*at) {
        let mut part = match c {
            '|' | ')' => break,
            '(' if depth < DEPTH_MAX => {
                *at += 1;
                let inside = alternatives(chars, at, depth + 1)?;
                (chars.get(*at) == Some(&')')).then_some(inside)?
            }
            '[' => set(chars, at)?,
            '\\' => {
                *at += 1;
                let escaped = chars.get(*at).filter(|c| !c.is_alphanumeric())?;
                vec![escaped.to_string()]
            }
            '.' | '*' | '+' | '{' | '^' | '$' | '?' | '(' => return None,
            c => vec![c.to_string()],
        };
        *at += 1;
        if chars.get(*at) == Some(&'?') {
            *at += 1;
            part.push(String::new());
        }
        if texts.len() * part.len() > LITERALS_MAX {
            return None;
        }
        match &part[..] {
            // Avoids copying all texts for each character.
            [one] => texts.iter_mut().for_each(|text| text.push_str(one)),
            _ => {
                let longer = texts
                    .iter()
                    .flat_map(|text| part.iter().map(move |it| format!("{text}{it}")));
                texts = longer.collect();
            }
        }
    }
    Some(texts)
}

/// Reads the characters in a set such as `[34]`, without ranges; leaves `at` on the last bracket.
fn set(chars: &[char], at: &mut usize) -> Option<Vec<String>> {
    let inside = chars.get(*at + 1..)?;
    let length = inside.iter().position(|c| *c == ']')?;
    *at += length + 1;
    let set = &inside[..length];
    let is_plain = |c: &char| c.is_ascii_alphanumeric();
    (!set.is_empty() && set.iter().all(is_plain)).then(|| set.iter().map(char::to_string).collect())
}

/// Minimum time, percentage and maximum time in Squid's rule for all other URLs.
const SQUIDS_OWN: (u32, u32, u32) = (0, 20, 4320);
/// Most rules.
const RULES_MAX: usize = 1024;
/// Most bytes in the paths of all rules.
const PATHS_BYTES_MAX: usize = 1 << 20;
/// Most bytes in a regular expression.
const PATTERN_MAX: usize = 1000;
/// Most texts that a regular expression may stand for.
const LITERALS_MAX: usize = 256;
const DEPTH_MAX: usize = 8;
/// File suffixes that look like a host's top-level domain.
const FILE_ENDS: [&str; 14] = [
    "gif", "png", "jpg", "jpeg", "css", "js", "exe", "zip", "deb", "rpm", "html", "htm", "iso",
    "pdf",
];

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn some(host: Option<&str>, paths: &[&str]) -> Option<Urls> {
        Some(Urls::Some {
            host: host.map(str::to_owned),
            paths: paths.iter().map(|it| (*it).to_owned()).collect(),
        })
    }

    #[test]
    fn common_patterns_become_hosts_and_paths() {
        assert_eq!(urls("."), Some(Urls::Every));
        assert_eq!(
            urls(r"\.(gif|jpe?g)$"),
            some(None, &["/**/*.gif", "/**/*.jpeg", "/**/*.jpg"])
        );
        assert_eq!(urls(r"\.mp[34]$"), some(None, &["/**/*.mp3", "/**/*.mp4"]));
        assert_eq!(urls(r"/Packages\.gz$"), some(None, &["/**/Packages.gz"]));
        assert_eq!(
            urls(r"^http://www\.a\.test/dir/"),
            some(Some("www.a.test"), &["/dir/**"])
        );
        assert_eq!(
            urls(r"^https?://www\.a\.test/x"),
            some(Some("www.a.test"), &["/x*", "/x*/**"])
        );
        assert_eq!(
            urls(r"windowsupdate\.com/.*\.(cab|exe)"),
            some(Some("*windowsupdate.com"), &["/**/*.cab*", "/**/*.exe*"])
        );
        assert_eq!(urls("/static/"), some(None, &["/**/static/**"]));
        assert!(matches!(urls("^ftp:"), Some(Urls::Never(_))));
        assert!(matches!(urls(r"(/cgi-bin/|\?)"), Some(Urls::Never(_))));
    }

    #[test]
    fn other_patterns_are_none() {
        for regex in [
            "", "a+", "[0-9]+$", "(a", "a)", "^x", "a.*b.*c", "\\", "\\d$", "a{2}$", "()$",
        ] {
            assert_eq!(urls(regex), None, "{regex}");
        }
        assert_eq!(urls(&format!("{}$", "(a|b)".repeat(50))), None);
        assert_eq!(urls(&format!("{}a", "(".repeat(5000))), None);
    }

    #[test]
    fn rules_are_bounded_and_the_rest_is_told() {
        let long = format!("refresh_pattern {}$ 0 50% 1440\n", "x".repeat(1001));
        let wide = "(a|b)".repeat(8) + &"x".repeat(900);
        let wide = format!("refresh_pattern {wide}$ 0 50% 1440\n").repeat(10);
        let many = "refresh_pattern \\.x$ 0 50% 1440\n".repeat(RULES_MAX + 1);
        for (text, written) in [(long, 0), (wide, 4), (many, RULES_MAX)] {
            let lines: Vec<Line> = lines::lines("squid.conf", &text).collect();
            let mut draft = Draft::default();
            import(&mut draft, &lines.iter().collect::<Vec<_>>());
            assert_eq!(draft.imported, written);
            assert_eq!(draft.remarks.len(), lines.len() - written);
        }
    }

    #[test]
    fn every_rule_can_be_read_and_matches_what_the_pattern_does() {
        let text = "refresh_pattern -i \\.(gif|png)$ 10080 90% 43200 override-expire\n\
                    refresh_pattern ^http://www\\.a\\.test/x/ 0 50% 1440 reload-into-ims\n\
                    refresh_pattern . 60 40% 4320\nrefresh_pattern . 0 20% 4320\n\
                    refresh_pattern x y z\n";
        let lines: Vec<Line> = lines::lines("squid.conf", text).collect();
        let mut draft = Draft::default();
        import(&mut draft, &lines.iter().collect::<Vec<_>>());
        let text = draft.text("squid.conf");
        let rules = hashcache_http::Rules::from_toml(&text).unwrap();
        let found = |url: &str| {
            let target = hashcache_http::Target::parse_url(url).unwrap();
            rules
                .find(&target)
                .map(|matched| format!("{:?}", matched.action))
        };
        assert!(
            found("http://b.test/a.gif")
                .unwrap()
                .starts_with("Lifetime")
        );
        assert!(
            found("http://b.test/d/a.png")
                .unwrap()
                .starts_with("Lifetime")
        );
        assert!(
            found("http://www.a.test/x/y")
                .unwrap()
                .contains("percent: 50")
        );
        assert!(
            found("http://b.test/other")
                .unwrap()
                .contains("percent: 40")
        );
        assert_eq!(draft.remarks.len(), 4, "{:?}", draft.remarks);
    }
}
