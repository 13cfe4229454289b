//! Muster on a node with OpenZFS: real pools of virtual disks. Each test has a machine of its own, of
//! `make test-zfs`.

mod conformance;
mod crash;
mod endpoints;
mod faults;
mod lifecycle;
mod machines;
mod pools;
mod setup;
