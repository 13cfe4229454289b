//! `muster-agent sysinfo`: the document of the agent that runs here, for scripts on the node.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value};

/// Longest wait for a new document; collecting one is bounded as well.
const LIMIT: Duration = Duration::from_secs(30);

/// The document as text: JSON, or `KEY='value'` lines that a shell can read. `force`: collected
/// anew.
///
/// # Errors
/// No agent has published one in this run folder; none runs, or it refuses (`force`).
pub fn run(run_folder: &Path, force: bool, parsable: bool) -> anyhow::Result<String> {
    let text =
        if force { refresh(&run_folder.join("agent.sock"))? } else { published(run_folder)? };
    let document: Map<String, Value> =
        serde_json::from_str(&text).context("the agent's document is not a JSON object")?;
    if parsable {
        let mut lines = String::new();
        flatten("", &document, &mut lines);
        return Ok(lines);
    }
    let mut text = serde_json::to_string_pretty(&document).context("write JSON")?;
    text.push('\n');
    Ok(text)
}

fn published(run_folder: &Path) -> anyhow::Result<String> {
    let path = run_folder.join("sysinfo.json");
    std::fs::read_to_string(&path).with_context(|| {
        format!("read {} (has an agent with this --run-dir or --data-dir run?)", path.display())
    })
}

fn refresh(socket: &Path) -> anyhow::Result<String> {
    let talk = || {
        let mut agent = UnixStream::connect(socket)?;
        agent.set_read_timeout(Some(LIMIT))?;
        let head = "POST /sysinfo/refresh HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\
                    content-length: 0\r\n\r\n";
        agent.write_all(head.as_bytes())?;
        let mut answer = String::new();
        agent.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = talk().with_context(|| format!("ask the agent at {}", socket.display()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "the agent answered {status}: {body}");
    Ok(body.to_owned())
}

/// Inner objects' keys follow their own key after a `_`; lists are JSON.
fn flatten(prefix: &str, object: &Map<String, Value>, lines: &mut String) {
    for (key, value) in object {
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let key: String = prefix.chars().chain(key.chars().map(word)).collect();
        let text = match value {
            Value::Object(inner) => {
                flatten(&format!("{key}_"), inner, lines);
                continue;
            }
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        lines.push_str(&format!("{key}='{}'\n", text.replace('\'', r"'\''")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shell_can_read_the_lines() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), false, false).unwrap_err();
        run(folder.path(), true, false).unwrap_err();
        let document = json!({
            "MiB of Memory": "2048", "Name": "it's", "Setup": null, "Disks": { "sd a": { "GB": 3 } },
            "Agents": ["x"],
        });
        std::fs::write(folder.path().join("sysinfo.json"), document.to_string()).unwrap();
        let lines = run(folder.path(), false, true).unwrap();
        let mut lines: Vec<&str> = lines.lines().collect();
        lines.sort_unstable();
        let wanted = [
            r#"Agents='["x"]'"#,
            "Disks_sd_a_GB='3'",
            "MiB_of_Memory='2048'",
            r"Name='it'\''s'",
            "Setup=''",
        ];
        assert_eq!(lines, wanted);
        let json: Value = serde_json::from_str(&run(folder.path(), false, false).unwrap()).unwrap();
        assert_eq!(json, document);
    }
}
