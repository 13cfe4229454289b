//! The keys that leave a console, found in what a terminal sends.
//!
//! ```text
//! line start ── ~ ──► tilde ── . ──► leave
//!     ▲ CR, LF          │ ~: one ~    │ ?: the list of keys
//!     └──── inside ◄────┴ anything else
//! ```
//!
//! A terminal also sends what nobody typed: answers to questions of the guest (where is the cursor,
//! what are you, which colours), reports of the mouse and of focus. Shells ask with each prompt, so
//! such a report must not count as typing. It is passed on and leaves the state as it was.

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
/// Longest report that is waited for while a `~` is held back, bytes.
const MAX_HELD: usize = 256;

/// What a person wants of the console itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing.
    Stay,
    /// The list of keys.
    Help,
    /// To leave.
    Leave,
}

/// Where typing is in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    LineStart,
    /// A `~` at the start of a line, held back.
    Tilde,
    Inside,
}

/// How much of a report has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    None,
    /// ESC.
    Escape,
    /// ESC `[`, and whether a `<`, as of the mouse, came after it.
    Csi {
        mouse: bool,
    },
    /// OSC, DCS, APC or PM: up to BEL or ESC `\`.
    Text,
    /// An ESC in it.
    TextEscape,
}

/// Finds the keys.
#[derive(Debug)]
pub(crate) struct Escape {
    place: Place,
    report: Report,
    /// What came after a `~` that is held back and may be a report.
    held: Vec<u8>,
    key: Option<u8>,
}

impl Escape {
    /// At the start of a line; `key` leaves wherever it is typed.
    pub(crate) fn new(key: Option<u8>) -> Self {
        Self { place: Place::LineStart, report: Report::None, held: Vec::new(), key }
    }

    /// What of the bytes goes to the guest, and what is wished for after that.
    pub(crate) fn filter(&mut self, bytes: &[u8]) -> (Vec<u8>, Wish) {
        let mut passed = Vec::with_capacity(bytes.len() + 1);
        let mut wish = Wish::Stay;
        for &byte in bytes {
            match self.take(byte, &mut passed) {
                Wish::Stay => {}
                Wish::Help => wish = Wish::Help,
                Wish::Leave => return (passed, Wish::Leave),
            }
        }
        // Reports come in one piece; an ESC that ends a piece was typed.
        if self.report == Report::Escape && self.place == Place::Tilde {
            self.typed(&mut passed);
        }
        (passed, wish)
    }

    fn take(&mut self, byte: u8, passed: &mut Vec<u8>) -> Wish {
        let before = self.report;
        self.report = match (before, byte) {
            (Report::None, ESC) => Report::Escape,
            (Report::None, _) => return self.key(byte, passed),
            (Report::Escape, b'[') => Report::Csi { mouse: false },
            (Report::Escape, b']' | b'P' | b'_' | b'^') => Report::Text,
            (Report::Csi { .. }, b'<') => Report::Csi { mouse: true },
            (Report::Csi { mouse }, 0x20..=0x3f) => Report::Csi { mouse },
            (Report::Csi { mouse }, end @ 0x40..=0x7e) => {
                self.pass(byte, passed);
                if is_report(end, mouse) {
                    self.reported(passed)
                } else {
                    self.typed(passed)
                }
                return Wish::Stay;
            }
            (Report::Text, BEL) | (Report::TextEscape, b'\\') => {
                self.pass(byte, passed);
                self.reported(passed);
                return Wish::Stay;
            }
            (Report::Text, ESC) => Report::TextEscape,
            (Report::Text, 0x20..) => Report::Text,
            // An ESC that was typed, and then something else.
            (Report::Escape | Report::Csi { .. } | Report::Text | Report::TextEscape, _) => {
                self.typed(passed);
                return self.take(byte, passed);
            }
        };
        self.pass(byte, passed);
        if self.held.len() > MAX_HELD {
            self.typed(passed);
        }
        Wish::Stay
    }

