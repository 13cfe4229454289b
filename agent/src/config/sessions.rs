//! `sessions`: ports to containers.

use std::net::{IpAddr, Ipv4Addr};

use muster_shared::config::{Check, Problems};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Ports that are opened for one client each: programs, files and figures of containers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SessionsConfig {
    /// Address on which they are opened.
    #[schema(value_type = String)]
    pub listen_ip: IpAddr,
    /// Whether a client has to send the token first that is in the answer to its request. On a
    /// loopback address nobody has to. Without it whoever is quickest has the session.
    pub auth: bool,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self { listen_ip: Ipv4Addr::LOCALHOST.into(), auth: true }
    }
}

impl Check for SessionsConfig {
    fn check(&self, problems: &mut Problems) {
        let one = !self.listen_ip.is_unspecified();
        problems.require(one, "listen_ip", "must be one address: clients are told it");
    }
}
