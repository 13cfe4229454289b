//! The machine itself: processes, `/proc` and `/sys`.
//!
//! Nothing outside this module starts a process. Drivers get an [`Exec`] and never know whether it
//! is the machine's ([`SystemExec`]) or a scripted one ([`FakeExec`]).

mod ethernet;
mod exec;
mod fake;
mod folder_watch;
mod piped;
mod presence;
mod process;
pub mod procfs;
mod syscalls;
mod tap;
pub mod threads;

pub use ethernet::EthernetListener;
pub use exec::{
    Command, Detached, Exec, ExecError, Exit, Output, Scope, SharedExec, Spawned, SystemExec,
};
pub use fake::FakeExec;
pub use folder_watch::FolderWatch;
pub use piped::{Piped, RunningChild};
pub use presence::Presence;
pub use process::{ProcessId, user_has_processes};
pub use tap::Tap;
