//! `machine_boot`: starts a stopped VM and lets it start with the host from now on.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::vm_record::boot::{self, BootOrder};
use crate::vms::VmRecord;
use crate::vms::reconcile::{self, BY_ITSELF};

const OPERATION: &str = "vmadm.start";

/// Parameters that name files of the host in the reference. A guest is given none of those.
const FILES: [&str; 3] = ["cdrom", "disk", "iso"];

/// The kind; parameters `uuid`, `idempotent`, `update`, `once`, `order`; `by_itself` of the agent's
/// own, see [`reconcile::is_to_run`].
#[derive(Debug)]
pub struct MachineBoot;

impl Handler for MachineBoot {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_boot", machine::MACHINE_TASKS, Duration::from_secs(300))
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("update".to_owned(), json!({ "set_internal_metadata": { "a": "b" } }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        refuse_files(params)?;
        let (order, once) = match (order(params)?, once(params)?) {
            // All of it is for this start alone: nothing has to be noted.
            (Some(order), Some(once)) => (Some(with_once(&order, once)?), None),
            both => both,
        };
        let job = Boot {
            vm,
            idempotent: machine::flag(params, "idempotent")?,
            update: machine::metadata_update(params)?,
            once,
            order,
            by_itself: machine::flag(params, BY_ITSELF)?,
        };
        let (updates, once) = (job.update.is_some(), job.once.is_some());
        let plan = Plan::of(vec![Lock::Vm(vm)], job, STEPS);
        Ok(plan.only_if(updates, "update").only_if(once, "once"))
    }
}

fn refuse_files(params: &Params) -> Result<(), TaskFailure> {
    match FILES.into_iter().find(|name| params.get(*name).is_some_and(|value| !value.is_null())) {
        None => Ok(()),
        Some(name) => {
            let problem = "is a file of the host, and guests are given none: put an image into a \
                           disk with `media: cdrom`, and start with `once: d`";
            Err(TaskFailure::bad_param(name, problem))
        }
    }
}

/// The order of devices for this start alone, as the property `boot` has it: `cdn` or `cdn,once=d`
/// among the parameters.
fn order(params: &Params) -> Result<Option<String>, TaskFailure> {
    let refuse = || {
        let problem = "must be letters of c (disk), d (CD), n (network), each at most once, and \
                       may end in `,once=` and one of them";
        TaskFailure::bad_param("order", problem)
    };
    let text = match params.get("order") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => return Err(refuse()),
    };
    let order = format!("order={text}");
    BootOrder::parse(&order).map(|_| ()).ok_or_else(refuse)?;
    Ok(Some(order))
}

fn with_once(order: &str, once: &str) -> Result<String, TaskFailure> {
    if order.contains("once=") {
        let problem = "is told twice, here and in `order`";
        return Err(TaskFailure::bad_param("once", problem));
    }
    Ok(format!("{order},once={once}"))
}

/// The kind of device that this boot alone is from.
fn once(params: &Params) -> Result<Option<&'static str>, TaskFailure> {
    match params.get("once") {
        None | Some(Value::Null) => Ok(None),
        Some(once) => {
            let known = ["c", "d", "n"].into_iter().find(|letter| once == letter);
            let problem = "must be c (disk), d (CD) or n (network)";
            known.map(Some).ok_or_else(|| TaskFailure::bad_param("once", problem))
        }
    }
}

// The check is a step of its own: when the start is repeated after a crash, the VM may run because
// of this very task.
const STEPS: &[Row<Boot>] =
    steps![("check", 10, check), ("update", 20, update), ("once", 30, once), ("start", 100, start)];

#[derive(Debug)]
struct Boot {
    vm: VmUuid,
    idempotent: bool,
    update: Option<Map<String, Value>>,
    once: Option<&'static str>,
    /// Goes before the property `boot`, in this start alone.
    order: Option<String>,
    /// Nobody asked for it.
    by_itself: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// Somebody has stopped the VM since.
    is_off: bool,
}

