//! Registries of one or two packages, built from files by the tools of this machine.
//!
//! Each is an origin that validates by entity tag and sends no freshness lifetimes; so hits are due
//! to the rules for names that never change, or to a 304.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use hashcache_testkit::{Origin, RawRequest, Script};
use serde_json::json;

use crate::real_clients::intercept::front::Front;
use crate::real_clients::tool::{Tool, is_installed};

/// The package that all registries have.
pub const NAME: &str = "hcdemo";
/// The package of npm that needs the other one.
pub const SCOPED: &str = "@hc/user";
/// The content of the packages.
pub const SOURCE: &str = "// a package that was made on the spot\n";
/// In served files, stands for the URL of the origin itself.
const ORIGIN: &str = "http://origin.invalid";

/// Counts of what an origin has sent so far.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub requests: u64,
    pub body_bytes: u64,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            body_bytes: self.body_bytes - before.body_bytes,
        }
    }
}

/// The origins of a registry.
#[derive(Debug, Default)]
pub struct Content {
    origins: Vec<Origin>,
    requests: Arc<AtomicU64>,
    body_bytes: Arc<AtomicU64>,
}

/// Contents by path; if a path has several, the request's `Accept` selects one.
type Files = BTreeMap<String, Vec<(&'static str, Vec<u8>)>>;

impl Content {
    /// Serves these files at an origin of their own; returns its URL without a slash.
    async fn serve(&mut self, files: Files, front: Option<&Front>) -> anyhow::Result<String> {
        let (requests, body_bytes) = (Arc::clone(&self.requests), Arc::clone(&self.body_bytes));
        let scheme = if front.is_some() { "https" } else { "http" };
        let origin = Origin::start(move |request: &RawRequest| {
            requests.fetch_add(1, Ordering::Relaxed);
            let (script, sent) = answer(&files, request, scheme);
            body_bytes.fetch_add(sent as u64, Ordering::Relaxed);
            script
        });
        let origin = origin.await?;
        let address = origin.address();
        self.origins.push(origin);
        match front {
            Some(front) => front.put(address).await,
            None => Ok(format!("http://{address}")),
        }
    }

    /// The counts of all origins so far.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.requests.load(Ordering::Relaxed),
            body_bytes: self.body_bytes.load(Ordering::Relaxed),
        }
    }
}

/// The response to a request, and the bytes of its content; links have this scheme.
fn answer(files: &Files, request: &RawRequest, scheme: &str) -> (Script, usize) {
    if request.method() == "POST" {
        // The audit request of npm: no installed package has a known fault.
        let fields = [("Content-Type", "application/json")];
        // Not content of the registry: the response to this POST is never stored.
        return (Script::response(200, &fields, "{}"), 0);
    }
    let path = request.target().replace("%2f", "/").replace("%2F", "/");
    let Some(kinds) = files.get(&path) else {
        let fields = [("Cache-Control", "max-age=600")];
        return (Script::response(404, &fields, ""), 0);
    };
    let accept = request.field("accept").unwrap_or_default();
    let found = kinds.iter().find(|(kind, _)| accept.contains(kind));
    let (kind, content) = found.unwrap_or(&kinds[0]);
    let tag = format!("\"{}-{}\"", kind.len(), content.len());
    let mut fields = vec![("ETag", &tag[..]), ("Content-Type", kind)];
    if kinds.len() > 1 {
        fields.push(("Vary", "Accept"));
    }
    let asked = request.field("if-none-match").unwrap_or_default();
    if asked.split(", ").any(|asked| asked == tag) {
        return (Script::response(304, &fields, ""), 0);
    }
    let own = format!("{scheme}://{}", request.field("host").unwrap_or_default());
    let content = match std::str::from_utf8(content) {
        Ok(text) => text.replace(ORIGIN, &own).into_bytes(),
        Err(_) => content.clone(),
    };
    (Script::response(200, &fields, &content), content.len())
}

/// A registry and the client that uses it.
#[derive(Debug)]
struct Registry {
    client: &'static str,
    content: Content,
    /// The value of `--mirror`.
    flag: String,
}

/// All registries.
#[derive(Debug, Default)]
pub struct Registries {
    made: Vec<Registry>,
    /// Clients whose registry could not be made, with the name of the missing tool.
    missing: Vec<(&'static str, &'static str)>,
}

