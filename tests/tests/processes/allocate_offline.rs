//! `muster allocate --offline`: the recorded cases of the reference through the real binary.

#[path = "../../../alloc/tests/check/mod.rs"]
mod check;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use muster_tests::binary;
use serde_json::{Value, json};

fn muster(args: &[&str], input: &str) -> Output {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = Command::new(binary("muster"));
    let child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    #[expect(clippy::disallowed_methods, reason = "a pipe is filled while another is read")]
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("the writer ends").expect("the input is read");
    output
}

fn answers(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn all_cases_are_decided_as_recorded() {
    let output = muster(&["allocate", "--offline", "--jsonl", "--time"], check::EXAMPLES);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut answers = answers(&output).into_iter();
    let mut checker = check::Checker::default();
    for line in check::lines() {
        checker.line(&line, || {
            let answer = answers.next().expect("an answer per case");
            assert!(answer["elapsed_us"].as_f64().is_some_and(|us| us >= 0.0));
            answer
        });
    }
    checker.finish();
    assert_eq!(answers.next(), None);
}

#[test]
fn one_document_has_one_answer() {
    let lines = check::lines();
    let find = |kind: &str, id: &Value| {
        lines.iter().find(|line| line["type"] == kind && line["id"] == *id).expect("it is there")
    };
    let case = find("case", &json!("a001"));
    let (dc, config) = (find("dc", &case["dc"]), find("config", &case["config"]));
    let document = json!({
        "servers": dc["servers"], "tickets": dc["tickets"], "config": config,
        "request": case["request"]["body"],
    });
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("document.json");
    std::fs::write(&path, document.to_string()).expect("the file is written");
    let output = muster(&["allocate", "--offline", &path.display().to_string()], "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(answers(&output)[0]["server"], case["expect"]["server"]);
}

#[test]
fn bad_lines_are_named_and_the_rest_is_answered() {
    let input = "{\"type\": \"config\", \"id\": \"c\", \"allocationDescription\": [\"nope\"]}\n\
        no json\n{\"type\": \"case\", \"id\": 1, \"config\": \"c\", \"dc\": \"d\"}\n";
    let output = muster(&["allocate", "--offline", "--jsonl", "-"], input);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("input:1: ") && errors.contains("Invalid command: nope"), "{errors}");
    assert!(errors.contains("input:2: "), "{errors}");
    let answers = answers(&output);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["error"]["code"], "InvalidCase");
}
