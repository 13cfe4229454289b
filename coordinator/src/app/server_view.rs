//! A server as CNAPI shows it, without what other services know of it: capacity, and when it was
//! heard.

use muster_shared::api::boot::BootModules;
use muster_shared::api::server::{Ratios, Server};
use muster_shared::lenient::js_parse_int;
use serde_json::{Number, Value};

use super::fields::{Extras, provisionable, shown_status};
use super::fleet::Entry;
use crate::alloc::{self, num};

/// The view of a registered server.
pub(super) fn server_view(entry: &Entry, extras: Extras) -> Option<Server> {
    let held = entry.record.as_ref()?;
    let mut record = (*held.value).clone();
    record.unknown.clear();
    if !extras.agents {
        record.agents = None;
    }
    // Modules in a blob are only shown with the server alone.
    record.boot.boot_modules.take_if(|modules| matches!(modules, BootModules::Blob { .. }));
    let sysinfo = (extras.sysinfo || extras.memory).then(|| entry.sysinfo());
    let provisionable = extras.memory.then(|| {
        let mib = sysinfo.as_ref().and_then(|s| s.get("MiB of Memory").and_then(js_parse_int));
        let total = entry.figures.exact("memory_total_bytes");
        provisionable(&held.value, mib, total, entry.vms_mib())
    });
    Some(Server {
        status: shown_status(entry.stored_status(), &record),
        record,
        last_heartbeat: None,
        memory: if extras.memory { entry.figures.memory() } else { Default::default() },
        disk: if extras.disk { entry.figures.disk() } else { Default::default() },
        memory_provisionable_bytes: provisionable.flatten(),
        overprovision_ratios: None,
        unreserved_cpu: None,
        unreserved_ram: None,
        unreserved_disk: None,
        score: None,
        vms: extras.vms.then(|| entry.cnapi_vms()),
        sysinfo: sysinfo.filter(|_| extras.sysinfo),
        muster: extras.muster.then(|| entry.remarks.clone()).filter(|remarks| !remarks.is_null()),
    })
}

/// The ratios of a server in CNAPI's form.
pub(super) fn ratios_shown(ratios: &alloc::Ratios) -> Ratios {
    Ratios {
        cpu: ratios.cpu.and_then(number),
        ram: ratios.ram.and_then(number),
        disk: ratios.disk.and_then(number),
    }
}

/// A number as JavaScript writes it; none for what is infinite.
pub(super) fn number(value: f64) -> Option<Number> {
    match num::json(value) {
        Value::Number(number) => Some(number),
        _ => None,
    }
}
