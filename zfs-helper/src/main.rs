//! `muster-zfs`: calls `libzfs_core` for the agent, a line for each call, until its input ends.

#[cfg(feature = "lzc")]
mod library;

use std::io::{self, BufRead as _, Read as _};

use muster_zfs_helper::{Answer, Call, MAX_LINE_BYTES, Outcome, Request};

/// Does one call.
trait Library {
    fn call(&mut self, call: &Call) -> Outcome;
}

#[cfg(not(feature = "lzc"))]
mod library {
    use super::{Call, Library, Outcome};

    /// Built without the library.
    struct Without;

    impl Library for Without {
        fn call(&mut self, _: &Call) -> Outcome {
            let reason = "this muster-zfs was built without libzfs_core".to_owned();
            Outcome::Unavailable { reason }
        }
    }

    pub(super) fn open() -> Box<dyn Library> {
        Box::new(Without)
    }
}

fn main() -> io::Result<()> {
    serve(&mut *library::open(), &mut io::stdin().lock(), &mut io::stdout().lock())
}

/// Answers line by line.
fn serve(
    library: &mut dyn Library,
    input: &mut dyn io::BufRead,
    output: &mut dyn io::Write,
) -> io::Result<()> {
    let mut calls = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        if (&mut *input).take(limit).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_slice::<Request>(&line) {
            Ok(Request { id, call }) => {
                let outcome = library.call(&call);
                let refused =
                    matches!(outcome, Outcome::Unavailable { .. } | Outcome::Refused { .. });
                calls += u64::from(!refused && call != Call::Hello);
                Answer { id, outcome, calls }
            }
            Err(error) => {
                let outcome = Outcome::Refused { reason: error.to_string() };
                Answer { id: 0, outcome, calls }
            }
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct Scripted(Vec<Outcome>);

    impl Library for Scripted {
        fn call(&mut self, _: &Call) -> Outcome {
            self.0.remove(0)
        }
    }

    #[test]
    fn each_line_has_its_answer_and_calls_are_counted() {
        let failed = Outcome::Failed { errno: 2, of: BTreeMap::new() };
        let mut library = Scripted(vec![Outcome::Done, failed, Outcome::Done]);
        let input = "{\"id\":1,\"op\":\"hello\"}\n{\"id\":2,\"op\":\"destroy\",\"dataset\":\"z/a\"}\n\
                     nonsense\n{\"id\":3,\"op\":\"promote\",\"dataset\":\"z/a\"}\n";
        let mut output = Vec::new();
        serve(&mut library, &mut input.as_bytes(), &mut output).unwrap();
        let answers: Vec<Answer> = String::from_utf8(output)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let told: Vec<_> = answers.iter().map(|answer| (answer.id, answer.calls)).collect();
        assert_eq!(told, [(1, 0), (2, 1), (0, 1), (3, 2)]);
        assert!(matches!(answers[2].outcome, Outcome::Refused { .. }));
    }

    #[cfg(not(feature = "lzc"))]
    #[test]
    fn without_the_library_it_says_so() {
        let outcome = library::open().call(&Call::Hello);
        assert!(matches!(outcome, Outcome::Unavailable { .. }), "{outcome:?}");
    }
}
