//! The command as a shell sees it: what is printed where, and the exit status.

mod bench;
mod bounds;
mod certificate_authority;
mod command;
mod configuration;
mod dashboard;
mod environment;
mod explain;
mod explain_access;
mod import;
mod import_beside_squid;
mod log_readers;
mod operation;
mod plan;
mod report;
mod service;
mod sim;
mod top;
mod watching;

mod cache_box;
mod proxy_process;

mod proxy_access;
mod proxy_both_ways;
mod proxy_ca;
mod proxy_clock;
mod proxy_digests;
mod proxy_fields;
mod proxy_followers;
mod proxy_forward;
mod proxy_gateways;
mod proxy_groups;
mod proxy_hostile;
mod proxy_htcp;
mod proxy_http2_origins;
mod proxy_intercept;
mod proxy_interim;
mod proxy_limits;
mod proxy_link;
mod proxy_link_fairness;
mod proxy_link_frames;
mod proxy_link_hints;
mod proxy_load_balancer;
mod proxy_logins;
mod proxy_members;
mod proxy_memory_hits;
mod proxy_messages;
mod proxy_mirrors;
mod proxy_never_wrong;
mod proxy_offline;
mod proxy_parts;
mod proxy_parts_late;
mod proxy_peers;
mod proxy_ports;
mod proxy_private;
mod proxy_purge_rights;
mod proxy_purges;
mod proxy_ranges;
mod proxy_rules;
mod proxy_sharing;
mod proxy_siblings;
mod proxy_sites;
mod proxy_sites_live;
mod proxy_smuggling;
mod proxy_text_at_rest;
mod proxy_tls;
mod proxy_users;
mod proxy_variants;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A home directory for one test. Commands started in it know no other home.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file below this home, readable by its owner alone.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("a home that can be written to");
        self.mode(name, 0o600);
        path
    }

    /// Sets the permission bits of a file or directory below this home.
    fn mode(&self, name: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.path().join(name), mode).expect("a file of ours");
    }

    /// Runs `hashcache` with `arguments`; its environment has only this home and `variables`.
    fn hashcache(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
        let output = Command::new(env!("CARGO_BIN_EXE_hashcache"))
            .args(arguments)
            .current_dir(self.path())
            .env_clear()
            .env("HOME", self.path())
            .envs(variables.iter().copied())
            .output()
            .expect("the command was built with the tests");
        Outcome::from(output)
    }
}

/// Output and exit status of a command.
#[derive(Debug)]
struct Outcome {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("what we print is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("what we print is UTF-8"),
        }
    }
}
