//! `hard-filter-hvm`: servers that can run the hypervisor the VM needs.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::num::{json as number, text};
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;
use crate::vm::{Brand, Vm};

pub(super) static HVM: Algorithm = Algorithm {
    name: "hard-filter-hvm",
    title: "Servers which are capable of requested virtualization",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let brand = Brand::of(&refused.request.vm.brand);
    let clash = refused.without(|vm| vm.brand.is_hvm() && vm.brand != brand);
    let support = refused.set_sysinfo("Bhyve Capable", json!(true), "support for bhyve");
    clash.into_iter().chain([support]).collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let parsed = &run.snapshot.server(slot).parsed;
    vec![
        ("vcpus", json!(run.request.vm.vcpus)),
        ("max_vcpus", number(parsed.bhyve_max_vcpus)),
        ("bhyve_capable", json!(run.snapshot.has(slot, flag::BHYVE_CAPABLE))),
        ("hvm_api", json!(run.snapshot.has(slot, flag::HVM_API))),
    ]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let request = run.request;
    let brand = Brand::of(&request.vm.brand);
    if !brand.is_hvm() {
        return Reasons::None;
    }
    if brand == Brand::Kvm
        && (run.bits().agree(flag::HVM_API, true) || run.flags_decide(flag::BHYVE))
    {
        return Reasons::None;
    }
    run.filter(|run, slot| match fault(run, slot, brand) {
        None => Verdict::Keep,
        Some(text) => Verdict::Because(Reason::Owned(text.into())),
    })
}

fn fault(run: &Run<'_>, slot: u32, brand: Brand) -> Option<String> {
    let request = &run.request.vm;
    if brand == Brand::Bhyve {
        if !run.snapshot.has(slot, flag::BHYVE_CAPABLE) {
            return Some("Server does not support \"bhyve\" VMs".to_owned());
        }
        let parsed = &run.snapshot.server(slot).parsed;
        let vcpus = request.vcpus.unwrap_or(-1.0);
        let max = parsed.bhyve_max_vcpus;
        if vcpus < 1.0 || vcpus > max {
            let uuid = request.uuid.as_deref().unwrap_or(&request.vm_uuid);
            let (vcpus, max) = (text(vcpus), text(max));
            return Some(format!(
                "bhyve VM {uuid} is requesting {vcpus} vcpus whereas server supports 1 - {max} \
                 vcpus"
            ));
        }
    }
    if run.snapshot.has(slot, flag::HVM_API) {
        return None;
    }
    let bit = if brand == Brand::Kvm { flag::BHYVE } else { flag::KVM };
    let clashes = |vm: &Vm| vm.brand.is_hvm() && vm.brand != brand;
    if !run.any_vm(slot, bit, clashes) {
        return None;
    }
    let vm = run.vms(slot).find(|vm| clashes(vm))?;
    let (has, wants) = (vm.brand.name(), brand.name());
    Some(format!(
        "VM {} has brand {has} which is incompatible with new VMs using brand {wants}",
        vm.uuid
    ))
}