impl Boot {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        self.check_devices(ctx, &record)?;
        let is_to_run = reconcile::is_to_run(&record, ctx.drivers.vms.boot_id());
        ctx.note(&Notes { is_off: self.by_itself && !is_to_run })?;
        if machine::runs(ctx, self.vm).await? && !self.idempotent {
            let text = format!("{OPERATION} error: VM {} is already 'running'", self.vm);
            return Err(refuse(Code::AlreadyRunning, text));
        }
        Ok(())
    }

    /// The VM has what it is to start from. A guest would wait for it, or start from something else.
    fn check_devices(&self, ctx: &TaskContext, record: &VmRecord) -> Result<(), TaskFailure> {
        let refuse = |field: &str, letter: char| {
            let kind = boot::kind(letter).unwrap_or("device");
            TaskFailure::bad_param(field, format!("{letter}: the VM has no {kind}"))
        };
        let once = ctx.params.get("once").and_then(Value::as_str).unwrap_or_default();
        let order = ctx.params.get("order").and_then(Value::as_str).unwrap_or_default();
        let order = format!("order={order}");
        let order = BootOrder::parse(&order);
        let wanted = once.chars().map(|letter| ("once", letter));
        let letters = order.iter().flat_map(BootOrder::letters);
        let mut wanted = wanted.chain(letters.map(|letter| ("order", letter)));
        match wanted.find(|(_, letter)| !record.has_device(*letter)) {
            Some((field, letter)) => Err(refuse(field, letter)),
            None => Ok(()),
        }
    }

    async fn update(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match &self.update {
            Some(set) => machine::apply_metadata(ctx, self.vm, set).await,
            None => Ok(()),
        }
    }

    /// A guest that runs boots later, if at all; its next start takes it away.
    async fn once(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let once = |record: &mut VmRecord| {
            if let Some(letter) = self.once {
                machine::boot_once(record, letter);
            }
        };
        ctx.drivers.vms.update(self.vm, once).await?;
        Ok(())
    }

    async fn start(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.notes::<Notes>()?.is_off {
            let how = machine::Start { boot: self.order.as_deref(), made: None };
            machine::start_with(ctx, OPERATION, self.vm, how).await?;
        }
        if !self.by_itself {
            let autoboot = |record: &mut VmRecord| {
                record.properties.insert("autoboot".to_owned(), json!(true));
            };
            ctx.drivers.vms.update(self.vm, autoboot).await?;
        }
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::machine_tests::{Host, IMAGE, create_params, run};
    use super::*;
    use crate::node::Drivers;
    use crate::vms::restart::Power;

    /// A VM that is off, with these disks beside its NIC.
    async fn vm_with(host: &Host, disks: Value) -> (Arc<Drivers>, VmUuid) {
        let drivers = host.agent("boot").await;
        let made = json!({ "disks": disks, "boot": "order=cn", "autoboot": false });
        let ctx = host.context(&drivers, &create_params(made));
        run(&ctx, "machine_create", false).await.unwrap();
        (drivers, machine::vm(&ctx.params).unwrap())
    }

    fn disk_and_cd() -> Value {
        json!([{ "size": 8 }, { "media": "cdrom", "image_uuid": IMAGE }])
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_for_one_boot_is_forgotten_after_it() {
        let host = Host::new();
        let (drivers, vm) = vm_with(&host, disk_and_cd()).await;
        let mut params = machine::example();
        params.insert("once".to_owned(), json!("d"));
        run(&host.context(&drivers, &params), "machine_boot", true).await.unwrap();
        assert_eq!(drivers.vms.get(vm).unwrap().text("boot"), Some("order=cn"));
        assert!(host.guests.running().contains_key(&vm));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_nobody_asked_for_leaves_alone_what_its_owner_wants() {
        let host = Host::new();
        let drivers = host.agent("boot").await;
        let mut params = machine::example();
        let vm = machine::vm(&params).unwrap();
        let stopped = VmRecord {
            uuid: vm,
            provisioning: false,
            boot_id: Some("boot".to_owned()),
            power: Power::Off,
            ..crate::vms::sim::record(1)
        };
        drivers.vms.create(stopped).await.unwrap();
        params.insert(BY_ITSELF.to_owned(), json!(true));
        run(&host.context(&drivers, &params), "machine_boot", true).await.unwrap();
        assert!(host.guests.running().is_empty());
        drivers.vms.update(vm, |record| record.power = Power::On).await.unwrap();
        run(&host.context(&drivers, &params), "machine_boot", false).await.unwrap();
        assert!(host.guests.running().contains_key(&vm));
        assert!(!drivers.vms.get(vm).unwrap().flag("autoboot"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_for_one_start_leaves_no_trace() {
        let host = Host::new();
        let (drivers, vm) = vm_with(&host, disk_and_cd()).await;
        let mut params = machine::example();
        for (more, booted) in [
            (json!({ "order": "nd" }), "order=nd"),
            (json!({ "order": "c", "once": "n" }), "order=c,once=n"),
            (json!({ "order": "dc,once=d", "once": null, "cdrom": null }), "order=dc,once=d"),
            (json!({}), "order=cn"),
        ] {
            let Value::Object(more) = more else { panic!("an object is needed") };
            params.retain(|name, _| name == "uuid");
            params.extend(more);
            run(&host.context(&drivers, &params), "machine_boot", true).await.unwrap();
            assert_eq!(host.guests.booted_from(vm).as_deref(), Some(booted), "{params:?}");
            assert_eq!(drivers.vms.get(vm).unwrap().text("boot"), Some("order=cn"));
            host.guests.exit(vm, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_is_not_started_from_a_device_that_it_lacks() {
        let host = Host::new();
        let (drivers, vm) = vm_with(&host, json!([{ "size": 8 }])).await;
        for (wanted, named) in [
            (json!({ "once": "d" }), ("once", "d: the VM has no CD")),
            (json!({ "order": "cd" }), ("order", "d: the VM has no CD")),
            (json!({ "order": "c,once=d" }), ("order", "d: the VM has no CD")),
            (json!({ "order": "cn", "once": "d" }), ("once", "d: the VM has no CD")),
        ] {
            let Value::Object(mut params) = wanted else { panic!("an object is needed") };
            params.extend(machine::example());
            let refused = run(&host.context(&drivers, &params), "machine_boot", false).await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.code, "InvalidParameters");
            assert!(refused.message.ends_with(named.1), "{refused}");
            assert_eq!(refused.details.unwrap()["field"], named.0);
        }
        assert_eq!(host.guests.starts(vm), 0);
        let bare = VmRecord { uuid: vm, ..crate::vms::sim::record(1) };
        assert!(!"cdn".chars().any(|letter| bare.has_device(letter)));
        let mut params = machine::example();
        params.insert("order".to_owned(), json!("nc"));
        run(&host.context(&drivers, &params), "machine_boot", false).await.unwrap();
        assert_eq!(host.guests.starts(vm), 1);
    }

    #[test]
    fn what_a_start_can_not_do_is_refused_by_name() {
        for (name, value) in [
            ("once", json!("x")),
            ("once", json!(1)),
            ("order", json!("")),
            ("order", json!("cdx")),
            ("order", json!("cdc")),
            ("order", json!("cd,once=cd")),
            ("order", json!(["c"])),
            ("cdrom", json!("/x.iso,ide")),
            ("disk", json!("/x,virtio")),
            ("iso", json!("/x.iso")),
        ] {
            let mut params = machine::example();
            params.insert(name.to_owned(), value);
            let refused = MachineBoot.plan(&params).unwrap_err();
            assert_eq!(
                (refused.code.as_str(), &refused.details.unwrap()["field"]),
                ("InvalidParameters", &json!(name))
            );
        }
        let mut params = machine::example();
        params.extend([("order".to_owned(), json!("cd,once=d")), ("once".to_owned(), json!("n"))]);
        let refused = MachineBoot.plan(&params).unwrap_err();
        assert_eq!(refused.details.unwrap()["field"], "once");
    }
}
