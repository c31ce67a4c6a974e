//! A file's media type, by the name extension: FTP and Gopher send no media type.

/// Returns the type for a file name.
pub(super) fn of_name(name: &[u8]) -> &'static str {
    let name = name.to_ascii_lowercase();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(&name);
    let Some(dot) = file.iter().rposition(|&byte| byte == b'.') else {
        let is_text = TEXTS.iter().any(|text| file.starts_with(text));
        return if is_text { "text/plain" } else { OTHER };
    };
    let ending = std::str::from_utf8(&file[dot + 1..]).unwrap_or_default();
    let row = TYPES.iter().find(|(endings, _)| endings.contains(&ending));
    row.map_or(OTHER, |&(_, media_type)| media_type)
}

const OTHER: &str = "application/octet-stream";

/// Name prefixes for texts without an extension.
const TEXTS: [&[u8]; 12] = [
    b"readme",
    b"license",
    b"licence",
    b"copying",
    b"install",
    b"changelog",
    b"changes",
    b"news",
    b"authors",
    b"md5sum",
    b"sha1sum",
    b"sha256sum",
];

const TYPES: &[(&[&str], &str)] = &[
    (&["html", "htm"], "text/html"),
    (
        &[
            "txt", "text", "log", "md", "asc", "diff", "patch", "dsc", "sum", "rfc",
        ],
        "text/plain",
    ),
    (
        &["c", "h", "cc", "cpp", "py", "rs", "sh", "pl", "conf", "ini"],
        "text/plain",
    ),
    (&["css"], "text/css"),
    (&["csv"], "text/csv"),
    (&["js", "mjs"], "text/javascript"),
    (&["json"], "application/json"),
    (&["xml", "rss", "atom"], "application/xml"),
    (&["pdf"], "application/pdf"),
    (&["ps", "eps"], "application/postscript"),
    (&["rtf"], "application/rtf"),
    (&["epub"], "application/epub+zip"),
    (&["doc"], "application/msword"),
    (&["xls"], "application/vnd.ms-excel"),
    (&["ppt"], "application/vnd.ms-powerpoint"),
    (&["odt"], "application/vnd.oasis.opendocument.text"),
    (&["ods"], "application/vnd.oasis.opendocument.spreadsheet"),
    (&["zip"], "application/zip"),
    (&["gz", "tgz"], "application/gzip"),
    (&["bz2", "tbz2"], "application/x-bzip2"),
    (&["xz", "txz"], "application/x-xz"),
    (&["zst"], "application/zstd"),
    (&["z"], "application/x-compress"),
    (&["7z"], "application/x-7z-compressed"),
    (&["rar"], "application/vnd.rar"),
    (&["tar"], "application/x-tar"),
    (&["deb"], "application/vnd.debian.binary-package"),
    (&["rpm"], "application/x-rpm"),
    (&["iso"], "application/x-iso9660-image"),
    (&["png"], "image/png"),
    (&["jpg", "jpeg"], "image/jpeg"),
    (&["gif"], "image/gif"),
    (&["webp"], "image/webp"),
    (&["svg"], "image/svg+xml"),
    (&["bmp"], "image/bmp"),
    (&["ico"], "image/vnd.microsoft.icon"),
    (&["tif", "tiff"], "image/tiff"),
    (&["mp3"], "audio/mpeg"),
    (&["ogg", "oga"], "audio/ogg"),
    (&["flac"], "audio/flac"),
    (&["wav"], "audio/wav"),
    (&["mid", "midi"], "audio/midi"),
    (&["mp4", "m4v"], "video/mp4"),
    (&["mpg", "mpeg"], "video/mpeg"),
    (&["webm"], "video/webm"),
    (&["avi"], "video/x-msvideo"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ending_counts() {
        assert_eq!(of_name(b"/pub/a.html/x.tar.GZ"), "application/gzip");
        assert_eq!(of_name(b"README"), "text/plain");
        assert_eq!(of_name(b"a.b/README.debian"), OTHER);
        assert_eq!(of_name(b"bin/program"), OTHER);
        assert_eq!(of_name(b"a.\xff"), OTHER);
        assert_eq!(of_name(b""), OTHER);
    }
}
