//! Inputs that are near given ones, for runs without a fuzzer: they are the same in every run.

use rand::rngs::ChaCha12Rng;
use rand::{RngExt as _, SeedableRng as _};

/// Texts that readers treat in a way of their own.
const WORDS: &[&str] = &[
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "-1",
    "0",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "9223372036854775807",
    "\\u0000",
    "\\ud800",
    "\u{1b}[2J",
    "..",
    "%00",
    "%ff",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    "\r\n",
    "\0",
    "=",
    "&",
    "[0]",
    "[]=",
    "'",
    "${x}",
    "\u{202e}",
];
/// Most changes of one input.
const MAX_CHANGES: usize = 4;

/// Makes inputs.
#[derive(Debug)]
pub struct Mutator {
    random: ChaCha12Rng,
    corpus: Vec<Vec<u8>>,
    max_bytes: usize,
}

impl Mutator {
    /// Of these inputs, none of which is changed.
    #[must_use]
    pub fn new(seed: u64, corpus: Vec<Vec<u8>>, max_bytes: usize) -> Self {
        Self { random: ChaCha12Rng::seed_from_u64(seed), corpus, max_bytes }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end.max(1))
    }

    /// Any part of an input.
    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(input.len() + 1);
        let longest = input.len() - from;
        let length = match self.below(4) {
            0 => self.below(longest + 1),
            _ => self.below(longest.min(16) + 1),
        };
        from..from + length
    }

    /// A part of any input of the corpus.
    fn foreign(&mut self) -> Vec<u8> {
        let which = self.below(self.corpus.len());
        let Some(other) = self.corpus.get(which).cloned() else { return Vec::new() };
        let part = self.part(&other);
        other[part].to_vec()
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let which = self.below(self.corpus.len());
        let mut input = self.corpus.get(which).cloned().unwrap_or_default();
        for _ in 0..=self.below(MAX_CHANGES) {
            self.change(&mut input);
        }
        input.truncate(self.max_bytes);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let part = self.part(input);
        match self.below(6) {
            0 => {
                let at = self.below(input.len());
                let bit = self.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            1 => drop(input.drain(part)),
            2 => {
                let copy = input[part.clone()].to_vec();
                drop(input.splice(part.end..part.end, copy));
            }
            3 => {
                let word = WORDS[self.below(WORDS.len())];
                drop(input.splice(part, word.bytes()));
            }
            4 => {
                let foreign = self.foreign();
                drop(input.splice(part, foreign));
            }
            _ => self.change_number(input),
        }
    }

    /// Another number in the place of one.
    fn change_number(&mut self, input: &mut Vec<u8>) {
        let starts: Vec<usize> =
            (0..input.len()).filter(|at| input[*at].is_ascii_digit()).collect();
        let which = self.below(starts.len());
        let Some(start) = starts.get(which).copied() else { return };
        let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let power = 1_u128 << self.below(66);
        let number = power.saturating_sub(u128::from(self.below(2) == 1));
        drop(input.splice(start..start + length, number.to_string().into_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_near_and_the_same_in_every_run() {
        let corpus = vec![br#"{"a":[1,20]}"#.to_vec(), b"other".to_vec()];
        let inputs = || {
            let mut mutator = Mutator::new(7, corpus.clone(), 64);
            (0..500).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        let first = inputs();
        assert_eq!(first, inputs());
        assert!(first.iter().all(|input| input.len() <= 64));
        let different: std::collections::BTreeSet<_> = first.iter().collect();
        assert!(different.len() > 400, "{}", different.len());
        let near = first.iter().filter(|input| input.starts_with(br#"{"a""#)).count();
        assert!(near > 50, "{near}");
    }

    #[test]
    fn no_input_is_a_beginning_too() {
        let mut mutator = Mutator::new(1, Vec::new(), 8);
        assert!((0..100).any(|_| !mutator.next_input().is_empty()));
    }
}
