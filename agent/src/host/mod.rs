//! The machine itself: processes, `/proc` and `/sys`.
//!
//! Nothing outside this module starts a process. Drivers get an [`Exec`] and never know whether it
//! is the machine's ([`SystemExec`]) or a scripted one ([`FakeExec`]).

mod cgroups;
mod ethernet;
mod exec;
mod fake;
mod folder_watch;
mod gate;
pub mod idmap;
pub mod memory;
pub mod mounts;
pub mod netns;
mod piped;
mod presence;
mod process;
pub mod procfs;
pub mod reaper;
mod signals;
mod syscalls;
mod tap;
pub mod threads;
mod units;
mod wired;
pub mod zvol;

pub use cgroups::{
    BlockCounter, Blocks, Cgroups, CpuCounters, GuestCounters, Hierarchy, LinkCounters,
    NetworkCounters,
};
pub use ethernet::EthernetListener;
pub use exec::{Command, Detached, Exec, ExecError, Exit, Output, SharedExec, Spawned, SystemExec};
pub use fake::FakeExec;
pub use folder_watch::FolderWatch;
pub use piped::{Piped, RunningChild};
pub use presence::Presence;
pub use process::{ProcessId, user_has_processes};
pub use signals::signal_number;
pub use tap::Tap;
pub use units::{Scope, UnitError, UnitProperty, UnitValue};
pub use wired::{Terminal, TerminalEnd, TerminalSocket, Wired, input_pipe, output_pipe};
