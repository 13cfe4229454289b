//! The recorded cases of the reference, decided in this process.

mod check;

use muster_alloc::offline::Offline;

#[test]
fn all_cases_are_decided_as_recorded() {
    let mut offline = Offline::default();
    let mut checker = check::Checker::default();
    for (line, value) in check::EXAMPLES.lines().zip(check::lines()) {
        let case = offline.line(line).expect("the line is usable");
        checker.line(&value, || {
            let decision = case.expect("it is a case").decide();
            serde_json::to_value(decision.line(None)).expect("it is JSON")
        });
    }
    checker.finish();
}
