//! Files that other users must not write or read: the cache, the token, the authority's keys.
//!
//! Called by `hashcache proxy` before it opens the files, at the start and at a reload. A user with
//! write access to a cache file can choose the content that all clients receive; a user with read
//! access sees the content that clients received.
//!
//! | file | owner | group | others |
//! |---|---|---|---|
//! | cache file, token | the user we run as, or root | may read | nothing |
//! | block device | anyone: `root:disk` is usual | anything | nothing |
//! | directory of an authority | the user we run as, or root | no write | no write |
//! | key of an authority | the user we run as, or root | nothing | nothing |
//!
//! A group may read a cache and a token because only the owner can grant that right: we make files
//! with access only for their owner. Root's files are accepted for every user; but root itself
//! accepts no other user's file, because the owner could change it while root serves from it. For
//! `hashcache config check` root accepts such a file: that command serves nothing, and a service
//! runs as its own user.
//!
//! Invariant: a refused file is not changed. Cost: one `stat` per file.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use hashcache_settings::fault::Fault;

/// The kind of file, which decides which permissions are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Private {
    Cache,
    Token,
    AuthorityDirectory,
    AuthorityKey,
}

/// The reason for the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The proxy will use the files.
    Run,
    /// `hashcache config check` reports if the proxy could use them.
    Check,
}

impl Private {
    /// The permission bits that this kind of file must not have, and the mode that corrects it.
    fn forbidden(self) -> (u32, &'static str) {
        match self {
            Self::Cache | Self::Token => (0o027, "600"),
            Self::AuthorityDirectory => (0o022, "700"),
            Self::AuthorityKey => (0o077, "600"),
        }
    }

    /// Refuses the file at `path` if other users could write or read it. If the file is missing,
    /// has another type or is not accessible, the code that opens it reports the error.
    pub fn check(self, path: &Path, intent: Intent) -> Result<(), Fault> {
        let user = rustix::process::geteuid().as_raw();
        match fs::metadata(path) {
            Ok(file) if self.is_of_its_kind(&file) => {
                let facts = Facts::from_file(&file);
                self.judge(path, &facts, user_of_proxy(user, &facts, intent))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn is_of_its_kind(self, file: &Metadata) -> bool {
        match self {
            Self::Cache => file.is_file() || file.file_type().is_block_device(),
            Self::Token | Self::AuthorityKey => file.is_file(),
            Self::AuthorityDirectory => file.is_dir(),
        }
    }

    fn judge(self, path: &Path, file: &Facts, user: u32) -> Result<(), Fault> {
        let path = path.display();
        if file.is_block_device {
            let open = file.mode & 0o006;
            return match open {
                0 => Ok(()),
                _ => Err(Fault::new(format!("{} {path}", may(open << 3 | open)))
                    .hint(format!("`chmod o-rw {path}`"))),
            };
        }
        if file.owner != user && file.owner != 0 {
            let what = format!(
                "{path} belongs to user {}, not to user {user} of this process",
                file.owner
            );
            return Err(Fault::new(what).hint(format!(
                "`chown {user} {path}` if you trust its content, or run as its owner"
            )));
        }
        let (forbidden, mode) = self.forbidden();
        match file.mode & forbidden {
            0 => Ok(()),
            open => Err(Fault::new(format!(
                "{} {path} (mode {:03o})",
                may(open),
                file.mode & 0o777
            ))
            .hint(format!(
                "`chmod {mode} {path}`; on a file system without modes, mount it with \
                 `-o umask=077`"
            ))),
        }
    }
}

/// The user that the proxy will run as: `user`, this process's user, or, for a check by root, the
/// file's owner.
fn user_of_proxy(user: u32, file: &Facts, intent: Intent) -> u32 {
    match intent {
        Intent::Check if user == 0 => file.owner,
        Intent::Check | Intent::Run => user,
    }
}

/// The file properties that are checked.
struct Facts {
    owner: u32,
    mode: u32,
    is_block_device: bool,
}

impl Facts {
    fn from_file(file: &Metadata) -> Self {
        Self {
            owner: file.uid(),
            mode: file.mode(),
            is_block_device: file.file_type().is_block_device(),
        }
    }
}

fn may(open: u32) -> &'static str {
    match open & 0o022 {
        0 => "other users can read",
        _ => "other users can write to",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 1000;

    fn judged(what: Private, owner: u32, mode: u32, is_block_device: bool) -> Result<(), Fault> {
        let facts = Facts {
            owner,
            mode: mode | 0o100_000,
            is_block_device,
        };
        what.judge(Path::new("/srv/x"), &facts, US)
    }

    #[test]
    fn who_may_write_or_read_decides_and_the_command_is_named() {
        use Private::{AuthorityDirectory, AuthorityKey, Cache, Token};
        for (what, well, ill, command) in [
            (Cache, 0o600, 0o666, "`chmod 600 /srv/x`"),
            (Cache, 0o640, 0o660, "`chmod 600 /srv/x`"),
            (Cache, 0o400, 0o604, "`chmod 600 /srv/x`"),
            (Token, 0o640, 0o644, "`chmod 600 /srv/x`"),
            (Token, 0o400, 0o602, "`chmod 600 /srv/x`"),
            (AuthorityDirectory, 0o755, 0o775, "`chmod 700 /srv/x`"),
            (AuthorityDirectory, 0o700, 0o707, "`chmod 700 /srv/x`"),
            (AuthorityKey, 0o600, 0o640, "`chmod 600 /srv/x`"),
        ] {
            for owner in [US, 0] {
                assert!(
                    judged(what, owner, well, false).is_ok(),
                    "{what:?} {well:o}"
                );
                let fault = judged(what, owner, ill, false).unwrap_err();
                let hint = fault.hint.as_deref().unwrap_or_default();
                assert!(hint.starts_with(command), "{what:?} {ill:o}: {hint}");
            }
            let fault = judged(what, US + 1, well, false).unwrap_err();
            assert!(
                fault.what.contains("belongs to user 1001"),
                "{}",
                fault.what
            );
            let hint = fault.hint.unwrap_or_default();
            assert!(hint.starts_with("`chown 1000 /srv/x`"), "{hint}");
        }
    }

    #[test]
    fn root_checks_the_files_of_the_user_of_a_service_and_does_not_serve_from_them() {
        let file = Facts {
            owner: US,
            mode: 0o100_600,
            is_block_device: false,
        };
        let user = |user, intent| user_of_proxy(user, &file, intent);
        assert_eq!(user(0, Intent::Check), US);
        assert_eq!(user(0, Intent::Run), 0);
        assert_eq!(user(US + 1, Intent::Check), US + 1);
    }

    #[test]
    fn a_block_device_is_judged_by_what_others_may_alone() {
        assert!(judged(Private::Cache, 0, 0o660, true).is_ok());
        assert!(judged(Private::Cache, US + 1, 0o660, true).is_ok());
        for mode in [0o666, 0o664, 0o662] {
            assert!(judged(Private::Cache, 0, mode, true).is_err(), "{mode:o}");
        }
    }
}
