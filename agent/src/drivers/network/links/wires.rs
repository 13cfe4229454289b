//! What is done to the host's own interfaces: they come into bridges and leave them again.

use std::fmt;
use std::net::IpAddr;

use async_trait::async_trait;

use super::Links;
use crate::drivers::DriverError;

/// A bridge that is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewBridge<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its name until it is complete. One of this name is left of an earlier attempt.
    pub draft: &'a str,
    /// What is written on it.
    pub alias: &'a str,
    /// Its address; `None`: the kernel chooses.
    pub mac: Option<&'a str>,
}

/// Changes how the host itself is connected.
#[async_trait]
pub trait Wires: Links {
    /// Makes a bridge and switches it on; it keeps VLANs apart if the kernel can do that. Under its
    /// name it never exists without its alias.
    ///
    /// # Errors
    /// It could not be made, e.g. because there is a link of that name.
    async fn make_bridge(&self, new: NewBridge<'_>) -> Result<(), DriverError>;

    /// Gives a link a further name.
    ///
    /// # Errors
    /// It could not be given, e.g. because another link has it.
    async fn add_name(&self, link: u32, name: &str) -> Result<(), DriverError>;

    /// Takes a further name of a link away.
    ///
    /// # Errors
    /// It could not be taken away.
    async fn remove_name(&self, link: u32, name: &str) -> Result<(), DriverError>;

    /// Makes an interface a port of a bridge, in all VLANs, and switches it on.
    ///
    /// # Errors
    /// It could not be changed.
    async fn join(&self, nic: u32, bridge: &super::Link) -> Result<(), DriverError>;

    /// Takes an interface out of its bridge.
    ///
    /// # Errors
    /// It could not be changed.
    async fn leave(&self, nic: u32) -> Result<(), DriverError>;

    /// Addresses of an interface that end with a lease unless somebody renews it there.
    ///
    /// # Errors
    /// They could not be read.
    async fn leased(&self, nic: u32) -> Result<Vec<IpAddr>, DriverError>;

    /// Moves lasting addresses of the host from one link to another, with the routes over it that
    /// somebody set. May be cut off and repeated: nothing is taken away before it is at the other
    /// link.
    ///
    /// # Errors
    /// They could not be moved; some may have been.
    async fn hand_over(&self, from: u32, to: u32) -> Result<(), DriverError>;
}

impl fmt::Display for super::Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
