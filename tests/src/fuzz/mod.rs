//! What anybody may send, as functions of bytes: each target feeds its input to the code that reads
//! such things from outside, and panics where that breaks a promise. `make fuzz` runs them under a
//! fuzzer (`fuzz/`); `make test` runs every input of `tests/corpora/` and some that are near them.

pub mod allocate;
pub mod archive;
pub mod config;
pub mod corpus;
pub mod export;
pub mod guest_agent;
pub mod http;
pub mod image_manifest;
pub mod lldp;
pub mod mdata;
pub mod mutate;
pub mod payload;
pub mod qcow2;
pub mod wire;

/// Something that reads what others send.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of its corpus and of its program.
    pub name: &'static str,
    /// Reads one input.
    ///
    /// Panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Longest input that shows anything, bytes.
    pub max_bytes: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "allocate", run: allocate::run, max_bytes: 8 * 1024 },
    Target { name: "archive", run: archive::run, max_bytes: 16 * 1024 },
    Target { name: "config", run: config::run, max_bytes: 4 * 1024 },
    Target { name: "export", run: export::run, max_bytes: 8 * 1024 },
    Target { name: "guest_agent", run: guest_agent::run, max_bytes: 8 * 1024 },
    Target { name: "http", run: http::run, max_bytes: 8 * 1024 },
    Target { name: "image_manifest", run: image_manifest::run, max_bytes: 4 * 1024 },
    Target { name: "lldp", run: lldp::run, max_bytes: 1600 },
    Target { name: "mdata", run: mdata::run, max_bytes: 8 * 1024 },
    Target { name: "payload", run: payload::run, max_bytes: 8 * 1024 },
    Target { name: "qcow2", run: qcow2::run, max_bytes: 512 },
    Target { name: "wire", run: wire::run, max_bytes: 8 * 1024 },
];
