//! Prometheus' text format, version 0.0.4, for figures that are read when somebody asks.

use std::fmt::{self, Write as _};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family of metrics is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process ends. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        })
    }
}

/// A page under construction.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    common: String,
    text: String,
}

impl Exposition {
    /// An empty page. `common` are labels of every sample, as they stand in the text: `a="b",c="d"`.
    #[must_use]
    pub fn new(common: &str) -> Self {
        Self { common: common.to_owned(), text: String::new() }
    }

    /// A family of one sample.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help, [(&[][..], value)]);
    }

    /// A family: samples with their labels. It is described also without any.
    pub fn family<'a>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], f64)>,
    ) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
        for (labels, value) in samples {
            let mut shown = self.common.clone();
            for (label, text) in labels {
                let comma = if shown.is_empty() { "" } else { "," };
                write!(shown, "{comma}{label}=\"{}\"", escape(text))
                    .expect("a String takes every write");
            }
            if shown.is_empty() {
                self.line(format_args!("{name} {value}"));
            } else {
                self.line(format_args!("{name}{{{shown}}} {value}"));
            }
        }
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        writeln!(self.text, "{text}").expect("a String takes every write");
    }

    /// The page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A label's value as it stands in the text.
#[must_use]
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_common_labels_and_their_own() {
        let mut page = Exposition::new("dc=\"a\"");
        page.one("up", Kind::Gauge, "Whether it is up.", 1.0);
        let samples = [(&[("state", "a\"b\\")][..], 2.5)];
        page.family("things_total", Kind::Counter, "Things.", samples);
        let text = "# HELP up Whether it is up.\n# TYPE up gauge\nup{dc=\"a\"} 1\n\
                    # HELP things_total Things.\n# TYPE things_total counter\n\
                    things_total{dc=\"a\",state=\"a\\\"b\\\\\"} 2.5\n";
        assert_eq!(page.into_text(), text);
        let mut bare = Exposition::default();
        bare.one("up", Kind::Gauge, "Up.", 0.0);
        bare.family("none", Kind::Gauge, "Nothing.", []);
        assert!(bare.into_text().contains("\nup 0\n# HELP none Nothing.\n"));
    }
}
