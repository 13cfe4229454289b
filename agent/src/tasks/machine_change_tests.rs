//! The task kinds that change an existing VM or the node, run step by step on a simulated host.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine_snapshot_tests::names;
use super::machine_tests::{Host, act, create_params, one_vm, params, run, run_with_crash, uuid};
use super::{HANDLERS, Handler as _, Params, TaskFailure};
use crate::drivers::faults::Fault;
use crate::drivers::host::refuse::NoScripts;
use crate::drivers::host::sim::{HostLog, SimHost};
use crate::node::Drivers;
use crate::node::bridges::Bridges;
use crate::report::sim::SIM_SERVICE;
use crate::vms::VmRecord;

const IMAGE: &str = "11111111-2222-4333-8444-555555555555";

pub(super) fn snapshot(name: &str) -> Value {
    json!({ "snapshot_name": name })
}

pub(super) async fn code(host: &Host, drivers: &Arc<Drivers>, kind: &str, extra: Value) -> Code {
    act(host, drivers, kind, extra).await.unwrap_err().code
}

#[tokio::test(start_paused = true)]
async fn an_update_takes_effect_now_or_is_named() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let ram = drivers.vms.get(uuid()).unwrap().properties["ram"].clone();
    let change = json!({ "alias": "two", "ram": 512, "set_tags": { "a": 1 } });
    let result = act(&host, &drivers, "machine_update", change.clone()).await.unwrap();
    assert_eq!((&result["vm"]["alias"], &result["vm"]["ram"]), (&json!("two"), &json!(512)));
    assert_eq!(result["vm"]["tags"], json!({ "a": 1 }));
    assert_eq!(result["pending_reboot"], json!(["ram"]));
    assert_eq!(result["vm"]["running_with"], json!({ "ram": ram }));
    assert_eq!(host.guests.starts(uuid()), 1);
    let result = act(&host, &drivers, "machine_update", json!({ "ram": ram })).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]), "the guest has it already");
    assert!(result["vm"].get("running_with").is_none());
    let forward = json!({ "set_internal_metadata": { "muster:hostfwd": "tcp::2222-:22" } });
    for (change, pending) in [
        (json!({ "set_customer_metadata": { "a": 1 } }), json!(["customer_metadata"])),
        (json!({ "resolvers": ["192.0.2.53"], "hostname": "x" }), json!(["resolvers", "hostname"])),
        (json!({ "set_internal_metadata": { "a": 1 } }), json!([])),
        (forward, json!(["internal_metadata"])),
    ] {
        let result = act(&host, &drivers, "machine_update", change.clone()).await.unwrap();
        // As in a set: the order means nothing.
        let listed = result["pending_reboot"].as_array().unwrap();
        assert_eq!(listed.len(), pending.as_array().unwrap().len(), "{change}: {listed:?}");
        assert!(listed.iter().all(|name| pending.as_array().unwrap().contains(name)), "{change}");
    }
    let change = json!({ "alias": "three", "ram": 1024 });
    act(&host, &drivers, "machine_update", change.clone()).await.unwrap();
    // Workflows repeat updates: nothing changes, not even the time.
    let before = drivers.vms.get(uuid()).unwrap();
    let result = act(&host, &drivers, "machine_update", change).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!(drivers.vms.get(uuid()).unwrap(), before);

    let path = result["vm"]["disks"][0]["path"].clone();
    let slower = json!({ "update_disks": [{ "path": path, "max_iops": 100 }] });
    let limited = host.faults.calls("compute.limit");
    let result = act(&host, &drivers, "machine_update", slower).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert!(host.faults.calls("compute.limit") > limited);
    let fixed = json!({ "update_disks": [{ "path": path, "model": "ide" }] });
    let result = act(&host, &drivers, "machine_update", fixed).await.unwrap();
    assert_eq!(result["pending_reboot"], json!(["disks"]));

    let nic = json!({ "add_nics": [{ "nic_tag": "external" }] });
    let result = act(&host, &drivers, "machine_update", nic).await.unwrap();
    assert_eq!(result["vm"]["nics"].as_array().unwrap().len(), 2);
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!(host.guests.starts(uuid()), 1, "NICs come while the guest runs");
    let restart = json!({ "ram": 2048, "reboot": "always" });
    let result = act(&host, &drivers, "machine_update", restart).await.unwrap();
    assert_eq!(host.guests.starts(uuid()), 2);
    assert!(result["vm"].get("running_with").is_none(), "all that waited is there");
    let taken = result["vm"]["nics"][0]["mac"].clone();
    let other = create_params(json!({
        "uuid": "99999999-5b5c-4d4e-9f43-2a1f0e2b7c01",
        "nics": [{ "nic_tag": "admin", "mac": taken }],
    }));
    let ctx = host.context(&drivers, &other);
    assert!(run(&ctx, "machine_create", false).await.is_err(), "the address is taken");
}

