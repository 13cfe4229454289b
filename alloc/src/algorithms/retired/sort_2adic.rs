//! `sort-2adic`: servers whose RAM is the roundest multiple of the VM's last.

use crate::algorithm::{Algorithm, Kind};
use crate::num::trunc;
use crate::reason::Reasons;
use crate::run::{Run, Verdict};

pub(super) static SORT_2ADIC: Algorithm = Algorithm {
    name: "sort-2adic",
    title: "Sort servers by 2adic",
    kind: Kind::Sorter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let want = run.request.vm.ram;
    if want > 0.0 {
        run.keep_with_room(want);
        let sorted = run.sorted_by(|run, slot| -key(run.left(slot).ram / want));
        run.leave(sorted);
    }
    Reasons::None
}

impl Run<'_> {
    fn keep_with_room(&mut self, want: f64) {
        self.filter(|run, slot| Verdict::keep_if(run.left(slot).ram >= want));
    }
}

/// The whole part in binary, read backwards as decimal digits after the point.
fn key(multiple: f64) -> f64 {
    let n = trunc(multiple);
    let digits: String = format!("{n:b}").chars().rev().collect();
    format!("0.{digits}").parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_backwards() {
        assert_eq!(key(6.9), 0.011);
        assert_eq!(key(1.0), 0.1);
        assert_eq!(key(8.0), 0.0001);
    }
}
