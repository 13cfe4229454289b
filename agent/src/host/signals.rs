//! Signals by name.

use std::str::FromStr as _;

use nix::libc;
use nix::sys::signal::Signal;

/// The number of a signal: a number, or a name with or without `SIG`, in any case; also
/// `RTMIN+n` and `RTMAX-n`. `None`: there is no such signal.
#[must_use]
pub fn signal_number(text: &str) -> Option<i32> {
    let text = text.trim().to_ascii_uppercase();
    if let Ok(number) = text.parse::<i32>() {
        return (1..=libc::SIGRTMAX()).contains(&number).then_some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return real_time(libc::SIGRTMIN(), rest);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return real_time(libc::SIGRTMAX(), rest);
    }
    Signal::from_str(&format!("SIG{name}")).ok().map(|signal| signal as i32)
}

fn real_time(from: i32, offset: &str) -> Option<i32> {
    let offset = if offset.is_empty() { 0 } else { offset.parse::<i32>().ok()? };
    let number = from.checked_add(offset)?;
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_number("SIGTERM"), Some(15));
        assert_eq!(signal_number("quit"), Some(3));
        assert_eq!(signal_number("9"), Some(9));
        assert_eq!(signal_number("SIGRTMIN+3"), Some(libc::SIGRTMIN() + 3));
        assert_eq!(signal_number("RTMAX-1"), Some(libc::SIGRTMAX() - 1));
        for none in ["SIGFOO", "0", "-1", "99", "RTMIN+99", ""] {
            assert_eq!(signal_number(none), None, "{none}");
        }
    }
}
