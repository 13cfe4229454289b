//! What an image of containers holds beside its files: how a container of it is run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_spec::image::Arch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An image of containers that is here whole.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerImage {
    /// Its IMGAPI manifest.
    pub manifest: Value,
    /// The folder that is the root of its files; in a pool of ZFS, where roots are clones, there is nothing
    /// in it. Never written to: containers lay their own over it, and whoever keeps those names the image in
    /// [`Storage::bases`](crate::drivers::storage::Storage::bases) for as long.
    pub root: PathBuf,
    /// How a container of it is run.
    pub runtime: RuntimeConfig,
}

/// How an image wants its containers to be run, as the OCI image specification means it. Its texts
/// are what the image's author wrote: bounded, and without NUL, but not to be trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeConfig {
    /// What runs; `cmd` are its arguments then.
    pub entrypoint: Vec<String>,
    /// Arguments of `entrypoint`, or without one what runs.
    pub cmd: Vec<String>,
    /// Environment, each `NAME=value`.
    pub env: Vec<String>,
    /// Folder that the process starts in; none: `/`.
    pub working_dir: Option<String>,
    /// `user`, `uid`, `user:group`, `uid:gid` and mixtures of them, to be looked up in the container's
    /// own `/etc/passwd` and `/etc/group`; none: root.
    pub user: Option<String>,
    /// Signal that asks it to stop, e.g. `SIGQUIT` or `3`; none: `SIGTERM`.
    pub stop_signal: Option<String>,
    /// Ports on which it listens, each `port/tcp`, `port/udp` or `port`.
    pub exposed_ports: Vec<String>,
    /// For people and other programs.
    pub labels: BTreeMap<String, String>,
}

impl RuntimeConfig {
    /// The configuration of an image that is run so and has one layer, of this checksum without
    /// compression.
    #[must_use]
    pub fn configuration(&self, layer_sha256: &str) -> Value {
        let ports = self.exposed_ports.iter().map(|port| (port.clone(), json!({})));
        json!({
            "architecture": Arch::default().to_string(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.cmd,
                "Env": self.env,
                "WorkingDir": self.working_dir.as_deref().unwrap_or_default(),
                "User": self.user.as_deref().unwrap_or_default(),
                "StopSignal": self.stop_signal.as_deref().unwrap_or_default(),
                "ExposedPorts": ports.collect::<serde_json::Map<_, _>>(),
                "Labels": self.labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_sha256}")] },
        })
    }
}
