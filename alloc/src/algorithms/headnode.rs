//! `hard-filter-headnode`: no headnodes.

use serde_json::json;

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::Reasons;
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static HEADNODE: Algorithm = Algorithm {
    name: "hard-filter-headnode",
    title: "Servers which are not headnodes",
    kind: Kind::Filter,
    run,
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(_: &Refused<'_>) -> Vec<Change> {
    vec![Change::Policy { key: "filter_headnode", value: json!(false) }]
}

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.settings.filter_headnode {
        return Reasons::skip("Do not filter out headnodes");
    }
    run.filter_flag(flag::HEADNODE, false, || Verdict::Drop)
}
