//! What `monitoring/` holds, against the metrics that the real daemons serve: rules that no
//! promtool accepts, and names that nobody serves, would be noticed on the day they are needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::repository;
use muster_tests::wait::wait_for;
use regex::Regex;
use serde_json::{Value, json};

/// Two daemons on two busy cores.
const SOON: Duration = Duration::from_secs(60);

fn monitoring() -> PathBuf {
    repository().join("monitoring")
}

/// promtool as `scripts/setup.sh` keeps it, or that of the machine.
#[track_caller]
fn promtool(args: &[&str], input: &str) -> (bool, String) {
    let kept = repository().join("target/tools/promtool");
    let program = if kept.exists() { kept } else { PathBuf::from("promtool") };
    #[expect(clippy::disallowed_methods, reason = "a test calls the real tool")]
    let mut command = Command::new(program);
    command.args(args).current_dir(monitoring());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool is there (scripts/setup.sh gets it)");
    let mut stdin = child.stdin.take().expect("it is piped");
    // It may refuse its arguments without reading.
    drop(std::io::Write::write_all(&mut stdin, input.as_bytes()));
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn rules_are_valid_and_fire_when_they_should() {
    for args in [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts-test.yml"],
    ] {
        let (good, text) = promtool(&args, "");
        assert!(good, "promtool {args:?}: {text}");
    }
}

/// Every alert is one of the tested ones, or is of the same form as one that is.
#[test]
fn alerts_say_what_to_do() {
    let rules = std::fs::read_to_string(monitoring().join("alerts.yml")).expect("it is there");
    let alerts = rules.matches("- alert: ").count();
    assert!(alerts >= 18, "{alerts}");
    for part in ["summary: ", "runbook: docs/troubleshooting.md#", "severity: "] {
        assert_eq!(rules.matches(part).count(), alerts, "each alert has its {part}");
    }
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md"));
    let page = page.expect("it is there");
    let anchors: BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect();
    for line in rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")) {
        let (_, wanted) = line.split_once('#').expect("a section");
        assert!(anchors.contains(wanted), "no section {wanted} in docs/troubleshooting.md");
    }
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-").replace([',', '.', '`', '\''], "")
}

/// Names of families, as their descriptions tell them; histograms by the names of their samples.
fn families(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("name and type");
        if kind == "histogram" {
            names.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        }
        names.insert(name.to_owned());
    }
    names
}

/// The metrics that an expression of PromQL names.
fn named(expression: &str) -> BTreeSet<String> {
    // What is in braces and brackets, and what groups, are labels and times.
    let labels = Regex::new(r#"\{[^}]*\}|\[[^\]]*\]|(by|without|on|group_left) ?\([^)]*\)"#);
    let bare = labels.expect("a pattern").replace_all(expression, " ").into_owned();
    let word = Regex::new(r"\b([a-z][a-z0-9_]*)\b( *\()?").expect("a pattern");
    let own = ["and", "or", "unless", "by", "on", "bool", "offset", "up"];
    let words = word.captures_iter(&bare).filter(|found| found.get(2).is_none());
    let words = words.map(|found| found[1].to_owned());
    words.filter(|word| !own.contains(&word.as_str())).collect()
}

fn expressions(dashboard: &Value, into: &mut Vec<String>) {
    match dashboard {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "expr" => into.push(text.clone()),
                    other => expressions(other, into),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, into)),
        _ => {}
    }
}

fn alert_expressions(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("it is there");
    let mut found: Vec<String> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(rest) = line.trim_start().strip_prefix("expr: ") else { continue };
        let mut expression = rest.trim_matches(['|', ' ']).to_owned();
        let indent = line.len() - line.trim_start().len();
        while let Some(more) = lines.next_if(|more| more.len() - more.trim_start().len() > indent) {
            expression = format!("{expression} {}", more.trim());
        }
        found.push(expression);
    }
    found
}

#[tokio::test]
async fn every_metric_that_is_watched_is_served() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let nop = format!("/servers/{}/nop", agent.server_uuid);
    let task = client.post(&nop, &json!({})).await.expect(200);
    client.complete_task(task["id"].as_str().expect("an id"), 60).await;
    // It counts what the store tells it.
    let ended = r#"task="nop",outcome="complete"} 1"#;
    let of_coordinator = wait_for("the task is counted", SOON, || async {
        let text = client.get("/metrics").await.text;
        if text.lines().any(|line| line.ends_with(ended)) { Ok(text) } else { Err(text) }
    })
    .await;
    let of_agent = agent.client().get("/metrics").await.text;

    // Triton's names, which break rules, are the only ones that promtool minds.
    for (who, text) in [("coordinator", &of_coordinator), ("agent", &of_agent)] {
        let (_, lint) = promtool(&["check", "metrics"], text);
        let reference = ["heartbeating_servers_count ", "http_requests_completed "];
        let ours: Vec<_> =
            lint.lines().filter(|line| !reference.iter().any(|it| line.starts_with(it))).collect();
        assert!(ours.is_empty(), "{who}: {ours:#?}");
    }
    for line in [r#"status="running"} 1"#, r#"asked_by="create",outcome="refused"} 0"#] {
        assert!(
            of_coordinator.lines().any(|have| have.ends_with(line)),
            "{line}: {of_coordinator}"
        );
    }
    for line in [
        "muster_agent_accelerator_info{accelerator=\"tcg\"} 1",
        "muster_agent_tasks_finished_total{task=\"nop\",outcome=\"complete\"} 1",
        "muster_agent_coordinators_connected 1",
    ] {
        assert!(of_agent.lines().any(|have| have == line), "{line}: {of_agent}");
    }

    let served: BTreeSet<String> = &families(&of_coordinator) | &families(&of_agent);
    let dashboard = std::fs::read_to_string(monitoring().join("dashboard.json"));
    let dashboard: Value = serde_json::from_str(&dashboard.expect("it is there")).expect("JSON");
    let mut watched = alert_expressions(&monitoring().join("alerts.yml"));
    assert_eq!(watched.len(), 22, "{watched:#?}");
    expressions(&dashboard, &mut watched);
    assert!(watched.len() > 50, "{}", watched.len());
    for expression in &watched {
        let names = named(expression);
        assert!(!names.is_empty() || expression.starts_with("up"), "no metric in {expression}");
        let unknown: Vec<_> = names.difference(&served).collect();
        assert!(unknown.is_empty(), "nobody serves {unknown:?}, which {expression} names");
    }
    // The test itself finds a wrong name.
    let wrong = named("sum by (task) (rate(muster_tasks_finsihed_total{outcome=\"failure\"}[5m]))");
    assert!(!wrong.is_subset(&served) && wrong.len() == 1, "{wrong:?}");
}

/// Prometheus is what reads an expression in the end.
#[test]
fn expressions_of_the_dashboard_are_promql() {
    let dashboard = std::fs::read_to_string(monitoring().join("dashboard.json"));
    let dashboard: Value = serde_json::from_str(&dashboard.expect("it is there")).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let rule =
        |(n, expr): (usize, &String)| json!({ "record": format!("panel:{n}"), "expr": expr });
    let rules: Vec<Value> = found.iter().enumerate().map(rule).collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let groups = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    // JSON is YAML.
    std::fs::write(file.path(), groups.to_string()).expect("written");
    let (good, text) = promtool(&["check", "rules", &file.path().display().to_string()], "");
    assert!(good, "{text}");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    ids.dedup();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}
