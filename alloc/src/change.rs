//! Single changes of fleet, policy or request that may make a request fit.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::server::Server;

/// What a server may get more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// MiB of memory, of which a share is kept for the host.
    Memory,
    /// MiB of the pool, of which a share is kept free.
    Disk,
    /// Cores.
    Cores,
}

/// A figure of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Member of `vm`.
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A server has more of something.
    Grow { server: Arc<Server>, what: Resource, amount: u64 },
    /// A server's record has other members.
    Server { server: Arc<Server>, members: Map<String, Value>, text: String },
    /// A VM is not there.
    RemoveVm { vm: Uuid, text: String },
    /// A default of the policy is another one.
    Policy { key: &'static str, value: Value },
    /// The request asks for less of something.
    Less { figure: Figure, from: u64, amount: u64 },
    /// The request's body is another one at a place; `None` removes the member or item.
    Patch { path: Vec<String>, value: Option<Value>, text: String },
}

impl Change {
    /// The figure in it, which a larger one includes.
    pub(crate) fn amount(&self) -> Option<u64> {
        match self {
            Self::Grow { amount, .. } | Self::Less { amount, .. } => Some(*amount),
            _ => None,
        }
    }

    /// The largest figure that makes sense, if there is one.
    pub(crate) fn most(&self) -> Option<u64> {
        match self {
            Self::Less { from, .. } => Some(from - 1),
            _ => None,
        }
    }

    pub(crate) fn with_amount(&self, new: u64) -> Self {
        let mut changed = self.clone();
        if let Self::Grow { amount, .. } | Self::Less { amount, .. } = &mut changed {
            *amount = new;
        }
        changed
    }

    /// Whether several of its kind may be needed for one step.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(self, Self::RemoveVm { .. })
    }

    /// Whether it is the request that changes.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(self, Self::Less { .. } | Self::Patch { .. })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Grow { server, what, amount } => {
                let n = grouped(*amount);
                match what {
                    Resource::Memory => format!("{n} MiB more memory on server {}", server.name),
                    Resource::Disk => format!("{n} MiB more disk on server {}", server.name),
                    Resource::Cores if *amount == 1 => {
                        format!("1 more core on server {}", server.name)
                    }
                    Resource::Cores => format!("{n} more cores on server {}", server.name),
                }
            }
            Self::Server { text, .. } | Self::RemoveVm { text, .. } | Self::Patch { text, .. } => {
                text.clone()
            }
            Self::Policy { key, value } => format!("with {key} = {value}"),
            Self::Less { figure, from, amount } => {
                let (to, from) = (grouped(from - amount), grouped(*from));
                format!("with {to} {} instead of {from}", figure.unit)
            }
        }
    }

    /// The members of the server's record that change, with its uuid.
    pub(crate) fn members(&self) -> Option<Map<String, Value>> {
        let (server, mut members) = match self {
            Self::Server { server, members, .. } => (server, members.clone()),
            Self::Grow { server, what, amount } => (server, grown(server, *what, *amount)?),
            _ => return None,
        };
        members.insert("uuid".to_owned(), json!(server.name));
        Some(members)
    }

    /// Changes the request's body.
    pub(crate) fn patch(&self, body: &mut Map<String, Value>) {
        match self {
            Self::Less { figure, from, amount } => {
                if let Some(vm) = body.get_mut("vm").and_then(Value::as_object_mut) {
                    vm.insert(figure.name.to_owned(), json!(from - amount));
                }
            }
            Self::Patch { path, value, .. } => patch(body, path, value.as_ref()),
            _ => {}
        }
    }
}

fn patch(body: &mut Map<String, Value>, path: &[String], value: Option<&Value>) {
    let Some((last, parents)) = path.split_last() else { return };
    let Some((first, parents)) = parents.split_first() else {
        match value {
            Some(value) => drop(body.insert(last.clone(), value.clone())),
            None => drop(body.remove(last)),
        }
        return;
    };
    let mut at = body.get_mut(first);
    for name in parents {
        at = at.and_then(|at| match at {
            Value::Object(members) => members.get_mut(name),
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
            _ => None,
        });
    }
    match (at, value) {
        (Some(Value::Object(members)), Some(value)) => {
            members.insert(last.clone(), value.clone());
        }
        (Some(Value::Object(members)), None) => drop(members.remove(last)),
        (Some(Value::Array(items)), None) => items.retain(|item| item.as_str() != Some(last)),
        _ => {}
    }
}

/// 2048 as `2,048`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What the record of a server with more of something says.
fn grown(server: &Server, what: Resource, amount: u64) -> Option<Map<String, Value>> {
    let (name, old) = match what {
        Resource::Memory => ("memory_total_bytes", server.figures.memory_total()),
        Resource::Disk => ("disk_pool_size_bytes", server.figures.pool_size()),
        Resource::Cores => {
            let cores = whole(server.parsed.cores)?.checked_add(amount)?;
            let sysinfo = server.record.get("sysinfo").and_then(Value::as_object);
            let says = |name: &str| sysinfo.is_some_and(|sysinfo| sysinfo.contains_key(name));
            let (online, total) = ("CPU Online Count", "CPU Total Cores");
            // The total counts where nothing is said of those online.
            let name = if says(total) && !says(online) { total } else { online };
            return Some([("sysinfo".to_owned(), json!({ name: cores }))].into_iter().collect());
        }
    };
    let bytes = whole(old)?.checked_add(amount.checked_mul(1024 * 1024)?)?;
    Some([(name.to_owned(), json!(bytes))].into_iter().collect())
}

/// A size as an integer, if it is one.
fn whole(x: f64) -> Option<u64> {
    let fits = x >= 0.0 && x.fract() == 0.0 && x < 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: an integer from 0 to 2^53"
    )]
    let integer = x as u64;
    fits.then_some(integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_reach_members_and_items() {
        let mut body = json!({
            "nic_tags": ["a", "b"], "vm": {"traits": {"ssd": true}, "affinity": [{"isSoft": false}]},
        });
        let body = body.as_object_mut().expect("an object");
        let path = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        patch(body, &path(&["nic_tags", "a"]), None);
        patch(body, &path(&["vm", "traits", "ssd"]), None);
        patch(body, &path(&["vm", "affinity", "0", "isSoft"]), Some(&json!(true)));
        patch(body, &path(&["servers"]), None);
        let want = json!({"nic_tags": ["b"], "vm": {"traits": {}, "affinity": [{"isSoft": true}]}});
        assert_eq!(*body, *want.as_object().expect("an object"));
    }

    #[test]
    fn large_numbers_are_grouped() {
        let texts = [5, 999, 1000, 2048, 1_234_567].map(grouped);
        assert_eq!(texts, ["5", "999", "1,000", "2,048", "1,234,567"]);
    }
}
