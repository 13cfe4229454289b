//! Lines that fit a terminal: broken between words, so that no terminal breaks them within one.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Between a name and its value.
const GAP: usize = 2;
/// Narrower terminals get lines of this width all the same.
const NARROWEST: usize = 20;

/// The text in lines of at most `width` columns. What goes on is indented as its line is.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.map(|width| width.max(NARROWEST)) else { return text.to_owned() };
    let lines: Vec<String> = text.split('\n').map(|line| one(line, width)).collect();
    lines.join("\n")
}

fn one(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let indent: String = line.chars().take_while(|c| *c == ' ').take(width / 2).collect();
    let mut all = indent.clone();
    let mut used = indent.width();
    let mut fresh = true;
    for word in line[indent.len()..].split(' ') {
        if !fresh && used + 1 + word.width() > width {
            all.push('\n');
            all.push_str(&indent);
            used = indent.width();
            fresh = true;
        }
        if !fresh {
            all.push(' ');
            used += 1;
        }
        for c in word.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width {
                all.push('\n');
                all.push_str(&indent);
                used = indent.width();
            }
            all.push(c);
            used += wide;
        }
        fresh = false;
    }
    all
}

/// Names, and their values beside them.
pub(crate) fn pairs(lines: &[[String; 2]], width: Option<usize>) -> String {
    let widest = lines.iter().map(|[name, _]| name.width()).max().unwrap_or(0);
    // Long names have their values below them, as otherwise nothing were left for these.
    let column = width.map_or(widest, |width| widest.min(width / 2));
    let mut text = Vec::new();
    for [name, value] in lines {
        let rest = width.map(|width| width.saturating_sub(column + GAP));
        let mut name = name.clone();
        if name.width() > column {
            text.push(wrapped(&std::mem::take(&mut name), width));
        }
        for part in wrapped(value, rest).split('\n') {
            let blanks = column - name.width() + GAP;
            text.push(format!("{name}{:blanks$}{part}", "").trim_end().to_owned());
            name.clear();
        }
    }
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_keep_their_indent() {
        let text = "short\n  a line of several words that goes on";
        let want = "short\n  a line of several\n  words that goes on";
        assert_eq!(wrapped(text, Some(20)), want);
        assert_eq!(wrapped(text, None), text);
        assert_eq!(wrapped(&"x".repeat(45), Some(20)).lines().count(), 3);
    }

    #[test]
    fn values_stand_beside_their_names() {
        let lines = [["a", "one two three four five"], ["name", "x"]];
        let lines = lines.map(|line| line.map(str::to_owned));
        let narrow = "a     one two three four\n      five\nname  x";
        assert_eq!(pairs(&lines, Some(26)), narrow);
        assert_eq!(pairs(&lines, None), "a     one two three four five\nname  x");
    }

    proptest! {
        #[test]
        fn nothing_is_wider_and_nothing_is_lost(text in "( {0,30}[a-z世é]{1,30}){0,12}", width in 20_usize..90) {
            let lines = wrapped(&text, Some(width));
            prop_assert!(lines.split('\n').all(|line| line.width() <= width), "{lines:?}");
            let bare = |text: &str| text.replace([' ', '\n'], "");
            prop_assert_eq!(bare(&lines), bare(&text));
        }
    }
}
