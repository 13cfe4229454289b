//! What clients ask for in a run, as its seed decides.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_shared::clock::iso;
use muster_shared::entropy::Entropy as _;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};

use super::ask::{Ask, VmVerb};
use super::client::Patience;
use super::mix::Part;
use super::{Sim, origin};

/// What tickets are about.
const QUEUES: [&str; 2] = ["one", "two"];
/// Memory of VMs, MiB; in tight runs a host has room for a few of them.
const RAM_MIB: u64 = 256;
const TIGHT_RAM_MIB: u64 = 1024;

/// Sends something.
pub fn ask(sim: &mut Sim) {
    if let Some(ask) = draw(sim) {
        let patience = patience(sim);
        sim.ask(ask, patience);
    }
}

/// Asks again for what was not answered, or lets it be.
pub fn ask_again(sim: &mut Sim) {
    let Some(ask) = sim.client.take_unanswered() else { return };
    if sim.pick(3) > 0 {
        let patience = patience(sim);
        sim.ask(ask, patience);
    }
}

/// Now and then a client cancels its task at the moment at which the task is about to be sent.
pub fn cancel_late(sim: &mut Sim) {
    let model = sim.witness.model();
    let server = |agent: &&super::node::AgentNode| sim.net.is_connected(agent.number);
    let connected: BTreeSet<_> =
        sim.agents.iter().filter(server).map(|agent| agent.server).collect();
    let about_to_be_sent = |id: &&TaskId| {
        let task = model.tasks.get(id);
        task.is_some_and(|task| !task.sent && connected.contains(&task.server_uuid))
    };
    let id = model.tasks.open().iter().find(about_to_be_sent).cloned();
    drop(model);
    if let Some(id) = id
        && sim.pick(4) == 0
    {
        sim.ask(Ask::Cancel(id), Patience::Endless);
    }
}

fn patience(sim: &Sim) -> Patience {
    if !sim.mix.has(Part::Impatience) || sim.pick(2) == 0 {
        return Patience::Endless;
    }
    match sim.pick(2) {
        0 => Patience::Waits(u32::try_from(1 + sim.pick(12)).unwrap_or(1)),
        _ => Patience::Time(Duration::from_millis(80).mul_f64(sim.entropy.fraction())),
    }
}

fn draw(sim: &Sim) -> Option<Ask> {
    let extra = [Part::Allocate, Part::Tickets, Part::Jobs, Part::Images];
    let extra: Vec<Part> = extra.into_iter().filter(|part| sim.mix.has(*part)).collect();
    if !extra.is_empty() && sim.pick(3) == 0 {
        return match extra[sim.pick(extra.len())] {
            Part::Tickets => ticket(sim),
            Part::Jobs => {
                let rare = sim.pick(3) == 0;
                rare.then(|| Ask::Reboot(some_server(sim), sim.pick(2) == 0))
            }
            Part::Images => Some(image(sim)),
            _ => Some(Ask::Allocate(sim.entropy.uuid().into(), ram(sim))),
        };
    }
    let vms = sim.client.vms();
    let known = if vms.is_empty() { None } else { Some(vms[sim.pick(vms.len())]) };
    match (sim.pick(12), known) {
        (11, _) => Some(Ask::PlaceInVain(sim.entropy.uuid().into(), ram(sim))),
        (0..=3, _) | (_, None) => Some(Ask::Place(sim.entropy.uuid().into(), ram(sim))),
        // A uuid that is taken.
        (4, Some(vm)) => Some(Ask::Place(vm, ram(sim))),
        (5, _) => Some(Ask::Nop(some_server(sim))),
        (6, _) => {
            let model = sim.witness.model();
            // Mostly those that have not ended.
            let tasks = &model.tasks;
            let ids = if sim.pick(4) == 0 { tasks.known_to_clients() } else { tasks.open() };
            let ids: Vec<TaskId> = ids.iter().cloned().collect();
            drop(model);
            (!ids.is_empty()).then(|| Ask::Cancel(ids[sim.pick(ids.len())].clone()))
        }
        // Whose room nobody has looked at before.
        (7, _) if !sim.mix.has(Part::Tight) => {
            Some(Ask::CreateOn(some_server(sim), sim.entropy.uuid().into(), ram(sim)))
        }
        (_, Some(vm)) => {
            let server = home(sim, vm)?;
            Some(Ask::Vm(server, vm, VmVerb::ALL[sim.pick(VmVerb::ALL.len())]))
        }
    }
}

fn ram(sim: &Sim) -> u64 {
    if sim.mix.has(Part::Tight) { TIGHT_RAM_MIB } else { RAM_MIB }
}

fn some_server(sim: &Sim) -> ServerUuid {
    sim.agents[sim.pick(sim.agents.len())].server
}

fn home(sim: &Sim, vm: VmUuid) -> Option<ServerUuid> {
    let holds = |a: &&super::node::AgentNode| a.records.records().contains_key(&vm);
    sim.agents.iter().find(holds).map(|a| a.server)
}

fn ticket(sim: &Sim) -> Option<Ask> {
    let tickets = sim.client.tickets();
    let known = if tickets.is_empty() { None } else { Some(tickets[sim.pick(tickets.len())]) };
    match (sim.pick(7), known) {
        (0..=2, _) | (_, None) => {
            let expires_at = match sim.pick(2) {
                0 => "3000".to_owned(),
                _ => {
                    let left = Duration::from_secs(10).mul_f64(sim.entropy.fraction());
                    iso(origin().checked_add(sim.now + left).expect("runs are short"))
                }
            };
            // One waitlist for all, so that there are queues.
            let server = sim.agents[0].server;
            Some(Ask::Ticket { server, id: QUEUES[sim.pick(QUEUES.len())], expires_at })
        }
        (3, Some(uuid)) => Some(Ask::Release(uuid)),
        (4, Some(uuid)) => Some(Ask::DeleteTicket(uuid)),
        (5, Some(uuid)) => Some(Ask::WaitTicket(uuid, 3)),
        (_, Some(uuid)) => Some(Ask::Under(uuid, Box::new(under_ticket(sim)))),
    }
}

/// What needs a ticket. The ticket may have ended long ago.
fn under_ticket(sim: &Sim) -> Ask {
    let server = sim.agents[0].server;
    let (vm, ram) = (sim.entropy.uuid().into(), ram(sim));
    match sim.pick(4) {
        0 => Ask::Place(vm, ram),
        // See `draw`.
        1 if !sim.mix.has(Part::Tight) => Ask::CreateOn(server, vm, ram),
        _ => Ask::Nop(server),
    }
}

fn image(sim: &Sim) -> Ask {
    let images = u64::try_from(sim.pick(4)).unwrap_or(0);
    match sim.pick(4) {
        0 => Ask::ImageCreate(images),
        1 => Ask::ImageUpload(images),
        2 => Ask::ImageActivate(images),
        _ => Ask::ImageFile(images),
    }
}
