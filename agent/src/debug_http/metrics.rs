//! Figures in Prometheus' text form.

use jiff::Timestamp;
use muster_shared::exposition::{Exposition, Kind};
use muster_shared::process_usage;
use muster_shared::wire::Intake;

use crate::Running;
use crate::drivers::storage::Usage;
use crate::link::dial::Phase;
use crate::report::Interface;

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

fn count(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

/// All figures, now.
pub(super) fn render(agent: &Running, started: Timestamp, interfaces: &[Interface]) -> String {
    let mut page = Exposition::default();
    process_usage::describe(&mut page, started);
    describe_node(&mut page, agent);
    super::interface_metrics::describe(&mut page, interfaces);
    let zpools = agent.drivers.report.zpools();
    super::zfs_metrics::describe(&mut page, &zpools.latest(), &zpools.zfs().calls());
    describe_tasks(&mut page, agent);
    super::vm_metrics::describe(&mut page, &agent.drivers.report.usage().latest());
    page.into_text()
}

fn describe_node(page: &mut Exposition, agent: &Running) {
    let version = env!("CARGO_PKG_VERSION");
    page.family(
        "muster_agent_build_info",
        Kind::Gauge,
        "The agent's version; always 1.",
        [(&[("version", version)][..], 1.0)],
    );
    let abilities = agent.drivers.compute.abilities();
    let accelerator = abilities.accel.as_deref().unwrap_or("none");
    page.family(
        "muster_agent_accelerator_info",
        Kind::Gauge,
        "How guests run: kvm, tcg (emulated, slow) or none; always 1.",
        [(&[("accelerator", accelerator)][..], 1.0)],
    );
    let degraded = abilities.degraded.len() + agent.drivers.report.remarks().len();
    let links = agent.links.states();
    let connected = links.iter().filter(|link| link.phase() == Phase::Connected).count();
    let vms = agent.drivers.vms.entries();
    let running = vms.iter().filter(|vm| vm.observed.is_running()).count();
    let accepting = usize::from(agent.engine.intake() == Intake::Accepting);
    for (name, help, value) in [
        ("muster_agent_degraded_reasons", "What this node lacks; sysinfo names it.", degraded),
        ("muster_agent_coordinators", "Coordinators known.", links.len()),
        ("muster_agent_coordinators_connected", "Coordinators connected.", connected),
        ("muster_agent_vms", "VMs with a record.", vms.len()),
        ("muster_agent_vms_running", "VMs that run.", running),
        ("muster_agent_accepting", "1 if new work is taken.", accepting),
    ] {
        page.one(name, Kind::Gauge, help, count(value));
    }
    let pools = agent.drivers.report.pool_usages();
    let of_each = |bytes: fn(&Usage) -> u64| -> Vec<_> {
        pools.iter().map(|usage| ([("pool", usage.pool.as_str())], number(bytes(usage)))).collect()
    };
    let size = of_each(|usage| usage.size_bytes);
    let free = of_each(|usage| usage.size_bytes.saturating_sub(usage.alloc_bytes));
    for (name, help, samples) in [
        ("muster_agent_pool_size_bytes", "Size of a pool of disks and images.", size),
        ("muster_agent_pool_free_bytes", "Free space of a pool.", free),
    ] {
        let samples = samples.iter().map(|(labels, bytes)| (&labels[..], *bytes));
        page.family(name, Kind::Gauge, help, samples);
    }
}

fn describe_tasks(page: &mut Exposition, agent: &Running) {
    let counts = agent.engine.counts();
    for (name, help, value) in [
        ("muster_agent_tasks_running", "Tasks that run.", counts.active),
        ("muster_agent_tasks_queued", "Tasks that wait.", counts.queued),
        ("muster_agent_results_unacknowledged", "Results not acknowledged.", counts.unacked),
        ("muster_agent_journal_bytes", "Size of the task journal.", counts.journal_bytes),
    ] {
        page.one(name, Kind::Gauge, help, count(value));
    }
    let mut queues = Vec::new();
    for (queue, depth) in agent.engine.queues() {
        queues.push(([("queue", queue.name), ("stage", "running")], depth.running));
        queues.push(([("queue", queue.name), ("stage", "waiting")], depth.waiting));
    }
    page.family(
        "muster_agent_queue_tasks",
        Kind::Gauge,
        "Tasks by queue and stage.",
        queues.iter().map(|(labels, depth)| (&labels[..], count(*depth))),
    );
    let finished = agent.engine.finished();
    let finished: Vec<_> = finished
        .iter()
        .map(|((task, outcome), ended)| ([("task", task.as_str()), ("outcome", outcome)], *ended))
        .collect();
    page.family(
        "muster_agent_tasks_finished_total",
        Kind::Counter,
        "Tasks ended since the agent started, by kind and outcome.",
        finished.iter().map(|(labels, ended)| (&labels[..], number(*ended))),
    );
}