#[tokio::test(start_paused = true)]
async fn limits_change_at_once_and_are_tried_again() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let cap = json!({ "cpu_cap": 50 });
    let result = act(&host, &drivers, "machine_update", cap.clone()).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!((host.guests.cpu_cap(uuid()), host.guests.starts(uuid())), (Some(50), 1));
    let limited = host.faults.calls("compute.limit");
    act(&host, &drivers, "machine_update", json!({ "alias": "two" })).await.unwrap();
    assert_eq!(host.faults.calls("compute.limit"), limited, "others leave them alone");

    host.faults.fail_nth("compute.limit", 1, Fault::before());
    let change = json!({ "cpu_cap": 70 });
    assert!(act(&host, &drivers, "machine_update", change.clone()).await.is_err());
    assert_eq!(host.guests.cpu_cap(uuid()), Some(50));
    // The record has it already; whoever asks again gets it.
    act(&host, &drivers, "machine_update", change).await.unwrap();
    assert_eq!(host.guests.cpu_cap(uuid()), Some(70));
    act(&host, &drivers, "machine_update", json!({ "cpu_cap": 0 })).await.unwrap();
    assert_eq!(host.guests.cpu_cap(uuid()), None);
}

#[tokio::test(start_paused = true)]
async fn a_display_that_asks_gets_another_password_at_once() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let password = |password: &str| json!({ "vnc_password": password });
    let first = act(&host, &drivers, "machine_update", password("one")).await.unwrap();
    assert_eq!(first["pending_reboot"], json!(["vnc_password"]));
    assert_eq!(host.guests.password(uuid()), None);
    act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    host.faults.fail_nth("compute.set_password", 1, Fault::before());
    act(&host, &drivers, "machine_update", password("two")).await.unwrap_err();
    // The record has it already; whoever asks again gets it.
    let second = act(&host, &drivers, "machine_update", password("two")).await.unwrap();
    assert_eq!(second["pending_reboot"], json!([]));
    assert_eq!(host.guests.password(uuid()).as_deref(), Some("two"));
    let none = act(&host, &drivers, "machine_update", password("")).await.unwrap();
    assert_eq!(none["pending_reboot"], json!(["vnc_password"]), "it still asks");
    let third = act(&host, &drivers, "machine_update", password("three")).await.unwrap();
    assert_eq!(third["pending_reboot"], json!([]));
    assert_eq!(host.guests.password(uuid()).as_deref(), Some("three"));
    assert_eq!(host.guests.starts(uuid()), 2);
}

