//! The operator's command, against a coordinator of a test. It blocks: tests that wait for their own
//! servers meanwhile need a runtime with several threads.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::binary;
use crate::daemon::Coordinator;

/// Runs it to its end.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn output(coordinator: &Coordinator, words: &[&str]) -> Output {
    output_with(coordinator, words, &[])
}

/// Likewise, with these environment variables.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn output_with(coordinator: &Coordinator, words: &[&str], env: &[(&str, &str)]) -> Output {
    output_at(&format!("http://{}", coordinator.address()), words, env)
}

/// Likewise, at any address.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn output_at(url: &str, words: &[&str], env: &[(&str, &str)]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = Command::new(binary("muster"));
    command.args(["--url", url]).args(words).envs(env.iter().copied());
    command.output().expect("the command runs")
}

/// Likewise, with a file on its standard input.
///
/// # Panics
/// If it can't be started, or there is no such file.
#[must_use]
pub fn output_from(url: &str, words: &[&str], input: &Path) -> Output {
    let input = std::fs::File::open(input).expect("the input");
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = Command::new(binary("muster"));
    command.args(["--url", url]).args(words).stdin(input);
    command.output().expect("the command runs")
}

/// What it prints; it must succeed.
///
/// # Panics
/// If it does not.
#[must_use]
#[track_caller]
pub fn text(coordinator: &Coordinator, words: &[&str]) -> String {
    let output = output(coordinator, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What it prints for programs; it must succeed.
///
/// # Panics
/// If it does not.
#[must_use]
#[track_caller]
pub fn json(coordinator: &Coordinator, words: &[&str]) -> Value {
    let words: Vec<&str> = ["--output", "json"].iter().chain(words).copied().collect();
    serde_json::from_str(&text(coordinator, &words)).expect("JSON")
}
