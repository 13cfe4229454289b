//! `hard-filter-virtual-servers`: no virtual servers for docker VMs and those tagged so.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static VIRTUAL_SERVERS: Algorithm = Algorithm {
    name: "hard-filter-virtual-servers",
    title: "Servers which are not virtual servers",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let vm = &run.request.vm;
    if !vm.docker && !vm.exclude_virtual {
        return Reasons::None;
    }
    let text = "Server is a virtual server - excluding";
    run.filter_flag(flag::VIRTUAL, false, || Verdict::Because(Reason::Text(text)))
}