impl Registries {
    /// Makes them below `directory`, with TLS in front of each if there is a front.
    pub async fn start(directory: &Path, front: Option<&Front>) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for (client, tools) in [
            ("pip", &["python3", "sha256sum"][..]),
            ("npm", &["tar", "sha1sum"]),
            ("cargo", &["tar", "sha256sum"]),
            ("apt", &["dpkg-deb", "dpkg-scanpackages"]),
        ] {
            if let Some(tool) = tools.iter().find(|tool| !is_installed(tool)) {
                all.missing.push((client, tool));
                continue;
            }
            let directory = directory.join(client);
            fs::create_dir_all(&directory)?;
            let mut content = Content::default();
            let flag = match client {
                "pip" => pypi(&mut content, &directory, front).await,
                "npm" => npm(&mut content, &directory, front).await,
                "cargo" => crates(&mut content, &directory, front).await,
                _ => apt(&mut content, &directory, front).await,
            };
            let flag = flag.with_context(|| format!("cannot make a registry for {client}"))?;
            all.made.push(Registry {
                client,
                content,
                flag,
            });
        }
        Ok(all)
    }

    /// The values of `--mirror`, one per registry.
    pub fn flags(&self) -> Vec<&str> {
        self.made
            .iter()
            .map(|registry| &registry.flag[..])
            .collect()
    }

    /// The content served to a client.
    pub fn content(&self, client: &str) -> Option<&Content> {
        let mut made = self.made.iter();
        made.find(|registry| registry.client == client)
            .map(|registry| &registry.content)
    }

    /// The tool without which the registry of a client could not be made.
    pub fn missing(&self, client: &str) -> &'static str {
        let mut missing = self.missing.iter();
        let found = missing.find(|(of, _)| *of == client);
        found.map_or("nothing", |(_, tool)| tool)
    }

    /// All protocol errors that the origins found in requests.
    pub fn complaints(&self) -> Vec<String> {
        let origins = self
            .made
            .iter()
            .flat_map(|registry| &registry.content.origins);
        origins.flat_map(Origin::complaints).collect()
    }
}

/// Two wheels on a host of their own, one of which depends on the other; the index in both forms.
async fn pypi(
    content: &mut Content,
    directory: &Path,
    front: Option<&Front>,
) -> anyhow::Result<String> {
    let mut files = Files::new();
    let mut wheels = vec![];
    for (name, needs) in [("hcneeded", ""), (NAME, "Requires-Dist: hcneeded\n")] {
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}");
        let wheel = wheel(directory, name, &metadata).await?;
        let digest = sum("sha256sum", &wheel).await?;
        let below = format!("{}/{}/{}", &digest[..2], &digest[2..4], &digest[4..]);
        let path = format!("/packages/{below}/{name}-1.0-py3-none-any.whl");
        let metadata = metadata.into_bytes();
        files.insert(format!("{path}.metadata"), vec![("text/plain", metadata)]);
        files.insert(path.clone(), vec![("application/zip", fs::read(&wheel)?)]);
        wheels.push((name, path, digest));
    }
    let base = content.serve(files, front).await?;
    let mut index = Files::new();
    for (name, path, digest) in &wheels {
        let file = format!("{name}-1.0-py3-none-any.whl");
        let html = format!(
            "<!DOCTYPE html><a href=\"{base}{path}#sha256={digest}\" \
             data-core-metadata=\"true\">{file}</a>"
        );
        let json = json!({
            "meta": {"api-version": "1.0"},
            "name": name,
            "files": [{
                "filename": file,
                "url": format!("{base}{path}"),
                "hashes": {"sha256": digest},
                "core-metadata": true,
            }],
        });
        let json = json.to_string().into_bytes();
        let kinds = vec![
            ("text/html", html.into_bytes()),
            ("application/vnd.pypi.simple.v1+json", json),
        ];
        index.insert(format!("/simple/{name}/"), kinds);
    }
    let index = content.serve(index, front).await?;
    Ok(format!("pypi={index}/simple/ {base}"))
}

/// A wheel with one module.
async fn wheel(directory: &Path, name: &str, metadata: &str) -> anyhow::Result<PathBuf> {
    let root = directory.join(name);
    let info = format!("{name}-1.0.dist-info");
    fs::create_dir_all(root.join(&info))?;
    let module = format!("{name}.py");
    fs::write(root.join(&module), SOURCE.replace("//", "#"))?;
    fs::write(root.join(&info).join("METADATA"), metadata)?;
    let kind = "Wheel-Version: 1.0\nGenerator: xtask\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    fs::write(root.join(&info).join("WHEEL"), kind)?;
    let record = format!("{module},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n");
    fs::write(root.join(&info).join("RECORD"), record)?;
    let wheel = directory.join(format!("{name}-1.0-py3-none-any.whl"));
    let tool = Tool::new("python3").arguments(&["-m", "zipfile", "-c"]);
    let tool = tool.argument(&wheel).argument(&module).argument(&info);
    tool.directory(&root).run().await?;
    Ok(wheel)
}

