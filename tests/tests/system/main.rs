//! Muster as a node runs it: installed under systemd, with its units as they are in the tree. Each
//! test has a machine of its own, of `make test-system`.

mod adoption;
mod cloud;
mod limits;
mod nic_tags;
mod power;
mod service;
mod shutdown;
mod store;
mod vlan;
