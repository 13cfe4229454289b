//! `hard-filter-os`: servers with the operating system that the VM needs.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};
use crate::server::flag;
use crate::settings::HostOs;

pub(super) static OS: Algorithm = Algorithm {
    name: "hard-filter-os",
    title: "Servers which have the required OS",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.settings.host_os == HostOs::Any {
        return Reasons::None;
    }
    let request = run.request;
    let linux = request.vm.brand == "lx" && request.image.kind == "lxd";
    let text = if linux {
        "Server does not have \"linux\" OS"
    } else {
        "Server does not have \"SunOS\" OS"
    };
    run.filter_flag(flag::LINUX, linux, || Verdict::Because(Reason::Text(text)))
}
