//! What an image's configuration says of its containers, within bounds.

use oci_spec::image::{Arch, ImageConfiguration, Os};

use super::super::RuntimeConfig;
use crate::drivers::untar::{Fault, invalid};

/// Most texts of one kind.
const MAX_TEXTS: usize = 1024;
/// Longest text, bytes; the kernel takes no longer argument.
const MAX_TEXT_BYTES: usize = 128 * 1024 - 1;
/// Most bytes of all of them.
const MAX_BYTES: usize = 1024 * 1024;

/// Whether containers of this configuration can run here.
pub(super) fn fits_here(config: &ImageConfiguration) -> bool {
    *config.os() == Os::Linux && *config.architecture() == Arch::default()
}

/// How containers are run.
pub(super) fn runtime(config: &ImageConfiguration) -> Result<RuntimeConfig, Fault> {
    let Some(said) = config.config() else { return Ok(RuntimeConfig::default()) };
    let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let texts = |texts: &Option<Vec<String>>| texts.clone().unwrap_or_default();
    let mut exposed_ports = texts(said.exposed_ports());
    exposed_ports.sort();
    let runtime = RuntimeConfig {
        entrypoint: texts(said.entrypoint()),
        cmd: texts(said.cmd()),
        env: texts(said.env()),
        working_dir: text(said.working_dir()),
        user: text(said.user()),
        stop_signal: text(said.stop_signal()),
        exposed_ports,
        labels: said.labels().clone().unwrap_or_default().into_iter().collect(),
    };
    check(&runtime)?;
    Ok(runtime)
}

fn check(runtime: &RuntimeConfig) -> Result<(), Fault> {
    let labels: Vec<&String> = runtime.labels.iter().flat_map(|(k, v)| [k, v]).collect();
    let single = [&runtime.working_dir, &runtime.user, &runtime.stop_signal];
    let all = [
        ("Entrypoint", runtime.entrypoint.iter().collect()),
        ("Cmd", runtime.cmd.iter().collect()),
        ("Env", runtime.env.iter().collect()),
        ("ExposedPorts", runtime.exposed_ports.iter().collect()),
        ("Labels", labels),
        ("WorkingDir, User or StopSignal", single.into_iter().flatten().collect::<Vec<_>>()),
    ];
    let mut bytes = 0_usize;
    for (name, texts) in &all {
        if texts.len() > 2 * MAX_TEXTS || (*name != "Labels" && texts.len() > MAX_TEXTS) {
            return invalid(format!("its {name} has more than {MAX_TEXTS} members"));
        }
        if texts.iter().any(|text| text.len() > MAX_TEXT_BYTES || text.contains('\0')) {
            return invalid(format!(
                "its {name} has a text of more than {MAX_TEXT_BYTES} bytes, or with NUL"
            ));
        }
        bytes += texts.iter().map(|text| text.len()).sum::<usize>();
    }
    if bytes > MAX_BYTES {
        return invalid(format!("its configuration has more than {MAX_BYTES} bytes of text"));
    }
    // Runtimes refuse to start a container with any other.
    if let Some(bad) = runtime.env.iter().find(|text| !matches!(text.find('='), Some(1..))) {
        return invalid(format!("{:?} of its Env is not NAME=value", &**bad));
    }
    Ok(())
}
