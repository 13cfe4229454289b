//! Whether a node can give a VM what it asks for, however much of it is in use: what no node has is
//! the client's mistake, and the hypervisor would only say that it failed.

use serde_json::{Map, Value};

use super::TaskFailure;
use crate::drivers::compute::Abilities;

/// Checks the properties of a VM, or those that change.
///
/// # Errors
/// `InvalidParameters` that names the property.
pub(super) fn check(properties: &Map<String, Value>, node: &Abilities) -> Result<(), TaskFailure> {
    let number = |name: &str| properties.get(name).and_then(Value::as_u64);
    if let Some(vcpus) = number("vcpus")
        && node.hvm
        && vcpus > u64::from(node.max_vcpus)
    {
        let problem = format!("{vcpus} are more than {} of this node", node.max_vcpus);
        return Err(TaskFailure::bad_param("vcpus", problem));
    }
    if let (Some(ram), Some(memory)) = (number("ram"), node.memory_mib)
        && ram > memory
    {
        let problem = format!("{ram} MiB are more than the {memory} MiB of this node");
        return Err(TaskFailure::bad_param("ram", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::Code;
    use serde_json::json;

    use super::super::machine_tests::{Host, act, create_params, one_vm, run};
    use super::*;

    /// Nothing is made or changed then, and the client is told what to change.
    #[tokio::test(start_paused = true)]
    async fn creates_and_updates_ask_for_what_a_node_has() {
        const TOO_MUCH: u64 = 2 << 20;
        let published = json!({ "muster:hostfwd": "tcp:0.0.0.0:8080-:80" });
        let host = Host::new();
        let empty = host.content();
        let drivers = host.agent("boot-1").await;
        for (asked, name) in [
            (json!({ "ram": TOO_MUCH }), "ram"),
            (json!({ "vcpus": 65 }), "vcpus"),
            (json!({ "internal_metadata": published }), "security.publish_on"),
        ] {
            let ctx = host.context(&drivers, &create_params(asked));
            let refused = run(&ctx, "machine_create", false).await.unwrap_err();
            assert_eq!(refused.code, Code::InvalidParameters);
            assert!(refused.message.contains(name), "{}", refused.message);
        }
        assert_eq!(host.content(), empty);

        let host = Host::new();
        let drivers = one_vm(&host).await;
        let before = host.content();
        for (asked, name) in [
            (json!({ "ram": TOO_MUCH }), "ram"),
            (json!({ "set_internal_metadata": published }), "security.publish_on"),
        ] {
            let refused = act(&host, &drivers, "machine_update", asked).await.unwrap_err();
            assert_eq!(refused.code, Code::InvalidParameters);
            assert!(refused.message.contains(name), "{}", refused.message);
        }
        assert_eq!(host.content(), before);
        // What this node has, and what is not published elsewhere by this update, is nobody's concern.
        act(&host, &drivers, "machine_update", json!({ "ram": 512 })).await.unwrap();
    }

    #[test]
    fn what_no_vm_of_a_node_can_have_is_named() {
        let node =
            Abilities { hvm: true, max_vcpus: 8, memory_mib: Some(4096), ..Abilities::default() };
        let ask = |properties: Value| {
            let Value::Object(properties) = properties else { unreachable!() };
            check(&properties, &node)
        };
        ask(json!({ "ram": 4096, "vcpus": 8 })).unwrap();
        ask(json!({ "ram": null, "alias": "a" })).unwrap();
        for (properties, name) in
            [(json!({ "ram": 4097 }), "ram"), (json!({ "vcpus": 9 }), "vcpus")]
        {
            let refused = ask(properties).unwrap_err();
            assert_eq!(refused.code, Code::InvalidParameters);
            assert!(refused.message.contains(name), "{}", refused.message);
        }
    }
}