/// A package and a scoped one that depends on it; links have escaped slashes.
async fn npm(
    content: &mut Content,
    directory: &Path,
    front: Option<&Front>,
) -> anyhow::Result<String> {
    let mut files = Files::new();
    for (name, needed) in [(NAME, json!({})), (SCOPED, json!({NAME: "^1.0.0"}))] {
        let root = directory.join(name);
        fs::create_dir_all(root.join("package"))?;
        let manifest = json!({"name": name, "version": "1.0.0", "dependencies": needed});
        fs::write(root.join("package/package.json"), manifest.to_string())?;
        fs::write(root.join("package/index.js"), SOURCE)?;
        let tarball = root.join("tarball.tgz");
        pack(&root, "package", &tarball).await?;
        let short = name.rsplit('/').next().unwrap_or(name);
        let path = format!("/npm/{name}/-/{short}-1.0.0.tgz");
        let shasum = sum("sha1sum", &tarball).await?;
        let mut version = manifest;
        version["dist"] = json!({"shasum": shasum, "tarball": format!("{ORIGIN}{path}")});
        let packument = json!({
            "name": name,
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": version},
        });
        let packument = packument.to_string().into_bytes();
        let kind = "application/vnd.npm.install-v1+json";
        files.insert(format!("/npm/{name}"), vec![(kind, packument)]);
        files.insert(
            path,
            vec![("application/octet-stream", fs::read(&tarball)?)],
        );
    }
    let url = content.serve(files, front).await?;
    Ok(format!("npm={url}/npm/"))
}

/// A crate on a host of its own, and its sparse index.
async fn crates(
    content: &mut Content,
    directory: &Path,
    front: Option<&Front>,
) -> anyhow::Result<String> {
    let root = format!("{NAME}-1.0.0");
    fs::create_dir_all(directory.join(&root).join("src"))?;
    let manifest =
        format!("[package]\nname = \"{NAME}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n");
    fs::write(directory.join(&root).join("Cargo.toml"), manifest)?;
    fs::write(directory.join(&root).join("src/lib.rs"), SOURCE)?;
    let packed = directory.join("packed.crate");
    pack(directory, &root, &packed).await?;
    let path = format!("/crates/{NAME}/{NAME}-1.0.0.crate");
    let file = vec![("application/gzip", fs::read(&packed)?)];
    let dl = content.serve(Files::from([(path, file)]), front).await?;
    let line = json!({
        "name": NAME, "vers": "1.0.0", "deps": [], "features": {}, "yanked": false,
        "cksum": sum("sha256sum", &packed).await?,
    });
    let config = json!({
        "dl": format!("{dl}/crates/{{crate}}/{{crate}}-{{version}}.crate"),
        "api": ORIGIN,
    });
    let below = format!("/index/{}/{}/{NAME}", &NAME[..2], &NAME[2..4]);
    let index = Files::from([
        (
            "/index/config.json".to_owned(),
            vec![("application/json", config.to_string().into())],
        ),
        (below, vec![("text/plain", format!("{line}\n").into())]),
    ]);
    let index = content.serve(index, front).await?;
    Ok(format!("crates={index}/index/ {dl}"))
}

/// A flat archive of one package.
async fn apt(
    content: &mut Content,
    directory: &Path,
    front: Option<&Front>,
) -> anyhow::Result<String> {
    let root = directory.join("root");
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::create_dir_all(directory.join("pool/h"))?;
    let control = format!(
        "Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@test>\n\
         Description: made on the spot\n"
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let file = format!("pool/h/{NAME}_1.0_all.deb");
    let tool = Tool::new("dpkg-deb").arguments(&["--root-owner-group", "--build", "root", &file]);
    tool.directory(directory).run().await?;
    let tool = Tool::new("dpkg-scanpackages").argument("pool");
    let packages = tool.directory(directory).run().await?;
    let kind = "application/octet-stream";
    let files = Files::from([
        (
            format!("/debian/{file}"),
            vec![(kind, fs::read(directory.join(&file))?)],
        ),
        (
            "/debian/./Packages".to_owned(),
            vec![(kind, packages.clone())],
        ),
        ("/debian/Packages".to_owned(), vec![(kind, packages)]),
    ]);
    let url = content.serve(files, front).await?;
    Ok(format!("apt={url}/debian/"))
}

/// A compressed archive of one directory.
async fn pack(directory: &Path, inside: &str, to: &Path) -> anyhow::Result<()> {
    let tool = Tool::new("tar")
        .argument("-czf")
        .argument(to)
        .argument(inside);
    tool.directory(directory).run().await.map(drop)
}

/// Runs a checksum program on a file; returns the sum.
async fn sum(program: &str, file: &Path) -> anyhow::Result<String> {
    let said = Tool::new(program).argument(file).run().await?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let sum = said.split(' ').next().map(str::to_owned);
    sum.filter(|sum| sum.len() >= 40)
        .with_context(|| format!("{program} said {said:?}"))
}
