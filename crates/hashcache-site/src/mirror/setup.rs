//! Client configuration for a mirror.
//!
//! Used by the front page and by `hashcache env`, so that both show the same lines.

use hashcache_http::{Origin, Scheme};

use super::{Mirror, MirrorKind};

/// How a client is configured for a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Environment variables that suffice; empty if the client reads only files.
    pub variables: Vec<(&'static str, String)>,
    /// The configuration file.
    pub file: &'static str,
    /// The lines in that file.
    pub lines: Vec<String>,
}

impl Mirror {
    /// The configuration for this mirror on a proxy that the client reaches under `proxy`.
    pub fn setup(&self, proxy: &Origin) -> Setup {
        let name = &self.name;
        let url = format!("{proxy}/mirror/{name}/");
        match self.kind {
            MirrorKind::Pypi => {
                let index = format!("{url}simple/");
                let mut setup = Setup {
                    file: "pip.conf",
                    lines: vec!["[global]".to_owned(), format!("index-url = {index}")],
                    variables: vec![("PIP_INDEX_URL", index)],
                };
                // pip refuses plain HTTP otherwise. With https it would not check the certificate.
                if proxy.scheme == Scheme::Http {
                    // pip compares the host with a port only if the URL has a port.
                    let host = proxy.authority.host_field(proxy.scheme);
                    setup.lines.push(format!("trusted-host = {host}"));
                    setup.variables.push(("PIP_TRUSTED_HOST", host));
                }
                setup
            }
            MirrorKind::Npm => Setup {
                file: ".npmrc",
                lines: vec![
                    format!("registry={url}"),
                    // Otherwise lockfiles made here would refer everyone to this proxy.
                    "omit-lockfile-registry-resolved=true".to_owned(),
                ],
                variables: vec![
                    ("npm_config_registry", url),
                    (
                        "npm_config_omit_lockfile_registry_resolved",
                        "true".to_owned(),
                    ),
                ],
            },
            MirrorKind::Crates => Setup {
                variables: vec![],
                file: ".cargo/config.toml",
                lines: vec![
                    "[source.crates-io]".to_owned(),
                    format!("replace-with = \"hashcache-{}\"", name.replace('.', "-")),
                    format!("[source.hashcache-{}]", name.replace('.', "-")),
                    format!("registry = \"sparse+{url}\""),
                ],
            },
            MirrorKind::Apt => Setup {
                variables: vec![],
                file: "/etc/apt/sources.list.d/*.sources",
                lines: vec![format!("URIs: {url}")],
            },
        }
    }
}
