//! Scripted processes, for tests of drivers.

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Command, Detached, Exec, ExecError, Exit, Output, Piped, ProcessId, RunningChild, Spawned,
    UnitProperty,
};

/// Answers commands from a list of rules and remembers what was run.
#[derive(Debug, Default)]
pub struct FakeExec {
    rules: Mutex<Vec<Rule>>,
    calls: Mutex<Vec<Vec<String>>>,
}

#[derive(Debug)]
struct Rule {
    start: Vec<String>,
    output: Output,
}

impl FakeExec {
    /// Commands whose arguments start with `start` succeed and print `stdout`. Later rules win.
    pub fn prints(&self, start: &[&str], stdout: &str) {
        let exit = Exit { code: Some(0), signal: None };
        self.answers(start, Output { exit, stdout: stdout.into(), stderr: Vec::new() });
    }

    /// Commands whose arguments start with `start` exit with `code` and print `stderr`.
    pub fn fails(&self, start: &[&str], code: i32, stderr: &str) {
        let exit = Exit { code: Some(code), signal: None };
        self.answers(start, Output { exit, stdout: Vec::new(), stderr: stderr.into() });
    }

    /// Commands whose arguments start with `start` end like this.
    pub fn answers(&self, start: &[&str], output: Output) {
        let start = start.iter().map(|&word| word.to_owned()).collect();
        self.rules.lock().push(Rule { start, output });
    }

    /// Everything that was run, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Vec<String>> {
        self.calls.lock().clone()
    }
}

#[async_trait]
impl Exec for FakeExec {
    async fn run(
        &self,
        command: &Command,
        _cancelled: &CancellationToken,
    ) -> Result<Output, ExecError> {
        self.calls.lock().push(command.argv.clone());
        let rules = self.rules.lock();
        let rule = rules.iter().rev().find(|rule| command.argv.starts_with(&rule.start));
        rule.map(|rule| rule.output.clone()).ok_or_else(|| ExecError::Start {
            program: command.argv.join(" "),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    async fn spawn_detached(&self, detached: &Detached) -> Result<Spawned, ExecError> {
        self.calls.lock().push(detached.argv.clone());
        let (_, exit) = watch::channel(None);
        Ok(Spawned { process: ProcessId { pid: u32::MAX, start_ticks: 0 }, exit })
    }

    async fn spawn_piped(&self, piped: &Piped) -> Result<RunningChild, ExecError> {
        self.calls.lock().push(piped.argv.clone());
        let program = piped.argv.join(" ");
        Err(ExecError::Start { program, source: std::io::ErrorKind::NotFound.into() })
    }

    async fn change_unit(&self, unit: &str, properties: &[UnitProperty]) -> Result<(), ExecError> {
        let words = ["change".to_owned(), unit.to_owned()].into_iter();
        let call = words.chain(properties.iter().map(ToString::to_string)).collect();
        self.calls.lock().push(call);
        Ok(())
    }

    fn supervisor(&self) -> &'static str {
        "direct"
    }
}