    /// A key, or a character of a text that was pasted.
    fn key(&mut self, byte: u8, passed: &mut Vec<u8>) -> Wish {
        if Some(byte) == self.key {
            return Wish::Leave;
        }
        match (self.place, byte) {
            (Place::LineStart, b'~') => self.place = Place::Tilde,
            (Place::Tilde, b'.') => return Wish::Leave,
            (Place::Tilde, b'?') => {
                self.place = Place::LineStart;
                return Wish::Help;
            }
            (Place::Tilde, b'~') => {
                passed.push(b'~');
                self.place = Place::Inside;
            }
            (place, byte) => {
                if place == Place::Tilde {
                    passed.push(b'~');
                }
                passed.push(byte);
                let is_end = matches!(byte, b'\r' | b'\n');
                self.place = if is_end { Place::LineStart } else { Place::Inside };
            }
        }
        Wish::Stay
    }

    /// A byte of what may be a report.
    fn pass(&mut self, byte: u8, passed: &mut Vec<u8>) {
        // It must not overtake the `~` before it, if it turns out to be typed.
        if self.place == Place::Tilde { &mut self.held } else { passed }.push(byte);
    }

    /// It was a report: as if it had not come.
    fn reported(&mut self, passed: &mut Vec<u8>) {
        self.report = Report::None;
        passed.append(&mut self.held);
    }

    /// It was typed, e.g. an arrow key.
    fn typed(&mut self, passed: &mut Vec<u8>) {
        if self.place == Place::Tilde {
            passed.push(b'~');
        }
        passed.append(&mut self.held);
        (self.report, self.place) = (Report::None, Place::Inside);
    }
}

/// Whether a control sequence with this end comes from the terminal by itself: cursor position,
/// attributes, status, modes, window, focus, mouse.
fn is_report(end: u8, mouse: bool) -> bool {
    matches!(end, b'R' | b'c' | b'n' | b'y' | b't' | b'I' | b'O')
        || mouse && matches!(end, b'M' | b'm')
}

/// The key of `--escape`: one character, `^X` for Ctrl with it, or `none`.
pub(crate) fn parse_key(text: &str) -> Result<Option<u8>, String> {
    match text.as_bytes() {
        b"none" => Ok(None),
        [b'^', letter @ (b'@'..=b'_' | b'a'..=b'z')] => {
            Ok(Some(letter.to_ascii_uppercase() & 0x1f))
        }
        [key @ 0x01..=0x7e] => Ok(Some(*key)),
        _ => Err("expected one character, ^X for Ctrl-X, or none".to_owned()),
    }
}

