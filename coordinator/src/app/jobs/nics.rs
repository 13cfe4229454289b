//! Which NIC tags each interface of a server is to carry. The pure part knows no server.

use std::str::FromStr;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::kind::{StepContext, StepFailure};
use crate::app::error::AppError;

/// What happens with the tags that interfaces carry now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicAction {
    /// The given ones are added.
    Update,
    /// The given list is the whole truth.
    Replace,
    /// The given ones are removed.
    Delete,
}

impl NicAction {
    /// As clients spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }
}

impl FromStr for NicAction {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [Self::Update, Self::Replace, Self::Delete];
        all.into_iter().find(|action| action.as_str() == text).ok_or(())
    }
}

/// An interface and its tags.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Nic {
    mac: String,
    tags: Vec<String>,
}

/// Checks what a client sends as `nics` and keeps what matters: entries without `mac` or
/// `nic_tags_provided` are dropped, and so are other members.
///
/// # Errors
/// [`AppError::Invalid`].
pub(super) fn checked(nics: &[Value]) -> Result<Value, AppError> {
    Ok(listed(&parse(nics).map_err(|problem| AppError::invalid("nics", problem))?))
}

fn parse(nics: &[Value]) -> Result<Vec<Nic>, &'static str> {
    let mut parsed = Vec::new();
    for nic in nics {
        let nic = nic.as_object().ok_or("nics must be objects")?;
        let (Some(mac), Some(tags)) = (nic.get("mac"), nic.get("nic_tags_provided")) else {
            continue;
        };
        let mac = mac.as_str().ok_or("mac must be a string")?.to_ascii_lowercase();
        let tags = tags.as_array().ok_or("nic_tags_provided must be an array")?;
        let tags = tags.iter().map(|tag| tag.as_str().map(str::to_owned));
        let tags = tags.collect::<Option<_>>().ok_or("nic_tags_provided must hold strings")?;
        parsed.push(Nic { mac, tags });
    }
    Ok(parsed)
}

fn listed(nics: &[Nic]) -> Value {
    let list = nics.iter().map(|nic| json!({ "mac": nic.mac, "nic_tags_provided": nic.tags }));
    Value::Array(list.collect())
}

/// What the interfaces carry now, by the server's sysinfo.
fn current(sysinfo: &Map<String, Value>) -> Vec<Nic> {
    let interfaces = sysinfo.get("Network Interfaces").and_then(Value::as_object);
    let nic = |interface: &Value| {
        let mac = interface.get("MAC Address")?.as_str()?.to_ascii_lowercase();
        let tags = interface.get("NIC Names").and_then(Value::as_array);
        let tags = tags.into_iter().flatten().filter_map(|tag| tag.as_str().map(str::to_owned));
        Some(Nic { mac, tags: tags.collect() })
    };
    interfaces.into_iter().flatten().filter_map(|(_, interface)| nic(interface)).collect()
}

/// The full list that comes out; interfaces that the server does not have are left out, except
/// that a replacement is taken as given.
fn apply(action: NicAction, mut now: Vec<Nic>, given: Vec<Nic>) -> Vec<Nic> {
    if action == NicAction::Replace {
        return given;
    }
    for change in given {
        let Some(nic) = now.iter_mut().find(|nic| nic.mac == change.mac) else { continue };
        if action == NicAction::Delete {
            nic.tags.retain(|tag| !change.tags.contains(tag));
            continue;
        }
        for tag in change.tags {
            if !nic.tags.contains(&tag) {
                nic.tags.push(tag);
            }
        }
    }
    now
}

/// The step that has the agent do it.
pub(super) fn update(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let given = ctx.job.params.get("nics").and_then(Value::as_array).cloned();
        let given = parse(&given.unwrap_or_default()).map_err(StepFailure::fatal)?;
        let action = ctx.job.params.get("nic_action").and_then(Value::as_str);
        let action = action.and_then(|text| text.parse().ok()).unwrap_or(NicAction::Update);
        let sysinfo = ctx.jobs.fleet.with(ctx.server(), |entry| entry.sysinfo());
        let nics = apply(action, current(&sysinfo.unwrap_or_default()), given);
        let params = Map::from_iter([("nics".to_owned(), listed(&nics))]);
        ctx.task("server_update_nics", params).await.map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(mac: &str, tags: &[&str]) -> Nic {
        Nic { mac: mac.to_owned(), tags: tags.iter().map(|tag| (*tag).to_owned()).collect() }
    }

    #[track_caller]
    fn check(action: NicAction, given: Vec<Nic>, expected: &[Nic]) {
        let now = vec![nic("a", &["admin", "external"]), nic("b", &[])];
        assert_eq!(apply(action, now, given), expected);
    }

    #[test]
    fn actions_are_sets_per_interface() {
        check(
            NicAction::Update,
            vec![nic("a", &["internal", "admin"]), nic("x", &["t"])],
            &[nic("a", &["admin", "external", "internal"]), nic("b", &[])],
        );
        check(
            NicAction::Delete,
            vec![nic("a", &["admin", "none"]), nic("b", &["admin"])],
            &[nic("a", &["external"]), nic("b", &[])],
        );
        check(NicAction::Replace, vec![nic("x", &["t"])], &[nic("x", &["t"])]);
    }

    #[test]
    fn what_a_client_sends_is_checked() {
        let list = |value: Value| checked(value.as_array().unwrap());
        let kept = list(json!([
            { "mac": "AA:BB", "nic_tags_provided": ["t"], "ip": "10.0.0.1" },
            { "mac": "cc" }, { "nic_tags_provided": [] },
        ]));
        assert_eq!(kept.unwrap(), json!([{ "mac": "aa:bb", "nic_tags_provided": ["t"] }]));
        for bad in [
            json!(["x"]),
            json!([{ "mac": 1, "nic_tags_provided": [] }]),
            json!([{ "mac": "a", "nic_tags_provided": "t" }]),
            json!([{ "mac": "a", "nic_tags_provided": [1] }]),
        ] {
            assert!(matches!(list(bad.clone()), Err(AppError::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn current_tags_come_from_sysinfo() {
        let sysinfo = json!({ "Network Interfaces": {
            "eth0": { "MAC Address": "AA", "NIC Names": ["admin"] },
            "eth1": { "MAC Address": "bb" }, "lo": {},
        }});
        let nics = current(sysinfo.as_object().unwrap());
        assert_eq!(nics, [nic("aa", &["admin"]), nic("bb", &[])]);
    }
}
