//! Figures in Prometheus' text form.

use std::fmt::Write as _;

use muster_shared::wire::Intake;

use crate::Running;
use crate::link::dial::Phase;

/// All figures, now.
pub(super) fn render(agent: &Running) -> String {
    let engine = &agent.engine;
    let counts = engine.counts();
    let links = agent.links.states();
    let connected = links.iter().filter(|link| link.phase() == Phase::Connected).count();
    let vms = agent.drivers.vms.entries();
    let running = vms.iter().filter(|vm| vm.observed.is_running()).count();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: usize| {
        let line = format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
        text.push_str(&line);
    };
    gauge("muster_agent_tasks_running", "Tasks that run.", counts.active);
    gauge("muster_agent_tasks_queued", "Tasks that wait.", counts.queued);
    gauge("muster_agent_results_unacknowledged", "Results not acknowledged.", counts.unacked);
    gauge("muster_agent_journal_bytes", "Size of the task journal.", counts.journal_bytes);
    gauge("muster_agent_coordinators", "Coordinators known.", links.len());
    gauge("muster_agent_coordinators_connected", "Coordinators connected.", connected);
    gauge("muster_agent_vms", "VMs with a record.", vms.len());
    gauge("muster_agent_vms_running", "VMs that run.", running);
    let accepting = usize::from(engine.intake() == Intake::Accepting);
    gauge("muster_agent_accepting", "1 if new work is taken.", accepting);
    text.push_str("# HELP muster_agent_queue_tasks Tasks by queue and stage.\n");
    text.push_str("# TYPE muster_agent_queue_tasks gauge\n");
    for (queue, depth) in engine.queues() {
        for (stage, value) in [("running", depth.running), ("waiting", depth.waiting)] {
            let name = queue.name;
            // Writing to a String can't fail.
            writeln!(
                text,
                "muster_agent_queue_tasks{{queue=\"{name}\",stage=\"{stage}\"}} {value}"
            )
            .ok();
        }
    }
    text + &super::vm_metrics::render(&agent.drivers.report.usage().latest())
}
