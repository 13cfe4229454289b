//! Points at which a test has the agent killed.

use muster_shared::entropy::{Entropy as _, SeededEntropy};

use crate::binary;

/// Every point of a kind at which the agent can be killed, from its own registry.
///
/// # Panics
/// If the agent does not tell.
#[must_use]
pub fn fault_points(kind: &str) -> Vec<String> {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let output = std::process::Command::new(binary("muster-agent"))
        .args(["fault-points", "--task", kind])
        .output()
        .expect("the agent lists its fault points");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("fault points: {e}: {}", String::from_utf8_lossy(&output.stdout))
    })
}

/// Which points are tried: `all`, or some by name; else a random tenth of each kind.
const POINTS: &str = "MUSTER_KILL_POINTS";

/// The points of a kind that are tried.
///
/// # Panics
/// If the agent does not tell them.
#[must_use]
pub fn chosen(kind: &str) -> Vec<String> {
    let mut points = fault_points(kind);
    match std::env::var(POINTS).as_deref() {
        Ok("all") => {}
        Ok(names) => points.retain(|point| names.split(',').any(|name| name == point)),
        Err(_) => {
            let (entropy, tenth) = (SeededEntropy::from_os(), points.len().div_ceil(10));
            while points.len() > tenth {
                let count = u64::try_from(points.len()).expect("few");
                let gone = usize::try_from(entropy.u64() % count).expect("few");
                points.swap_remove(gone);
            }
        }
    }
    points
}
