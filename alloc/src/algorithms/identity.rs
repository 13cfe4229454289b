//! `identity`: keeps everything; the last resort of an `or`.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static IDENTITY: Algorithm = Algorithm {
    name: "identity",
    title: "Identity function",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(_: &mut Run<'_>) -> Reasons {
    Reasons::None
}