/// The key as people write it.
pub(crate) fn shown_key(key: u8) -> String {
    match key {
        0..=0x1f => format!("Ctrl-{}", char::from(key | 0x40)),
        key => char::from(key).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CTRL_BRACKET: u8 = 0x1d;

    #[track_caller]
    fn check(typed: &[&str], passed: &str, wish: Wish) {
        let mut escape = Escape::new(Some(CTRL_BRACKET));
        let mut all = Vec::new();
        let mut last = Wish::Stay;
        for part in typed {
            let (bytes, wish) = escape.filter(part.as_bytes());
            all.extend(bytes);
            if wish != Wish::Stay {
                last = wish;
            }
        }
        assert_eq!((String::from_utf8(all).unwrap().as_str(), last), (passed, wish), "{typed:?}");
    }

    #[test]
    fn only_a_tilde_and_dot_at_the_start_of_a_line_leave() {
        check(&["~."], "", Wish::Leave);
        check(&["ls\r", "~", "."], "ls\r", Wish::Leave);
        check(&["a~."], "a~.", Wish::Stay);
        check(&["~~."], "~.", Wish::Stay);
        check(&["~a."], "~a.", Wish::Stay);
        check(&["~\r~."], "~\r", Wish::Leave);
        check(&["~?~."], "", Wish::Leave);
        check(&["a\r~?b"], "a\rb", Wish::Help);
    }

    #[test]
    fn the_other_key_leaves_anywhere() {
        check(&["vi x\x1d"], "vi x", Wish::Leave);
        check(&["~\x1d"], "", Wish::Leave);
        let mut none = Escape::new(None);
        assert_eq!(none.filter(b"a\x1d"), (b"a\x1d".to_vec(), Wish::Stay));
    }

    #[test]
    fn what_a_terminal_answers_is_no_typing() {
        for report in [
            "\x1b[12;40R",
            "\x1b[?62;22c",
            "\x1b[0n",
            "\x1b[?2026;2$y",
            "\x1b[I",
            "\x1b[<0;10;20M",
            "\x1b]11;rgb:0000/0000/0000\x1b\\",
            "\x1b]11;rgb:0000/0000/0000\x07",
            "\x1bP>|xterm(380)\x1b\\",
        ] {
            check(&[report, "~."], report, Wish::Leave);
            check(&["ls\r", report, "~", "."], &format!("ls\r{report}"), Wish::Leave);
            // Between the two keys, and in two pieces.
            check(&["~", report, "."], report, Wish::Leave);
            let (start, end) = report.split_at(report.len() / 2);
            check(&[start, end, "~."], report, Wish::Leave);
            // It does not start a line either.
            check(&["a", report, "~."], &format!("a{report}~."), Wish::Stay);
        }
    }

    #[test]
    fn keys_that_send_several_bytes_are_typing() {
        for key in ["\x1b[A", "\x1bOP", "\x1b[3~", "\x1bx", "\x1b"] {
            check(&[key, "~."], &format!("{key}~."), Wish::Stay);
            check(&["~", key, "."], &format!("~{key}."), Wish::Stay);
            check(&[key, "\r~."], &format!("{key}\r"), Wish::Leave);
        }
        // Alt-P begins like a report, which no line end is in.
        check(&["\x1bPls\r", "~."], "\x1bPls\r", Wish::Leave);
    }

    #[test]
    fn keys_are_named() {
        for (text, key) in [("^]", Some(CTRL_BRACKET)), ("^a", Some(1)), ("!", Some(b'!'))] {
            assert_eq!(parse_key(text), Ok(key), "{text}");
        }
        assert_eq!(parse_key("none"), Ok(None));
        for bad in ["", "ab", "^1", "é"] {
            parse_key(bad).unwrap_err();
        }
        assert_eq!((shown_key(CTRL_BRACKET), shown_key(b'!')), ("Ctrl-]".into(), "!".into()));
    }

    proptest! {
        /// Without a tilde, and without the other key, everything passes at once and unchanged.
        #[test]
        fn nothing_else_is_touched(
            pieces in proptest::collection::vec("[^~\\x1d]{0,12}", 0..8),
        ) {
            let mut escape = Escape::new(Some(CTRL_BRACKET));
            for piece in pieces {
                let (passed, wish) = escape.filter(piece.as_bytes());
                prop_assert_eq!(passed, piece.into_bytes());
                prop_assert_eq!(wish, Wish::Stay);
            }
        }

        /// Whatever was typed before: at the start of a line, `~.` leaves, also in pieces and with
        /// reports anywhere.
        #[test]
        fn nobody_is_trapped(
            before in proptest::collection::vec(any::<u8>(), 0..40),
            reports in proptest::collection::vec("\\x1b\\[[0-9;]{0,7}[Rcn]", 0..3),
            between in proptest::option::of("\\x1b\\[[0-9;]{0,7}R"),
        ) {
            let mut escape = Escape::new(None);
            escape.filter(&before);
            // The second ends a line for sure: the first may have been the end of a `~` or a report.
            escape.filter(b"\r\r");
            for report in reports {
                prop_assert_eq!(escape.filter(report.as_bytes()).1, Wish::Stay);
            }
            prop_assert_eq!(escape.filter(b"~").1, Wish::Stay);
            if let Some(report) = between {
                prop_assert_eq!(escape.filter(report.as_bytes()).1, Wish::Stay);
            }
            prop_assert_eq!(escape.filter(b".").1, Wish::Leave);
        }
    }
}