/// A VM of before metadata had a limit is larger than what fits in the journal between two steps.
#[tokio::test(start_paused = true)]
async fn large_metadata_can_be_changed_over_a_crash() {
    let change = json!({
        "remove_customer_metadata": ["b"], "set_customer_metadata": { "c": 2 }, "alias": "two",
    });
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let large = |record: &mut VmRecord| {
            let metadata = json!({ "a": "x".repeat(1_500_000), "b": 1, "c": 1 });
            record.properties.insert("customer_metadata".to_owned(), metadata);
        };
        drivers.vms.update(uuid(), large).await.unwrap();
        if !run_with_crash(&host, "machine_update", &params(change.clone()), step, done).await {
            break;
        }
        let vm = host.agent("boot-1").await.vms.get(uuid()).unwrap();
        let case = (vm.text("alias"), vm.customer_metadata("b"), vm.customer_metadata("c"));
        assert_eq!(case, (Some("two"), None, Some(&json!(2))), "step {step}, done {done}");
        assert_eq!(vm.customer_metadata("a").unwrap().as_str().unwrap().len(), 1_500_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_grows_whether_or_not_its_guest_runs() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let path = drivers.vms.get(uuid()).unwrap().list("disks")[1]["path"].clone();
    let grow = |size: u64| json!({ "update_disks": [{ "path": path, "size": size }] });
    // Its guest knows it, and it is not known to whoever asks: the same again mends that.
    host.faults.fail_nth("storage.grow_disk", 1, Fault::before());
    act(&host, &drivers, "machine_update", grow(64)).await.unwrap_err();
    assert_eq!(drivers.vms.get(uuid()).unwrap().list("disks")[1]["size"], 8);
    let result = act(&host, &drivers, "machine_update", grow(64)).await.unwrap();
    assert_eq!(
        (&result["vm"]["disks"][1]["size"], &result["pending_reboot"]),
        (&json!(64), &json!([]))
    );
    assert_eq!(host.guests.disk_size(uuid(), 1), Some(64 << 20));
    assert_eq!(host.pool.disks()[&(uuid(), 1)].size_bytes, 64 << 20);
    assert_eq!(host.guests.starts(uuid()), 1);

    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    let result = act(&host, &drivers, "machine_update", grow(128)).await.unwrap();
    assert_eq!(result["vm"]["disks"][1]["size"], 128);
    assert_eq!(host.pool.disks()[&(uuid(), 1)].size_bytes, 128 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_reprovision_replaces_the_boot_disk_and_nothing_else() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    let before = host.pool.disks();
    let result = act(&host, &drivers, "machine_reprovision", json!({ "image_uuid": IMAGE })).await;
    let result = result.unwrap();
    assert_eq!(result["lost_snapshots"], json!(["a"]));
    assert_eq!(result["vm"]["snapshots"], json!([]));
    assert_eq!((&result["vm"]["state"], host.guests.starts(uuid())), (&json!("running"), 2));
    let after = host.pool.disks();
    assert_ne!(after[&(uuid(), 0)].owner, before[&(uuid(), 0)].owner);
    assert_eq!(after[&(uuid(), 1)].owner, before[&(uuid(), 1)].owner);
    assert!(host.pool.stashed().is_empty());
    // No disk keeps a name that is not listed.
    assert_eq!(after[&(uuid(), 1)].snapshots, []);
    act(&host, &drivers, "machine_create_snapshot", snapshot("a")).await.unwrap();
    let missing = json!({ "image_uuid": "99999999-2222-4333-8444-555555555555" });
    assert_eq!(code(&host, &drivers, "machine_reprovision", missing).await, "ImageNotFound");
    assert_eq!(drivers.vms.object(uuid(), true).unwrap()["state"], "running");
    drivers.vms.remove(uuid()).await.unwrap();
    let gone = code(&host, &drivers, "machine_reprovision", json!({ "image_uuid": IMAGE })).await;
    assert_eq!(gone, "VmNotFound");
}

/// What a guest has not written yet to its other disks would be lost.
#[tokio::test(start_paused = true)]
async fn a_reprovision_asks_the_guest_before_it_kills_it() {
    for (deaf, took) in [(false, 0..2), (true, 60..63)] {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        if deaf {
            host.guests.ignore_acpi(uuid());
        }
        let wanted = params(json!({ "image_uuid": IMAGE }));
        let ctx = host.context(&drivers, &wanted);
        let plan = super::machine_reprovision::MachineReprovision.plan(&wanted).unwrap();
        let started = host.clock.monotonic();
        for step in plan.steps.iter().take_while(|step| step.name() != "stash") {
            step.apply(&ctx).await.unwrap();
        }
        let seconds = (host.clock.monotonic() - started).as_secs();
        assert!(took.contains(&seconds), "{seconds} s");
        let status = if deaf { 137 } else { 0 };
        assert_eq!(drivers.vms.object(uuid(), true).unwrap()["exit_status"], status);
    }
}

/// Lets each call fail in turn: afterwards the VM is as before or as wanted, and nothing is left.
#[tokio::test(start_paused = true)]
async fn changes_that_fail_anywhere_leave_a_whole_vm() {
    let operations = [
        "compute.start",
        "compute.observe",
        "compute.signal",
        "images.install",
        "storage.create_disk",
        "storage.create_snapshot",
        "storage.delete_snapshot",
        "storage.disks",
        "storage.snapshots",
        "storage.stash_disk",
        "vms.put",
    ];
    let mut failed = 0;
    for kind in ["machine_create_snapshot", "machine_reprovision"] {
        for operation in operations {
            for nth in 1..=4 {
                for fault in [Fault::before(), Fault::after()] {
                    failed += u32::from(!fails_whole(kind, operation, nth, fault).await);
                }
            }
        }
    }
    assert!(failed > 30, "only {failed} changes failed");
}

/// Whether the change went well; if not, nothing of it is left.
async fn fails_whole(kind: &str, operation: &'static str, nth: u64, fault: Fault) -> bool {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    act(&host, &drivers, "machine_create_snapshot", snapshot("old")).await.unwrap();
    let (disks, record) = (host.pool.disks(), drivers.vms.get(uuid()).unwrap());
    let case = format!("{kind}: {operation} {nth} {fault:?}");
    host.faults.fail_nth(operation, nth, fault);
    let wanted = params(json!({ "snapshot_name": "a", "image_uuid": IMAGE }));
    let ctx = host.context(&drivers, &wanted);
    let result = run(&ctx, kind, false).await;
    let now = drivers.vms.get(uuid()).unwrap();
    assert!(!now.provisioning && !now.failed, "{case}");
    assert!(host.pool.stashed().is_empty(), "{case}: {result:?}");
    let committed = now.reprovision_task.is_some();
    if result.is_err() && !committed {
        assert_eq!(host.pool.disks(), disks, "{case}");
        assert_eq!(now.snapshots, record.snapshots, "{case}");
        assert_eq!(now.properties, record.properties, "{case}");
    }
    let known: BTreeSet<String> =
        now.snapshots.iter().map(|known| format!("vmsnap-{}", known.name)).collect();
    for disk in host.pool.disks().into_values() {
        let names: BTreeSet<String> = disk.snapshots.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, known, "{case}");
    }
    result.is_ok()
}

pub(super) fn example(kind: &str) -> Params {
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind).unwrap();
    let mut params = handler.example();
    if params.contains_key("image_uuid") {
        params.insert("image_uuid".to_owned(), json!(IMAGE));
    }
    params
}

