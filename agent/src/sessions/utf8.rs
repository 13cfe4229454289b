//! Bytes as they come, as text: a character that is cut by a piece's end waits for the rest.

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Utf8(Vec<u8>);

impl Utf8 {
    /// The text that is complete with these bytes; what is no UTF-8 becomes U+FFFD.
    pub(super) fn add(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // A fault may be followed by a character that is cut: its start is at most 3 bytes.
            Err(_) => self.0.len() - cut(&self.0),
            Ok(_) => self.0.len(),
        };
        let text = String::from_utf8_lossy(&self.0[..whole]).into_owned();
        self.0.drain(..whole);
        text
    }

    /// What still waited at the end.
    pub(super) fn end(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// Bytes at the end that begin a character and do not finish it.
fn cut(bytes: &[u8]) -> usize {
    let longest = bytes.len().min(3);
    let begins = |count: &usize| {
        let end = &bytes[bytes.len() - count..];
        matches!(std::str::from_utf8(end), Err(error)
            if error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=longest).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_make_the_same_text_as_the_whole(
            text in "\\PC{0,40}", noise in prop::collection::vec(any::<u8>(), 0..8),
            size in 1_usize..7,
        ) {
            let bytes = [text.as_bytes(), &noise, text.as_bytes()].concat();
            let mut utf8 = Utf8::default();
            let mut whole: String = bytes.chunks(size).map(|piece| utf8.add(piece)).collect();
            whole.push_str(&utf8.end());
            prop_assert_eq!(whole, String::from_utf8_lossy(&bytes));
        }
    }
}
