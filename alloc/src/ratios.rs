//! Overprovisioning ratios: of a server, a package or the policy.

/// Overprovisioning ratios. `None` where the server or package has none (or 0).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratios {
    /// CPU.
    pub cpu: Option<f64>,
    /// RAM.
    pub ram: Option<f64>,
    /// Disk.
    pub disk: Option<f64>,
    /// Disk throughput.
    pub io: Option<f64>,
    /// Network throughput.
    pub net: Option<f64>,
}

impl Ratios {
    /// What a server without ratios of its own has.
    pub const DEFAULT: Self =
        Self { cpu: Some(4.0), ram: Some(1.0), disk: Some(1.0), io: None, net: None };
}

/// Where a server's ratios come from when its unreserved resources are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RatioPolicy {
    /// The server's own.
    Own,
    /// The same for all.
    Forced(Ratios),
}
