//! Headless Chromium, which trusts the authority or not: each browser has its own home directory,
//! in which `certutil` makes a certificate database.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Origin, RawRequest, Script};

use crate::real_clients::tool::{Tool, is_installed};

/// A program that the browser needs and this machine lacks.
pub fn missing() -> Option<&'static str> {
    [CHROMIUM, "certutil"]
        .into_iter()
        .find(|program| !is_installed(program))
}

/// A browser with a home.
pub struct Browser {
    home: PathBuf,
    proxy: String,
    visits: usize,
}

impl Browser {
    /// A browser that uses the proxy at this URL and trusts `certificate`, if one is given.
    pub async fn new(home: &Path, proxy: &str, certificate: Option<&Path>) -> anyhow::Result<Self> {
        let list = home.join(".pki/nssdb");
        fs::create_dir_all(&list)?;
        let list = format!("sql:{}", list.display());
        let certutil = || Tool::new("certutil").argument("-d").argument(&list);
        certutil()
            .arguments(&["-N", "--empty-password"])
            .run()
            .await?;
        if let Some(certificate) = certificate {
            let words = ["-A", "-t", "C,,", "-n", "hashcache", "-i"];
            let tool = certutil().arguments(&words).argument(certificate);
            tool.run().await?;
        }
        Ok(Self {
            home: home.to_owned(),
            proxy: proxy.to_owned(),
            visits: 0,
        })
    }

    /// Visits `url` with a new, empty cache; returns the final document.
    pub async fn visit(&mut self, url: &str) -> anyhow::Result<String> {
        self.visits += 1;
        let profile = self.home.join(format!("profile-{}", self.visits));
        let tool = ["http_proxy", "https_proxy", "HTTPS_PROXY", "no_proxy"]
            .into_iter()
            .fold(Tool::new(CHROMIUM), Tool::without)
            .variable("HOME", &self.home)
            .variable("XDG_CONFIG_HOME", self.home.join("config"))
            .variable("XDG_CACHE_HOME", self.home.join("cache"))
            .arguments(&WORDS)
            .argument(format!("--user-data-dir={}", profile.display()))
            .argument(format!("--proxy-server={}", self.proxy))
            .argument(url);
        let document = tool.run().await?;
        String::from_utf8(document).context("a document that is no text")
    }
}

/// Text of the page after its images and a range of the video have loaded.
pub const ALL_THERE: &str = "3 images, 206 with 100000 right bytes";

/// An origin with that page.
pub async fn page() -> anyhow::Result<Origin> {
    Ok(Origin::start(|request: &RawRequest| answer(request)).await?)
}

fn answer(request: &RawRequest) -> Script {
    let kept = ("Cache-Control", "max-age=3600");
    let kind = |kind| ("Content-Type", kind);
    match request.target() {
        "/" => Script::response(200, &[kept, kind("text/html")], PAGE),
        "/film" => film(request),
        image if image.starts_with("/image-") => {
            Script::response(200, &[kept, kind("image/svg+xml")], IMAGE)
        }
        _ => Script::response(404, &[kept], ""),
    }
}

/// A video of which ranges are requested.
fn film(request: &RawRequest) -> Script {
    let film: Vec<u8> = (0..FILM_BYTES).map(film_byte).collect();
    let range = request.field("range").unwrap_or_default();
    let range = range
        .strip_prefix("bytes=")
        .and_then(|range| range.split_once('-'))
        .and_then(|(first, last)| Some((first.parse::<usize>().ok()?, last.parse().ok()?)));
    let fields = [
        ("Cache-Control", "max-age=3600"),
        ("Content-Type", "video/mp4"),
        ("ETag", "\"film\""),
        ("Accept-Ranges", "bytes"),
    ];
    let Some((first, last)) = range.filter(|(first, last)| first <= last && *first < FILM_BYTES)
    else {
        return Script::response(200, &fields, film);
    };
    let last: usize = last.min(FILM_BYTES - 1);
    let range = format!("bytes {first}-{last}/{FILM_BYTES}");
    let fields = [&fields[..], &[("Content-Range", &*range)]].concat();
    Script::response(206, &fields, &film[first..=last])
}

#[expect(clippy::cast_possible_truncation, reason = "less than 251")]
fn film_byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// The result that the self-test page shows.
pub fn self_test(document: &str) -> anyhow::Result<&'static str> {
    let is_shown = |id: &str| -> anyhow::Result<bool> {
        let begin = format!(" id=\"{id}\"");
        let (_, rest) = document.split_once(&begin).context("no such paragraph")?;
        let (attributes, _) = rest.split_once('>').context("no end of a tag")?;
        Ok(!attributes.contains("hidden"))
    };
    let mut shown = vec![];
    for (id, what) in [
        ("w", "still looking"),
        ("y", "trusted"),
        ("n", "not trusted"),
        ("p", "no proxy"),
    ] {
        if is_shown(id)? {
            shown.push(what);
        }
    }
    ensure!(shown.len() == 1, "it shows {}", shown.join(" and "));
    Ok(shown[0])
}

const CHROMIUM: &str = "chromium";

/// The last flag makes Chromium use the proxy also for names that resolve to this machine.
const WORDS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--dump-dom",
    "--virtual-time-budget=20000",
    "--proxy-bypass-list=<-loopback>",
];

const FILM_BYTES: usize = 1_000_000;

const IMAGE: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\">\
    <rect width=\"9\" height=\"9\"/></svg>";

/// Shows its result when all images are loaded and the range of the video is correct.
const PAGE: &str = r#"<!DOCTYPE html><title>page</title>
<img src="/image-1.svg"><img src="/image-2.svg"><img src="/image-3.svg"><p id=told>waiting
<script>
addEventListener("load", async () => {
  const images = [...document.images].filter(image => image.naturalWidth == 9).length;
  const answer = await fetch("/film", {headers: {Range: "bytes=300000-399999"}});
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const right = bytes.filter((byte, at) => byte == (300000 + at) % 251).length;
  document.getElementById("told").textContent =
    `${images} images, ${answer.status} with ${right} right bytes`;
});
</script>"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_self_test_the_one_paragraph_that_is_shown_counts() {
        let page = |hidden: [&str; 4]| {
            let ids = ["w", "y", "n", "p"].into_iter().zip(hidden);
            ids.map(|(id, hidden)| format!("<p class=\"a\" id=\"{id}\"{hidden}>x</p>"))
                .collect::<String>()
        };
        let hidden = " hidden=\"\"";
        let trusted = page([hidden, "", hidden, hidden]);
        assert_eq!(self_test(&trusted).unwrap(), "trusted");
        assert!(self_test(&page([hidden; 4])).is_err());
        assert!(self_test(&page([""; 4])).is_err());
        assert!(self_test("nothing").is_err());
    }
}
