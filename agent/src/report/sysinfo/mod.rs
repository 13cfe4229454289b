//! The sysinfo document of a Linux host, in SmartOS's key names and types (smartos-live
//! src/sysinfo): one file per group of keys.

use serde_json::{Value, json};

/// Of the software that clients of CNAPI expect; its presence is what they look at.
pub const SDC_VERSION: &str = "7.0";
/// Version of the agent `cn-agent` that this one stands for; the gates of CNAPI's clients ask for
/// at least 2.13.0.
const CN_AGENT_VERSION: &str = "2.14.0";

/// The agents list: this agent under its own name, and as the `cn-agent` that clients look for.
#[must_use]
pub fn agents() -> Vec<Value> {
    vec![
        json!({ "name": "cn-agent", "version": CN_AGENT_VERSION }),
        json!({ "name": "muster-agent", "version": env!("CARGO_PKG_VERSION") }),
    ]
}
