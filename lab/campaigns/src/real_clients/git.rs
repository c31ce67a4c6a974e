//! git over plain HTTP, in both of its protocols, from a repository made here.
//!
//! A small server on loopback passes each request to `git http-backend`, the program that real
//! servers use. git checks every object by its hash: a clone with the right commit is correct.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::Bench;
use super::access_log::Sums;
use super::tool::{Tool, is_installed};
use crate::report::show_bytes;

/// Lists references, clones by the smart protocol, then clones twice by the dumb one.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !is_installed("git") {
        bench.report.skip("git over http", "not installed");
        return Ok(());
    }
    let directory = bench.empty("git")?;
    let commit = make_repository(&directory).await?;
    let server = GitServer::start(&directory).await?;
    let url = format!("http://{}/repository.git", server.address);
    let listed = list(bench, &url, &commit).await;
    bench.report.outcome("git ls-remote over http", listed);
    let cloned = clone(bench, &url, &commit, "1").await;
    let log = bench.logged().await?;
    let posts = log.iter().filter(|line| line.method == "POST").count();
    let smart = cloned.and_then(|()| {
        ensure!(posts > 0, "no POST: it was not the smart protocol");
        Ok(format!(
            "{posts} POST, {} to git",
            show_bytes(Sums::of(&log).client_bytes)
        ))
    });
    bench.report.outcome("git clone over http, smart", smart);
    for pass in 1..=2 {
        let cloned = clone(bench, &url, &commit, "0").await;
        let log = bench.logged().await?;
        let packs = Sums::of(log.iter().filter(|line| line.target.contains("/objects/")));
        let share = packs.cached_per_mille();
        let dumb = cloned.and_then(|()| {
            ensure!(
                packs.count > 0,
                "no objects asked for: it was not the dumb protocol"
            );
            let told = format!(
                "{} of objects and packs, {} from the origin",
                show_bytes(packs.client_bytes),
                show_bytes(packs.origin_bytes)
            );
            ensure!(pass == 1 || share >= CACHED_PER_MILLE_MIN, "{told}");
            Ok(told)
        });
        let what = format!("git clone over http, dumb, pass {pass}");
        bench.report.outcome(what, dumb);
    }
    Ok(())
}

async fn list(bench: &Bench<'_>, url: &str, commit: &str) -> anyhow::Result<String> {
    let listed = bench
        .tool("git")
        .arguments(&["ls-remote", url])
        .run()
        .await?;
    let listed = String::from_utf8_lossy(&listed);
    ensure!(
        listed.contains(commit),
        "the commit is not listed: {listed}"
    );
    Ok(format!("{} refs", listed.lines().count()))
}

/// Clones and checks the commit; `smart` is the value of git's variable for the smart protocol.
async fn clone(bench: &Bench<'_>, url: &str, commit: &str, smart: &str) -> anyhow::Result<()> {
    let directory = bench.empty("clone")?;
    let git = |words: &[&str]| {
        let tool = bench.tool("git").arguments(words).directory(&directory);
        tool.variable("GIT_SMART_HTTP", smart)
    };
    git(&["clone", "--quiet", url, "."]).run().await?;
    git(&["fsck", "--full"]).run().await?;
    let head = git(&["rev-parse", "HEAD"]).run().await?;
    let head = String::from_utf8_lossy(&head);
    ensure!(head.trim() == commit, "HEAD is {head}, not {commit}");
    Ok(())
}

/// A repository with some MB in a pack, bare, below `directory`; returns its commit.
pub async fn make_repository(directory: &Path) -> anyhow::Result<String> {
    let work = directory.join("work");
    std::fs::create_dir_all(&work)?;
    let content = hashcache_testkit::content::body_for(1, "/repository", 1, FILE_BYTES);
    std::fs::write(work.join("content"), content.bytes())?;
    std::fs::write(work.join("README"), "Cloned through a proxy.\n")?;
    let git = |words: &'static [&'static str]| {
        // The user of this machine may have no name configured in git.
        let tool = Tool::new("git").arguments(&["-c", "user.name=x", "-c", "user.email=x@x"]);
        tool.arguments(words).directory(&work)
    };
    git(&["init", "--quiet", "--initial-branch=main"])
        .run()
        .await?;
    git(&["add", "."]).run().await?;
    git(&["commit", "--quiet", "--no-gpg-sign", "--message=One"])
        .run()
        .await?;
    git(&["clone", "--quiet", "--bare", ".", "../repository.git"])
        .run()
        .await?;
    git(&["--git-dir=../repository.git", "repack", "-a", "-d", "-q"])
        .run()
        .await?;
    git(&["--git-dir=../repository.git", "update-server-info"])
        .run()
        .await?;
    let commit = git(&["rev-parse", "HEAD"]).run().await?;
    Ok(String::from_utf8(commit)?.trim().to_owned())
}

