//! `hard-filter-zpool-encryption`: encrypted pools for VMs that ask for them, and only for those.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static ZPOOL_ENCRYPTION: Algorithm = Algorithm {
    name: "hard-filter-zpool-encryption",
    title: "Servers which are zpool encrypted",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let wanted = run.request.vm.encrypted;
    let text = if wanted { "Server is not Zpool Encrypted" } else { "Server is Zpool Encrypted" };
    run.filter_flag(flag::ENCRYPTED, wanted, || Verdict::Because(Reason::Text(text)))
}
