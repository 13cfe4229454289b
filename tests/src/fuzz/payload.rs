//! What clients say a VM shall be: the command line's and the coordinator's reading
//! (`shared::vm`), then the agent's (`vms::payload`).

use muster_agent::vms::payload;
use muster_shared::vm::{MAX_VM_BYTES, VmSpec, json_bytes};
use serde_json::{Map, Value};

/// Makes a VM of the input's members; then changes it by those of its member `update`, or by
/// the same once more.
pub fn run(data: &[u8]) {
    let Ok(Value::Object(members)) = serde_json::from_slice::<Value>(data) else { return };
    drop(VmSpec::read(members.clone()));
    let Ok(vm) = payload::create(&members) else { return };
    assert!(json_bytes(&vm) <= MAX_VM_BYTES, "{} bytes", json_bytes(&vm));
    let images = payload::images(&vm);
    assert!(images.is_sorted());
    let unchanged = change(&vm, &Map::new()).expect("what was accepted stays acceptable");
    assert_eq!(unchanged, vm, "a change that asks for nothing");
    let wanted = members.get("update").and_then(Value::as_object).unwrap_or(&members);
    if let Some(changed) = change(&vm, wanted) {
        let again = change(&changed, &Map::new()).expect("what was accepted stays acceptable");
        assert_eq!(again, changed, "a change that asks for nothing");
    }
}

fn change(vm: &Map<String, Value>, wanted: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut drawn = 0_u8;
    let fresh = || {
        drawn = drawn.wrapping_add(1);
        format!("02:00:00:00:00:{drawn:02x}")
    };
    payload::update(vm, wanted, fresh).ok()
}
