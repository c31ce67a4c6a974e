//! A container image for all processors, as an OCI image layout: files that `skopeo`, `podman` and
//! `docker` can load, made without a daemon and without root.
//!
//! The image is empty but for the binary, the certificates of this machine's `ca-certificates`, the
//! settings and a user. Each processor has one layer; one index names them all, so that a client
//! gets the one for its processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{
    Arch, VERSION, commit_seconds, directory, empty_directory, execute, make_directory, output,
    place, source,
};

/// The user of the process, as in other images without a shell: nobody outside has this number.
const USER: &str = "65532";

/// The certificates of authorities, at Debian and in the image.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Where the cache lies: the one place that the process writes to.
const CACHE: &str = "var/cache/hashcache";

/// Writes the layout, and an archive of it for `docker load` and `podman load`.
pub(super) fn build(arches: &[Arch]) -> anyhow::Result<()> {
    let layout = directory().join("oci");
    empty_directory(&layout)?;
    let blobs = Blobs(layout.join("blobs/sha256"));
    make_directory(&blobs.0)?;
    let mut manifests = vec![];
    for arch in arches {
        let mut manifest = manifest(&blobs, *arch)?;
        manifest["platform"] = json!({"os": "linux", "architecture": arch.debian()});
        manifests.push(manifest);
    }
    let mut all = blobs.add_json(
        INDEX,
        &json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
        }),
    )?;
    all["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [all]});
    place(&layout.join("index.json"), index.to_string(), 0o644)?;
    let version = json!({"imageLayoutVersion": "1.0.0"});
    place(&layout.join("oci-layout"), version.to_string(), 0o644)?;
    let archive = directory().join(format!("hashcache-{VERSION}-oci.tar"));
    let mut tar = tar(&layout)?;
    execute(
        tar.args(["--owner=0", "--group=0", "-cf"])
            .arg(archive)
            .arg("."),
    )
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Adds the image of one processor; returns the descriptor of its manifest.
fn manifest(blobs: &Blobs, arch: Arch) -> anyhow::Result<Value> {
    let tar = layer(arch)?;
    let diff_id = digest(&tar)?;
    execute(Command::new("gzip").arg("-9nf").arg(&tar))?;
    let layer = blobs.add_file(LAYER, &tar.with_extension("tar.gz"))?;
    let seconds = commit_seconds()?;
    let mut date = Command::new("date");
    let created = output(date.args(["--utc", "+%FT%TZ", "-d", &format!("@{seconds}")]))?;
    let config = json!({
        "created": created.trim(),
        "os": "linux",
        "architecture": arch.debian(),
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": {"3128/tcp": {}},
            "Volumes": {format!("/{CACHE}"): {}},
            "Env": ["PATH=/usr/bin", "HOME=/nonexistent", "XDG_CACHE_HOME=/var/cache"],
            "Entrypoint": ["/usr/bin/hashcache"],
            "Cmd": ["proxy"],
            "StopSignal": "SIGTERM",
            // An extension of Docker: others have health checks of their own.
            "Healthcheck": {
                // The default of `admin`. Without it the settings would be read anew, and may have
                // a mistake by now.
                "Test": ["CMD", "/usr/bin/hashcache", "healthcheck", "--admin", "127.0.0.1:3180"],
                "Interval": 10_000_000_000_u64,
                "Timeout": 10_000_000_000_u64,
            },
            "Labels": {
                "org.opencontainers.image.title": "hashcache",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
        "history": [{"created": created.trim(), "created_by": "cargo xtask dist --oci"}],
    });
    blobs.add_json(
        MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blobs.add_json(CONFIG, &config)?,
            "layers": [layer],
        }),
    )
}

/// The files of the image as a tar archive.
fn layer(arch: Arch) -> anyhow::Result<PathBuf> {
    let tree = directory().join(format!("oci-{}", arch.debian()));
    empty_directory(&tree)?;
    place(
        &tree.join("usr/bin/hashcache"),
        fs::read(arch.binary())?,
        0o755,
    )?;
    let authorities = Path::new("/").join(AUTHORITIES);
    ensure!(
        authorities.exists(),
        "{} is missing: install the package ca-certificates",
        authorities.display()
    );
    place(&tree.join(AUTHORITIES), fs::read(authorities)?, 0o644)?;
    let settings = source("packaging/oci/hashcache.toml")?;
    place(&tree.join("etc/hashcache/hashcache.toml"), settings, 0o644)?;
    let user = format!("hashcache:x:{USER}:{USER}::/nonexistent:/sbin/nologin\n");
    place(&tree.join("etc/passwd"), user, 0o644)?;
    place(
        &tree.join("etc/group"),
        format!("hashcache:x:{USER}:\n"),
        0o644,
    )?;
    make_directory(&tree.join(CACHE))?;
    let archive = tree.with_extension("tar");
    let cache = format!("./{CACHE}");
    let mut all = tar(&tree)?;
    all.args(["--owner=0", "--group=0", "--exclude", &cache, "-cf"]);
    execute(all.arg(&archive).arg("."))?;
    let mut own = tar(&tree)?;
    own.args([&format!("--owner={USER}"), &format!("--group={USER}")]);
    execute(own.arg("-rf").arg(&archive).arg(&cache))?;
    Ok(archive)
}

/// A `tar` of the files below `tree` whose output depends on nothing but them.
fn tar(tree: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new("tar");
    command
        .arg("--directory")
        .arg(tree)
        .args(["--sort=name", "--numeric-owner", "--format=ustar"])
        .arg(format!("--mtime=@{}", commit_seconds()?));
    Ok(command)
}

/// The directory of all parts of the layout, each under its digest.
struct Blobs(PathBuf);

impl Blobs {
    fn add_json(&self, media_type: &str, value: &Value) -> anyhow::Result<Value> {
        let file = self.0.join("new");
        place(&file, value.to_string(), 0o644)?;
        self.add_file(media_type, &file)
    }

    /// Moves `file` here; returns its descriptor.
    fn add_file(&self, media_type: &str, file: &Path) -> anyhow::Result<Value> {
        let digest = digest(file)?;
        let size = fs::metadata(file)?.len();
        fs::rename(file, self.0.join(&digest))
            .with_context(|| format!("cannot move {}", file.display()))?;
        let digest = format!("sha256:{digest}");
        Ok(json!({"mediaType": media_type, "digest": digest, "size": size}))
    }
}

/// The SHA-256 of a file, in hexadecimal digits.
fn digest(file: &Path) -> anyhow::Result<String> {
    let sum = output(Command::new("sha256sum").arg(file))?;
    let digest = sum.split_whitespace().next();
    Ok(digest.context("sha256sum prints nothing")?.to_owned())
}
