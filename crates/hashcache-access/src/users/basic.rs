//! A client's user name and password: the field Proxy-Authorization with the scheme Basic (RFC
//! 7617).
//!
//! Invariant: `Debug` shows neither.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// User name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name, without control characters and colons.
    pub user: Box<str>,
    /// The password, with any bytes but NUL.
    pub password: Box<[u8]>,
}

impl Login {
    /// Parses the field value. `None`: the value has another scheme, is malformed or too long, or
    /// the user name is not UTF-8, which our challenge requires.
    pub fn read(value: &[u8]) -> Option<Self> {
        let at = value.iter().position(|&byte| byte == b' ')?;
        let (scheme, rest) = value.split_at(at);
        if !scheme.eq_ignore_ascii_case(b"Basic") || rest.len() > VALUE_MAX {
            return None;
        }
        let decoded = BASE64.decode(rest.trim_ascii()).ok()?;
        let colon = decoded.iter().position(|&byte| byte == b':')?;
        let (user, password) = (&decoded[..colon], &decoded[colon + 1..]);
        let user = std::str::from_utf8(user).ok()?;
        let is_fit = !user.is_empty() && user.len() <= USER_MAX;
        let has_control = user.chars().any(char::is_control) || password.contains(&0);
        (is_fit && !has_control).then(|| Self {
            user: user.into(),
            password: password.into(),
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// Longest user name, bytes.
pub(super) const USER_MAX: usize = 128;
const VALUE_MAX: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(login: &[u8]) -> Option<(String, Vec<u8>)> {
        let value = format!("Basic {}", BASE64.encode(login));
        let login = Login::read(value.as_bytes())?;
        Some((login.user.into_string(), login.password.into_vec()))
    }

    #[test]
    fn the_first_colon_ends_the_name() {
        let login =
            |user: &str, password: &str| Some((user.to_owned(), password.as_bytes().to_vec()));
        assert_eq!(read(b"anna:x:y"), login("anna", "x:y"));
        assert_eq!(
            read("zo\u{eb}:\u{fc}".as_bytes()),
            login("zo\u{eb}", "\u{fc}")
        );
        assert_eq!(read(b"anna:"), login("anna", ""));
        let value = format!("bASIC   {}", BASE64.encode("a:b"));
        assert!(Login::read(value.as_bytes()).is_some());
    }

    #[test]
    fn what_is_no_login_is_none() {
        for wrong in [&b"anna"[..], b":x", b"zo\xeb:x", b"a\nb:x", b"a:x\0y"] {
            assert_eq!(read(wrong), None);
        }
        assert_eq!(read(&[b'a'; 200]), None);
        assert_eq!(read(&[&[b'a'; 129][..], b":x"].concat()), None);
        for value in [
            &b"Basic"[..],
            b"Basic ",
            b"Basic !",
            b"Bearer YTpi",
            b"",
            b"YTpi",
        ] {
            assert_eq!(Login::read(value), None);
        }
        assert_eq!(
            Login::read(format!("Basic {}", "A".repeat(4000)).as_bytes()),
            None
        );
        assert_eq!(
            format!("{:?}", Login::read(b"Basic YTpi").unwrap()),
            "Login { .. }"
        );
    }
}
