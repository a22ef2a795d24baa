//! As much of SVG as a plot needs.

use std::fmt::Write;

/// Which end of a text is at its place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A picture that is being drawn; lengths are pixels from the left and from the top.
#[derive(Debug)]
pub(crate) struct Picture(String);

impl Picture {
    /// A white one.
    pub(crate) fn new(width: f64, height: f64) -> Picture {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
        );
        let _ = writeln!(text, "<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>");
        Picture(text)
    }

    /// A filled rectangle.
    pub(crate) fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        );
    }

    /// A thin line.
    pub(crate) fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, stroke: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>"
        );
    }

    /// A disc with a white rim, to be seen on any ground.
    pub(crate) fn circle(&mut self, x: f64, y: f64, radius: f64, fill: &str) {
        let _ = writeln!(
            self.0,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"white\" stroke-width=\"0.8\"/>"
        );
    }

    /// A line of text, at its baseline.
    pub(crate) fn text(&mut self, x: f64, y: f64, size: u32, anchor: Anchor, text: &str) {
        let (anchor, text) = (anchor.name(), escaped(text));
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// A line of text from bottom to top, in the middle of its place.
    pub(crate) fn upright_text(&mut self, x: f64, y: f64, size: u32, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x:.1} {y:.1})\">{text}</text>"
        );
    }

    /// The file.
    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut picture = Picture::new(10.0, 20.0);
        picture.text(1.0, 2.0, 12, Anchor::End, "a < b & c");
        let text = picture.finish();
        assert!(text.contains("text-anchor=\"end\">a &lt; b &amp; c</text>"), "{text}");
        assert!(text.contains("viewBox=\"0 0 10 20\""), "{text}");
    }
}
