//! What a container is made of, as a runtime reads it: an OCI `config.json` from a VM's record and the
//! configuration of its image. Pure.

mod confinement;
mod program;
mod resources;

use std::path::{Path, PathBuf};

use muster_shared::units::MIB;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceBuilder,
    LinuxNamespaceType, Mount, MountBuilder, ProcessBuilder, RootBuilder, Spec, SpecBuilder, User,
    UserBuilder,
};

pub(super) use self::confinement::{capabilities, seccomp};
pub(super) use self::program::{Program, environment};
pub(super) use self::resources::{Offered, limits};
use super::users::Ids;
use crate::host::idmap::IdRange;
use crate::vm_record::VmRecord;

/// The version of the specification that the oldest runtime of note speaks.
const OCI_VERSION: &str = "1.0.2";
/// The files of a container's `/etc` that are made for it.
pub(super) const ETC: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// What a container is made from.
#[derive(Debug)]
pub(super) struct Input<'a> {
    pub(super) vm: &'a VmRecord,
    pub(super) program: &'a Program,
    /// Whose its first process is.
    pub(super) ids: &'a Ids,
    /// The folder that it sees as `/`.
    pub(super) root: &'a Path,
    /// Its own files of `/etc`, by name.
    pub(super) etc: Vec<(&'static str, PathBuf)>,
    /// A network namespace that is there; else it gets one without interfaces.
    pub(super) namespace: Option<&'a Path>,
    /// The host's ids that its own are; without, its own are the host's.
    pub(super) own_ids: Option<IdRange>,
    /// What it sees as `/sys`; without, its runtime mounts that.
    pub(super) devices: Option<&'a Path>,
    /// Where its control group is to be, as its runtime names places.
    pub(super) cgroup: &'a str,
    /// What the host can limit.
    pub(super) offered: Offered,
}

/// The whole of `config.json`.
pub(super) fn build(input: &Input<'_>) -> Result<Spec, OciSpecError> {
    let root = RootBuilder::default().path(input.root).readonly(false).build()?;
    let process = ProcessBuilder::default()
        .terminal(input.program.terminal)
        .user(user(input.ids)?)
        .args(input.program.argv.clone())
        .env(input.program.env.clone())
        .cwd(input.program.dir.clone())
        .capabilities(capabilities()?)
        .rlimits(Vec::new())
        .no_new_privileges(true)
        .build()?;
    let mut linux = LinuxBuilder::default();
    if let Some(ids) = input.own_ids {
        linux = linux.uid_mappings(mappings(ids)?).gid_mappings(mappings(ids)?);
    }
    let linux = linux
        .namespaces(namespaces(input.namespace, input.own_ids.is_some())?)
        .cgroups_path(input.cgroup)
        .resources(limits(input.vm, input.offered)?)
        .seccomp(seccomp()?)
        .masked_paths(confinement::masked())
        .readonly_paths(confinement::read_only())
        .build()?;
    SpecBuilder::default()
        .version(OCI_VERSION)
        .root(root)
        .process(process)
        .hostname(host_name(input.vm))
        .mounts(mounts(input)?)
        .linux(linux)
        .build()
}

pub(super) fn user(ids: &Ids) -> Result<User, OciSpecError> {
    UserBuilder::default().uid(ids.uid).gid(ids.gid).additional_gids(ids.groups.clone()).build()
}

/// At most what the kernel takes.
pub(super) fn host_name(vm: &VmRecord) -> String {
    const MOST: usize = 64;
    let uuid = vm.uuid.to_string();
    let name = vm.text("hostname").or(vm.text("alias")).unwrap_or(&uuid);
    name.chars().filter(char::is_ascii).take(MOST).collect()
}

fn mappings(ids: IdRange) -> Result<Vec<LinuxIdMapping>, OciSpecError> {
    let mapping = LinuxIdMappingBuilder::default();
    Ok(vec![mapping.host_id(ids.first).container_id(0_u32).size(ids.count).build()?])
}

fn namespaces(
    network: Option<&Path>,
    has_own_ids: bool,
) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, User, Uts};
    let own = |kind| LinuxNamespaceBuilder::default().typ(kind).build();
    let mut all =
        [Pid, Ipc, Uts, Mount, Cgroup].map(own).into_iter().collect::<Result<Vec<_>, _>>()?;
    let builder = LinuxNamespaceBuilder::default().typ(Network);
    all.push(match network {
        Some(path) => builder.path(path).build()?,
        None => builder.build()?,
    });
    if has_own_ids {
        all.push(own(User)?);
    }
    Ok(all)
}

fn mounts(input: &Input<'_>) -> Result<Vec<Mount>, OciSpecError> {
    let mount = |at: &str, kind: &str, from: &Path, options: &[&str]| {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let mount = MountBuilder::default().destination(at).typ(kind).source(from);
        mount.options(options).build()
    };
    let kernel = |at: &str, kind: &str, options: &[&str]| mount(at, kind, Path::new(kind), options);
    const PLAIN: [&str; 3] = ["nosuid", "noexec", "nodev"];
    let mut all = vec![
        kernel("/proc", "proc", &PLAIN)?,
        kernel("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"])?,
        kernel(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        )?,
        kernel("/dev/shm", "tmpfs", &[&PLAIN[..], &["mode=1777", "size=65536k"]].concat())?,
        kernel("/dev/mqueue", "mqueue", &PLAIN)?,
        match input.devices {
            Some(devices) => {
                mount("/sys", "bind", devices, &[&["bind", "ro"], &PLAIN[..]].concat())?
            }
            None => kernel("/sys", "sysfs", &[&PLAIN[..], &["ro"]].concat())?,
        },
        kernel("/sys/fs/cgroup", "cgroup", &[&PLAIN[..], &["relatime", "ro"]].concat())?,
    ];
    if let Some(mib) = input.vm.number("tmpfs").filter(|mib| *mib > 0) {
        let most = input.vm.number("max_physical_memory").unwrap_or(mib);
        let size = format!("size={}", mib.min(most).saturating_mul(MIB));
        all.push(kernel("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777", &size])?);
    }
    for (name, from) in &input.etc {
        let at = format!("/etc/{name}");
        all.push(mount(&at, "bind", from, &["bind", "ro", "nosuid", "nodev", "noexec"])?);
    }
    Ok(all)
}

/// The content of a file of [`ETC`].
pub(super) fn etc(vm: &VmRecord, name: &str) -> String {
    let host = host_name(vm);
    match name {
        "hostname" => format!("{host}\n"),
        "hosts" => hosts(vm, &host),
        _ => resolvers(vm),
    }
}

fn hosts(vm: &VmRecord, host: &str) -> String {
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    let of_nics = vm.list("nics").iter().filter_map(|nic| nic.get("ips")?.as_array()).flatten();
    let address = |ip: &str| ip.split('/').next()?.parse::<std::net::IpAddr>().ok();
    let addresses = of_nics.filter_map(|ip| address(ip.as_str()?));
    let names = match vm.text("dns_domain") {
        Some(domain) => format!("{host}.{domain} {host}"),
        None => host.to_owned(),
    };
    for address in addresses {
        text += &format!("{address}\t{names}\n");
    }
    text
}

fn resolvers(vm: &VmRecord) -> String {
    let mut text = String::new();
    if let Some(domain) = vm.text("dns_domain") {
        text += &format!("search {domain}\n");
    }
    let servers = vm.list("resolvers").iter().filter_map(|server| server.as_str());
    for server in servers.filter_map(|server| server.parse::<std::net::IpAddr>().ok()) {
        text += &format!("nameserver {server}\n");
    }
    text
}

#[cfg(test)]
mod tests;
