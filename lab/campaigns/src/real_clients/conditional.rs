//! curl and wget with conditions by date and by entity tag, and an upload.
//!
//! The origin follows a script and records its requests: for all conditional requests together it
//! must receive one.

use std::fs::File;

use anyhow::{Context as _, anyhow, ensure};
use hashcache_testkit::{Origin, RawRequest, Script, content};

use super::downloads::Trial;
use crate::report::show_bytes;

impl Trial<'_, '_> {
    /// Tries conditions by date and by entity tag, and uploads, with an origin that follows a
    /// script.
    pub async fn conditional(&mut self) -> anyhow::Result<()> {
        let origin = Origin::start(dated).await?;
        let url = origin.url(&format!("/{}/dated", self.program));
        if self.program == "wget" {
            let outcome = self.timestamping(&origin, &url).await;
            self.row("-N, twice", outcome);
            return Ok(());
        }
        for (what, words, status) in [
            ("a dated file", &[] as &[&str], "200"),
            ("-z with a later date", &["--time-cond", LATER], "304"),
            ("-z with an earlier date", &["--time-cond", EARLIER], "200"),
            (
                "If-None-Match with its tag",
                &["--header", "If-None-Match: \"a\""],
                "304",
            ),
            (
                "If-None-Match with another",
                &["--header", "If-None-Match: \"b\""],
                "200",
            ),
        ] {
            let outcome = self.status(&url, words, status).await;
            self.row(what, outcome);
        }
        let asked = origin.request_count();
        let told = format!("{asked} requests to the origin");
        self.row(
            "all of these are answered by one request",
            if asked == 1 {
                Ok(told)
            } else {
                Err(anyhow!(told))
            },
        );
        let outcome = self.upload(&origin).await;
        self.row("an upload that expects 100-continue", outcome);
        let complaints = origin.complaints();
        self.row(
            "the origin has no complaints",
            if complaints.is_empty() {
                Ok(String::new())
            } else {
                Err(anyhow!("{}", complaints.join("; ")))
            },
        );
        Ok(())
    }

    /// The status of a GET; its content, if any, must be right.
    async fn status(&self, url: &str, words: &[&str], expected: &str) -> anyhow::Result<String> {
        let words = [
            &["--write-out", "%{http_code}", "--output", "dated"],
            words,
            &[url],
        ];
        let file = self.file("dated");
        File::create(&file)?;
        let status = self.tool().arguments(&words.concat()).run().await?;
        let status = String::from_utf8_lossy(&status).into_owned();
        ensure!(status == expected, "status {status} and not {expected}");
        let got = std::fs::read(&file)?;
        let body: &[u8] = if status == "200" { DATED_BODY } else { b"" };
        ensure!(got == body, "{} bytes, and not the right ones", got.len());
        Ok(format!("status {status}"))
    }

    async fn timestamping(&self, origin: &Origin, url: &str) -> anyhow::Result<String> {
        let file = self.file("dated");
        if file.exists() {
            std::fs::remove_file(&file)?;
        }
        for _ in 0..2 {
            self.tool()
                .arguments(&["--timestamping", url])
                .run()
                .await?;
            ensure!(std::fs::read(&file)? == DATED_BODY, "not the right bytes");
        }
        let asked = origin.request_count();
        ensure!(asked == 1, "right, but {asked} requests came to the origin");
        Ok(format!("right, {asked} request to the origin"))
    }

    async fn upload(&self, origin: &Origin) -> anyhow::Result<String> {
        let file = self.file("upload");
        let content = content::body_for(1, "/upload", 1, UPLOAD_BYTES);
        std::fs::write(&file, content.bytes())?;
        let url = origin.url("/upload");
        let words = [
            "--header",
            "Expect: 100-continue",
            "--write-out",
            "%{http_code}",
            &url,
        ];
        let tool = self.tool().argument("--upload-file").argument(&file);
        let status = tool.arguments(&words).run().await?;
        ensure!(
            status == b"201",
            "status {}",
            String::from_utf8_lossy(&status)
        );
        let requests = origin.requests();
        let put = requests.last().context("nothing came")?;
        ensure!(
            (put.method(), put.body_bytes) == ("PUT", UPLOAD_BYTES),
            "{} with {} bytes came",
            put.method(),
            put.body_bytes
        );
        content::verify(&content, 0, &put.body).map_err(|at| anyhow!("wrong byte at {at}"))?;
        Ok(format!("{} came", show_bytes(put.body_bytes)))
    }
}

/// An origin of one small file with a date and a tag, which also takes uploads.
fn dated(request: &RawRequest) -> Script {
    if request.method() == "PUT" {
        let interim = if request.field("Expect").is_some() {
            Script::new().bytes("HTTP/1.1 100 Continue\r\n\r\n")
        } else {
            Script::new()
        };
        return interim.read_body().head(201, &[("Content-Length", "0")]);
    }
    let fields = [
        ("Last-Modified", MODIFIED),
        ("ETag", "\"a\""),
        ("Cache-Control", "max-age=3600"),
    ];
    Script::response(200, &fields, DATED_BODY)
}

const UPLOAD_BYTES: u64 = 5_000_000;
const MODIFIED: &str = "Sat, 01 Jan 2022 00:00:00 GMT";
const EARLIER: &str = "Fri, 01 Jan 2021 00:00:00 GMT";
const LATER: &str = "Sun, 01 Jan 2023 00:00:00 GMT";
const DATED_BODY: &[u8] = b"as of the first day of the year\n";