#[tokio::test(start_paused = true)]
async fn changes_go_on_after_a_crash_at_any_step() {
    let kinds = [
        ("machine_update", 2),
        ("machine_create_snapshot", 1),
        ("machine_rollback_snapshot", 2),
        ("machine_delete_snapshot", 1),
        ("machine_reprovision", 2),
    ];
    for (kind, starts) in kinds {
        for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
            let host = Host::new();
            let drivers = one_vm(&host).await;
            if kind != "machine_create_snapshot" {
                act(&host, &drivers, "machine_create_snapshot", snapshot("one")).await.unwrap();
            }
            if !run_with_crash(&host, kind, &example(kind), step, done).await {
                break;
            }
            let case = format!("{kind}, step {step}, done {done}");
            let drivers = host.agent("boot-1").await;
            let vm = drivers.vms.object(uuid(), true).unwrap();
            assert_eq!(vm["state"], "running", "{case}");
            assert_eq!(host.guests.starts(uuid()), starts, "{case}");
            assert!(host.pool.stashed().is_empty(), "{case}");
            let has = matches!(kind, "machine_delete_snapshot" | "machine_reprovision");
            assert_eq!(names(&vm).is_empty(), has, "{case}");
            if kind == "machine_update" {
                assert_eq!(vm["nics"].as_array().unwrap().len(), 2, "{case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_runs_once_and_only_where_it_may() {
    let host = Host::new();
    let log = HostLog::default();
    let sim: Arc<dyn crate::drivers::host::Host> =
        Arc::new(SimHost::new(log.clone(), crate::drivers::faults::Faults::none()));
    let script = example("command_execute");
    let drivers = |host: Arc<dyn crate::drivers::host::Host>, base: &Arc<Drivers>| {
        let base = base.as_ref();
        Arc::new(Drivers {
            builder: base.builder.clone(),
            sessions: base.sessions.clone(),
            guest_agents: base.guest_agents.clone(),
            node: Arc::new(crate::drivers::node::SimDocuments::default()),
            cluster: base.cluster.clone(),
            clock: base.clock.clone(),
            entropy: base.entropy.clone(),
            compute: base.compute.clone(),
            networks: base.networks.clone(),
            storage: base.storage.clone(),
            images: base.images.clone(),
            host,
            bridges: Bridges::default(),
            coordinators: base.coordinators.clone(),
            settings: base.settings.clone(),
            vms: base.vms.clone(),
            report: base.report.clone(),
            log: base.log.clone(),
            zfs: base.zfs.clone(),
        })
    };
    let base = host.agent("boot-1").await;
    let allowed = drivers(sim.clone(), &base);
    let result = run(&host.context(&allowed, &script), "command_execute", false).await.unwrap();
    assert_eq!(result["exitCode"], 0);
    let mut resumed = host.context(&allowed, &script);
    resumed.resumed = true;
    let cut_off: TaskFailure = run(&resumed, "command_execute", false).await.unwrap_err();
    assert_eq!(cut_off.code, "Interrupted");
    let forbidden = drivers(Arc::new(NoScripts(sim)), &base);
    let refused = run(&host.context(&forbidden, &script), "command_execute", false).await;
    assert_eq!(refused.unwrap_err().code, "NotAuthorized");
    let refusing = drivers(Arc::new(crate::drivers::host::refuse::RefuseHost), &base);
    let refused = run(&host.context(&refusing, &script), "command_execute", false).await;
    assert_eq!(refused.unwrap_err().code, "HostActionsDisabled");
    assert_eq!(log.actions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn small_kinds_answer() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let processes = act(&host, &drivers, "machine_proc", json!({})).await.unwrap();
    assert_eq!(processes.as_object().unwrap().len(), 1);
    let image = |uuid: &str| Params::from_iter([("uuid".to_owned(), json!(uuid))]);
    let ctx = host.context(&drivers, &image(IMAGE));
    assert_eq!(run(&ctx, "image_get", false).await.unwrap()["state"], "active");
    let ctx = host.context(&drivers, &image("99999999-2222-4333-8444-555555555555"));
    assert_eq!(run(&ctx, "image_get", false).await.unwrap_err().code, "ImageNotInstalled");
    let agents = json!({ "agents": ["muster-agent"] });
    assert_eq!(code(&host, &drivers, "agents_uninstall", agents).await, "InvalidArgument");
    act(&host, &drivers, "agents_uninstall", json!({ "agents": ["x"] })).await.unwrap();
    // One that somebody else put there.
    let agents = json!({ "agents": ["x", SIM_SERVICE] });
    assert_eq!(code(&host, &drivers, "agents_uninstall", agents).await, "NotSupported");
    act(&host, &drivers, "server_overprovision_ratio", json!({ "value": 0 })).await.unwrap();
    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
    assert_eq!(code(&host, &drivers, "machine_proc", json!({})).await, "VmNotRunning");
}
