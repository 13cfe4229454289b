//! Which NIC tags each interface of a server is to carry. The pure part knows no server.

use futures_util::future::BoxFuture;
use muster_shared::api::Object;
use muster_shared::api::job::{NicAction, NicTags};
use muster_shared::api::server::{Interface, Sysinfo};
use serde_json::{Value, json};

use super::kind::{StepContext, StepFailure};
use crate::app::error::AppError;

/// Checks what a client sends as `nics` and keeps what matters: entries without `mac` or
/// `nic_tags_provided` are dropped, and so are other members.
///
/// # Errors
/// [`AppError::Invalid`].
pub(crate) fn checked(nics: &[Value]) -> Result<Vec<NicTags>, AppError> {
    parse(nics).map_err(|problem| AppError::invalid("nics", problem))
}

fn parse(nics: &[Value]) -> Result<Vec<NicTags>, &'static str> {
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
        parsed.push(NicTags { mac, nic_tags_provided: tags });
    }
    Ok(parsed)
}

/// What the interfaces carry now.
fn current(sysinfo: &Sysinfo) -> Vec<NicTags> {
    let nic = |interface: Interface| {
        let mac = interface.mac?.to_ascii_lowercase();
        Some(NicTags { mac, nic_tags_provided: interface.tags.unwrap_or_default() })
    };
    sysinfo.interfaces().filter_map(nic).collect()
}

/// The full list that comes out; interfaces that the server does not have are left out, except
/// that a replacement is taken as given.
fn apply(action: NicAction, mut now: Vec<NicTags>, given: Vec<NicTags>) -> Vec<NicTags> {
    if action == NicAction::Replace {
        return given;
    }
    for change in given {
        let Some(nic) = now.iter_mut().find(|nic| nic.mac == change.mac) else { continue };
        if action == NicAction::Delete {
            nic.nic_tags_provided.retain(|tag| !change.nic_tags_provided.contains(tag));
            continue;
        }
        for tag in change.nic_tags_provided {
            if !nic.nic_tags_provided.contains(&tag) {
                nic.nic_tags_provided.push(tag);
            }
        }
    }
    now
}

/// The step that has the agent do it.
pub(super) fn update(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let given = ctx.job.params.nics.clone().unwrap_or_default();
        let action = ctx.job.params.nic_action.unwrap_or(NicAction::Update);
        let sysinfo = ctx.jobs.fleet.sysinfo_of(ctx.server());
        let nics = apply(action, current(&sysinfo), given);
        let params = Object::from_iter([("nics", json!(nics))]);
        ctx.task("server_update_nics", params).await.map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(mac: &str, tags: &[&str]) -> NicTags {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        NicTags { mac: mac.to_owned(), nic_tags_provided: tags }
    }

    #[track_caller]
    fn check(action: NicAction, given: Vec<NicTags>, expected: &[NicTags]) {
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
        assert_eq!(kept.unwrap(), [nic("aa:bb", &["t"])]);
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
        let nics = current(&serde_json::from_value(sysinfo).unwrap());
        assert_eq!(nics, [nic("aa", &["admin"]), nic("bb", &[])]);
    }
}