/// Serves the repositories below a directory until dropped.
#[derive(Debug)]
pub struct GitServer {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl GitServer {
    /// Begins.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let directory = directory.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let directory = directory.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(stream, directory).await {
                        eprintln!("xtask: git server: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers one request and closes: the backend is a process each time anyway.
async fn serve(stream: TcpStream, directory: PathBuf) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let Some(request) = Request::read(&mut stream).await? else {
        return Ok(());
    };
    let (path, query) = request
        .target
        .split_once('?')
        .unwrap_or((&request.target, ""));
    let mut backend = Command::new("git");
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &directory)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The backend reports every missing file that a client requests, which is normal.
        .stderr(Stdio::null())
        .kill_on_drop(true);
    for (field, variable) in [
        ("content-type", "CONTENT_TYPE"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
        ("git-protocol", "HTTP_GIT_PROTOCOL"),
    ] {
        if let Some(value) = request.field(field) {
            backend.env(variable, value);
        }
    }
    let mut child = backend.spawn().context("cannot run git http-backend")?;
    let mut stdin = child.stdin.take().context("piped")?;
    let body = request.body;
    let feeder = tokio::spawn(async move {
        // The backend closes its end when it needs no more content.
        let _ = stdin.write_all(&body).await;
    });
    let output = child.wait_with_output().await?;
    feeder.await?;
    let response = from_cgi(&output.stdout).context("git http-backend gave no head")?;
    stream.get_mut().write_all(&response).await?;
    stream.get_mut().shutdown().await?;
    Ok(())
}

/// A request with its content.
#[derive(Debug, Default)]
struct Request {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    async fn read(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Option<Self>> {
        let mut request = Self::default();
        let first = line(stream).await?;
        let mut words = first.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        (request.method, request.target) = (method.to_owned(), target.to_owned());
        loop {
            let field = line(stream).await?;
            let Some((name, value)) = field.split_once(':') else {
                break;
            };
            let name = name.to_ascii_lowercase();
            request.fields.push((name, value.trim().to_owned()));
        }
        if request.field("transfer-encoding").is_some() {
            while let size @ 1.. = usize::from_str_radix(line(stream).await?.trim(), 16)? {
                request.read_part(stream, size).await?;
                line(stream).await?;
            }
            line(stream).await?;
        } else if let Some(size) = request.field("content-length") {
            let size = size.parse()?;
            request.read_part(stream, size).await?;
        }
        Ok(Some(request))
    }

    async fn read_part(
        &mut self,
        stream: &mut BufReader<TcpStream>,
        size: usize,
    ) -> anyhow::Result<()> {
        let had = self.body.len();
        ensure!(
            had + size <= BODY_BYTES_MAX,
            "a request too large for a clone"
        );
        self.body.resize(had + size, 0);
        stream.read_exact(&mut self.body[had..]).await?;
        Ok(())
    }

    fn field(&self, name: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(found, _)| found == name);
        field.map(|(_, value)| value.as_str())
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> anyhow::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    Ok(line.trim_end().to_owned())
}

/// A response from what a CGI program wrote: its head has a `Status` field instead of a first line.
fn from_cgi(output: &[u8]) -> Option<Vec<u8>> {
    let end = output.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&output[..end]).ok()?;
    let body = &output[end + 4..];
    let status = head
        .lines()
        .find_map(|field| field.strip_prefix("Status: "));
    let mut response = format!("HTTP/1.1 {}\r\n", status.unwrap_or("200 OK"));
    for field in head.lines() {
        let own = ["Status:", "Content-Length:"];
        if !own.iter().any(|name| field.starts_with(name)) {
            response += field;
            response += "\r\n";
        }
    }
    response += &format!(
        "Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Some([response.as_bytes(), body].concat())
}

/// The part of 1,000 bytes of objects and packs that the second clone must find in the cache.
const CACHED_PER_MILLE_MIN: u64 = 950;
const FILE_BYTES: u64 = 3_000_000;
const BODY_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cgi_program_says_becomes_a_response() {
        let plain = from_cgi(b"Content-Type: text/plain\r\n\r\nhello").unwrap();
        assert_eq!(
            String::from_utf8(plain).unwrap(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\
             Connection: close\r\n\r\nhello"
        );
        let missing = from_cgi(b"Status: 404 Not Found\r\nExpires: never\r\n\r\n").unwrap();
        assert!(missing.starts_with(b"HTTP/1.1 404 Not Found\r\nExpires: never\r\n"));
        assert!(from_cgi(b"no head").is_none());
    }
}
