//! A VM's record as its guest is told it. Pure.

use serde_json::Value;

use crate::vm_record::VmRecord;
use crate::vm_record::routes::Route;

/// Members of a NIC that its host decides about on a user-mode network.
const OF_NETWORK: &[&str] = &["gateway", "gateways", "ip", "ips", "mtu", "netmask"];

/// The record without what is not so. The host hands out the addresses of user-mode networks, which all
/// those are whose NIC has no tap: a guest that takes another one reaches nothing, and no router that
/// its record names is there.
#[must_use]
pub fn told(mut record: VmRecord, has_tap: impl Fn(usize) -> bool) -> VmRecord {
    let nics = record.list("nics").to_vec();
    if let Some(Value::Object(routes)) = record.properties.get_mut("routes") {
        routes.retain(|to, gateway| {
            let route = gateway.as_str().and_then(|gateway| Route::parse(to, gateway));
            route.and_then(|route| route.nic(&nics)).is_some_and(&has_tap)
        });
    }
    let nics = record.properties.get_mut("nics").and_then(Value::as_array_mut);
    let nics = nics.into_iter().flatten().enumerate().filter(|(index, _)| !has_tap(*index));
    for nic in nics.filter_map(|(_, nic)| nic.as_object_mut()) {
        nic.retain(|name, _| !OF_NETWORK.contains(&name.as_str()));
    }
    record
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vms::sim::record;

    #[test]
    fn nothing_is_told_that_a_user_mode_network_does_not_have() {
        let Value::Object(properties) = json!({
            "nics": [
                { "mac": "a", "ips": ["10.0.0.2/24"], "gateways": ["10.0.0.1"], "mtu": 1400 },
                { "mac": "b", "ips": ["10.1.0.2/24"], "primary": true },
            ],
            "routes": {
                "10.9.0.0/16": "10.0.0.1", "10.8.0.0/16": "10.1.0.1", "10.7.0.0/16": "nics[0]",
                "10.6.0.0/16": "192.0.2.1",
            },
        }) else {
            panic!("an object")
        };
        let vm = VmRecord { properties, ..record(1) };
        let second = told(vm.clone(), |index| index == 1);
        assert_eq!(second.list("nics")[0], json!({ "mac": "a" }));
        assert_eq!(second.list("nics")[1], vm.list("nics")[1]);
        let routes = json!({ "10.8.0.0/16": "10.1.0.1", "10.6.0.0/16": "192.0.2.1" });
        assert_eq!(second.properties["routes"], routes);
        assert_eq!(told(vm.clone(), |_| true), vm);
        assert_eq!(told(vm, |_| false).properties["routes"], json!({}));
    }
}
