//! `identity`: keeps everything; the last resort of an `or`.

use super::{Algorithm, Kind};
use crate::outcome::Reasons;
use crate::run::Run;

pub(super) static IDENTITY: Algorithm = Algorithm {
    name: "identity",
    title: "Identity function",
    kind: Kind::Filter,
    run,
    compares: None,
};

fn run(_: &mut Run<'_>) -> Reasons {
    Reasons::None
}
