//! Parts of pictures as text of SVG files.
//!
//! Used by `curves` and by the pictures of campaigns. Invariant: the text needs no font, style
//! sheet or script of its own, and words are shown as they are, whatever characters they have.

/// Which part of a text stands at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The first letter.
    Start,
    /// The middle.
    Middle,
    /// The last letter.
    End,
}

/// A whole file: `body` on a white ground.
pub fn document(width: f64, height: f64, title: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222222\">\n\
         <title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        escaped(title)
    )
}

/// A line of text with its baseline at `y`.
pub fn words(x: f64, y: f64, anchor: Anchor, size: u32, words: &str) -> String {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    format!(
        "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>\n",
        escaped(words)
    )
}

/// A thin line between two points.
pub fn line(x: [f64; 2], y: [f64; 2], colour: &str) -> String {
    format!(
        "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
        x[0], x[1], y[0], y[1]
    )
}

/// A curve through points. `stroke`: attributes of its line.
pub fn curve(points: impl IntoIterator<Item = (f64, f64)>, stroke: &str) -> String {
    let points = points.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    let points: Vec<String> = points.collect();
    let points = points.join(" ");
    format!("<polyline points=\"{points}\" fill=\"none\" {stroke}/>\n")
}

/// `words` as the text of an element. Control characters, which no XML file can have, are left out.
pub fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '&' => text += "&amp;",
            '<' => text += "&lt;",
            '>' => text += "&gt;",
            '\u{fffe}' | '\u{ffff}' => {}
            letter if letter.is_control() => {}
            letter => text.push(letter),
        }
    }
    text
}

/// Colour of the lines of a grid.
pub const GRID: &str = "#dddddd";
/// Colour of axes.
pub const AXIS: &str = "#555555";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_any_characters_are_text() {
        let text = words(1.4, 2.0, Anchor::End, 13, "a<b> & \u{1b}\u{ffff}\"c\"");
        let wanted = "<text x=\"1\" y=\"2\" text-anchor=\"end\" font-size=\"13\">\
                      a&lt;b&gt; &amp; \"c\"</text>\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_curve_has_its_points_in_order() {
        let curve = curve([(1.0, 2.0), (3.25, 4.0)], "stroke=\"#000000\"");
        assert!(curve.contains(" points=\"1.0,2.0 3.2,4.0\" "), "{curve}");
    }
}
