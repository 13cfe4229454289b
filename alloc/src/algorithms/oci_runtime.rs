//! `hard-filter-oci-runtime`: servers that can run the container that the VM is.

use muster_shared::vm::CONTAINER_BRANDS;
use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::{MUSTER, OCI_RUNTIME as MEMBER, flag};

pub(super) static OCI_RUNTIME: Algorithm = Algorithm {
    name: "hard-filter-oci-runtime",
    title: "Servers which can run containers",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !CONTAINER_BRANDS.contains(&run.request.vm.brand.as_str()) {
        return Reasons::skip("VM is not a container");
    }
    let text = "Server has no runtime for containers";
    run.filter_flag(flag::CONTAINERS, true, || Verdict::Because(Reason::Text(text)))
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("containers", json!(run.snapshot.has(slot, flag::CONTAINERS)))]
}

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let runtime = json!({ MEMBER: "runc" });
    vec![refused.set_sysinfo(MUSTER, runtime, "a runtime for containers")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::record_flags;

    #[test]
    fn who_runs_containers_is_read_from_what_the_agent_says() {
        let runs = |sysinfo: Value| {
            let record = json!({ "setup": true });
            let flags =
                record_flags(record.as_object().unwrap(), sysinfo.as_object().unwrap(), None);
            flags & flag::CONTAINERS != 0
        };
        let linux = |block: Value| json!({ "System Type": "Linux", "Muster": block });
        assert!(runs(linux(json!({ "oci_runtime": "runc" }))));
        for none in [json!({}), json!({ "oci_runtime": null }), json!("runc"), json!(null)] {
            assert!(!runs(linux(none)));
        }
        assert!(!runs(linux(json!({ "oci_runtime": "" }))));
        assert!(!runs(json!({ "System Type": "Linux" })));
        assert!(runs(json!({ "System Type": "SunOS" })), "it runs zones");
    }
}
