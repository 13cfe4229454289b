//! From which kinds of devices a guest starts: letters, as vmadm has them.

use serde_json::Value;

use super::VmRecord;

/// Kinds of devices, by their letters.
const KINDS: [(char, &str); 3] = [('c', "disk"), ('d', "CD"), ('n', "network interface")];

/// What [`BootOrder::parse`] takes, for people.
pub const FORM: &str = "`order=` and letters of c (disk), d (CD), n (network), each at most once; \
                        `once=` and one of them; or both, with a comma between";

/// The property `boot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootOrder<'a> {
    /// The lasting order, if one is told.
    pub order: Option<&'a str>,
    /// The device of the next boot alone.
    pub once: Option<char>,
}

impl<'a> BootOrder<'a> {
    /// Reads it; nothing when it is not as [`FORM`] says.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut found = Self { order: None, once: None };
        for option in text.split(',') {
            match option.split_once('=')? {
                ("order", letters) if found.order.is_none() && is_order(letters) => {
                    found.order = Some(letters);
                }
                ("once", letter) if found.once.is_none() && letter.len() == 1 => {
                    found.once = letter.chars().next().filter(|letter| kind(*letter).is_some());
                    found.once?;
                }
                _ => return None,
            }
        }
        Some(found)
    }

    /// Every letter in it.
    pub fn letters(&self) -> impl Iterator<Item = char> {
        self.order.unwrap_or_default().chars().chain(self.once)
    }
}

/// The kind of devices that a letter is for.
#[must_use]
pub fn kind(letter: char) -> Option<&'static str> {
    KINDS.iter().find(|(known, _)| *known == letter).map(|(_, kind)| *kind)
}

fn is_order(letters: &str) -> bool {
    let once = |letter: char| kind(letter).is_some() && letters.matches(letter).count() == 1;
    !letters.is_empty() && letters.chars().all(once)
}

impl VmRecord {
    /// Whether the VM has a device of the kind that a letter is for.
    #[must_use]
    pub fn has_device(&self, letter: char) -> bool {
        let is_cd = |disk: &Value| disk["media"] == "cdrom";
        match letter {
            'c' => self.list("disks").iter().any(|disk| !is_cd(disk)),
            'd' => self.list("disks").iter().any(is_cd),
            'n' => !self.list("nics").is_empty(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_of_known_letters() {
        let read = BootOrder::parse("order=cdn,once=d").unwrap();
        assert_eq!((read.order, read.once), (Some("cdn"), Some('d')));
        assert_eq!(read.letters().collect::<String>(), "cdnd");
        assert_eq!(BootOrder::parse("once=n").unwrap().letters().collect::<String>(), "n");
        for bad in [
            "",
            "cd",
            "order=",
            "order=cx",
            "order=cc",
            "once=",
            "once=cd",
            "once=x",
            "order=c,",
            "order=c,order=d",
            "once=c,once=d",
            "menu=on",
            "order=c,menu=on",
            "order=C",
        ] {
            assert_eq!(BootOrder::parse(bad), None, "{bad}");
        }
    }
}
