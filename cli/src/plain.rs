//! What the API says in the words of CNAPI and its tools, which programs know, in those of operators.

/// The title of a step of a decision.
pub(crate) fn step(title: &str) -> &str {
    if title == "Received by DAPI" { "Servers that were considered" } else { title }
}

/// Why a step removed a server: how much is wanted and how much is left, whatever the wording of that
/// is.
pub(crate) fn removal(reason: &str) -> String {
    if let Some(networks) = reason.strip_prefix("Server must have one of the NIC Tags: ") {
        return format!("it has no network {networks}; `muster server get` lists its networks");
    }
    let wanted_and_left = || {
        let (wanted, left) =
            reason.strip_prefix("VM's calculated ")?.split_once(" than server's spare ")?;
        let (amount, what) = wanted.split_once(' ')?;
        let (what, unit) = match what.rsplit_once(" is ")?.0 {
            "RAM" => (" of memory", "MiB"),
            "MiB disk" => (" of disk", "MiB"),
            "CPU" => ("", "% of a core"),
            _ => return None,
        };
        let left = left.trim_end_matches(" MiB");
        Some(format!("{amount} {unit}{what} wanted, {left} {unit} left"))
    };
    wanted_and_left().unwrap_or_else(|| reason.to_owned())
}

/// What keeps more machines off a server, by the name of the algorithm that refuses them.
pub(crate) fn limit(algorithm: &str) -> String {
    let name = algorithm.strip_prefix("hard-filter-").unwrap_or(algorithm);
    let words = match name {
        "capness" => "VMs with and without a CPU cap",
        "min-cpu" => "CPU",
        "min-disk" | "min-free-disk" => "disk",
        "min-ram" => "memory",
        "running" => "it is not running",
        "vlans" => "networks",
        "vm-count" => "number of VMs",
        other => return other.replace('-', " "),
    };
    words.to_owned()
}

/// Why a task failed, without the name of the operation before it.
pub(crate) fn failure(reason: &str) -> &str {
    match reason.split_once(" error: ") {
        Some((operation, rest)) if is_operation(operation) => rest,
        _ => reason,
    }
}

fn is_operation(text: &str) -> bool {
    let name = text.strip_prefix("vmadm.");
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

/// The name of a job's step.
pub(crate) fn job_step(name: &str) -> String {
    name.strip_prefix("cnapi.").map_or_else(|| name.to_owned(), |name| name.replace('_', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_name_what_is_wanted_and_what_is_left() {
        for (reason, want) in [
            (
                "VM's calculated 66560 RAM is less than server's spare -18953",
                "66560 MiB of memory wanted, -18953 MiB left",
            ),
            (
                "VM's calculated 10240 MiB disk is more than server's spare 512 MiB",
                "10240 MiB of disk wanted, 512 MiB left",
            ),
            (
                "VM's calculated 100 CPU is less than server's spare 12.5",
                "100 % of a core wanted, 12.5 % of a core left",
            ),
            (
                "Server must have one of the NIC Tags: a, b",
                "it has no network a, b; `muster server get` lists its networks",
            ),
            ("Server is not running", "Server is not running"),
            (
                "VM's calculated age is less than server's spare 1",
                "VM's calculated age is less than server's spare 1",
            ),
        ] {
            assert_eq!(removal(reason), want);
        }
    }

    #[test]
    fn names_of_tools_are_left_out() {
        assert_eq!(
            failure("vmadm.start error: VM x is already 'running'"),
            "VM x is already 'running'"
        );
        assert_eq!(failure("vmadm.roll_back error: error: 1"), "error: 1");
        assert_eq!(failure("read vmadm.x error: y"), "read vmadm.x error: y");
        assert_eq!(job_step("cnapi.send_reboot_message"), "send reboot message");
        assert_eq!(job_step("drain_vms"), "drain_vms");
        assert_eq!(step("Servers that run"), "Servers that run");
        assert_eq!((&*limit("hard-filter-min-ram"), &*limit("hard-filter-x-y")), ("memory", "x y"));
    }
}
