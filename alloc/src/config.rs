//! The policy: which algorithms run and with what numbers.
//!
//! Keys and texts are the reference's (`dapi.allocationDescription`, `dapi.changeDefaults`), so
//! that a SAPI metadata object can be taken over as it is.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::algorithm::{Algorithm, Kind};
use crate::algorithms::OVERRIDE_OVERPROVISIONING;
use crate::expr::{Expr, ExprError};
use crate::figures::{MEMORY_AVAILABLE, ZONE_QUOTA_USED};
use crate::ratios::RatioPolicy;
use crate::schema::FIGURES;
use crate::settings::{BadDefault, HostOs, Settings, changed_table};

/// A checked policy.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) settings: Settings,
    pub(crate) expr: Expr,
    /// The first server wins that is left, not the one with the highest score.
    pub(crate) first_wins: bool,
    source: Value,
    hash: String,
}

/// A policy that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The expression is bad.
    #[error(transparent)]
    Expression(#[from] ExprError),
    /// A default is bad, or all of them.
    #[error(transparent)]
    Default(#[from] BadDefault),
}

impl ConfigError {
    /// The default that is at fault; `None` for the expression or all defaults.
    #[must_use]
    pub fn default_at_fault(&self) -> Option<&str> {
        match self {
            Self::Expression(_) => None,
            Self::Default(error) => error.name(),
        }
    }
}

/// The reference's default expression. `min_disk` adds the disk filter, which the reference has
/// behind `ALLOC_FILTER_MIN_DISK`.
#[must_use]
pub fn default_expression(min_disk: bool) -> Value {
    let mut expr = json!([
        "pipe",
        "hard-filter-setup",
        "hard-filter-running",
        "hard-filter-os",
        "hard-filter-invalid-servers",
        "hard-filter-force-failure",
        "hard-filter-virtual-servers",
        "hard-filter-zpool-encryption",
        "hard-filter-volumes-from",
        "hard-filter-reserved",
        "hard-filter-min-free-disk",
        "hard-filter-vlans",
        "hard-filter-platform-versions",
        "hard-filter-feature-min-platform",
        "hard-filter-traits",
        "hard-filter-headnode",
        "override-overprovisioning",
        "hard-filter-overprovision-ratios",
        "load-server-vms",
        "calculate-ticketed-vms",
        "hard-filter-capness",
        "hard-filter-vm-count",
        "hard-filter-hvm",
        "calculate-server-unreserved",
        "hard-filter-min-ram",
        "hard-filter-min-cpu",
        "hard-filter-min-disk",
        "calculate-affinity",
        "hard-filter-locality-hints",
        "hard-filter-owners-servers",
        ["or", "hard-filter-reservoir", "identity"],
        ["or", "hard-filter-large-servers", "identity"],
        "soft-filter-locality-hints",
        "score-unreserved-ram",
        "score-unreserved-disk",
        "score-num-owner-zones",
        "score-current-platform",
        "score-next-reboot",
        "score-uniform-random"
    ]);
    if let (false, Value::Array(elements)) = (min_disk, &mut expr) {
        elements.retain(|element| element != "hard-filter-min-disk");
    }
    expr
}

/// The expression for VMs that are made, rather than asked about: with the filters of what the
/// reference leaves to others or does not know.
#[must_use]
pub fn create_expression() -> Value {
    let mut expr = default_expression(true);
    if let Value::Array(elements) = &mut expr {
        let after = elements.iter().position(|element| element == "hard-filter-hvm");
        elements.insert(
            after.map_or(elements.len(), |place| place + 1),
            json!("hard-filter-oci-runtime"),
        );
    }
    expr
}

impl Config {
    /// The reference's pipeline and defaults.
    #[must_use]
    pub fn reference_default(host_os: HostOs) -> Self {
        Self::new(&default_expression(false), &json!({}), host_os)
            .expect("the built-in policy is valid; a test checks it")
    }

    /// Checks a policy: `expression` in the form of `dapi.allocationDescription`, `changes` in the
    /// form of `dapi.changeDefaults` (text, booleans or numbers; empty text and null mean the
    /// default).
    ///
    /// # Errors
    /// The first fault, with the reference's text.
    pub fn new(expression: &Value, changes: &Value, host_os: HostOs) -> Result<Self, ConfigError> {
        let expr = Expr::parse(expression)?;
        let table = changed_table(changes)?;
        let settings = Settings::read(&table, host_os)?;
        // Without scores, the order decides that a `sort-` or `pick-` made.
        let any = |kind| expr.any(&|algorithm| algorithm.kind == kind);
        let first_wins = any(Kind::Sorter) && !any(Kind::Scorer);
        let source = json!({ "expression": expression, "defaults": table });
        let hash = hex::encode(Sha256::digest(source.to_string()));
        Ok(Self { settings, expr, first_wins, source, hash })
    }

    /// This policy with another expression or with some defaults changed.
    ///
    /// # Errors
    /// As [`Config::new`].
    pub fn changed(
        &self,
        expression: Option<&Value>,
        changes: &Map<String, Value>,
    ) -> Result<Self, ConfigError> {
        let mut table = self.source["defaults"].as_object().cloned().unwrap_or_default();
        table.extend(changes.iter().map(|(key, value)| (key.clone(), value.clone())));
        let expression = expression.unwrap_or(&self.source["expression"]);
        Self::new(expression, &Value::Object(table), self.settings.host_os)
    }

    /// Which host operating systems may take a VM.
    #[must_use]
    pub fn host_os(&self) -> HostOs {
        self.settings.host_os
    }

    /// Whether some algorithm wants to know what earlier requests chose ([`crate::Recent`]).
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.expr.any(&|algorithm| algorithm.remembers)
    }

    /// The members of servers' records by which algorithms or the policy's own conditions may
    /// judge, as far as these are sizes. What is free at the moment only has to be there.
    #[must_use]
    pub fn figures_read(&self) -> BTreeSet<String> {
        let all = FIGURES.iter().map(|(name, _)| *name).chain([ZONE_QUOTA_USED]);
        let asked: BTreeSet<&str> = self.settings.predicate_members().collect();
        let read = |name: &&str| *name != MEMORY_AVAILABLE || asked.contains(*name);
        all.filter(read).map(str::to_owned).collect()
    }

    /// The members of servers' records at which the policy's own conditions look.
    #[must_use]
    pub fn members_read(&self) -> BTreeSet<String> {
        self.settings.predicate_members().map(str::to_owned).collect()
    }

    /// The whole policy as JSON, defaults filled in: what decides, for a decision's record.
    #[must_use]
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// SHA-256 of [`Config::source`], hexadecimal.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The ratios with which `calculate-server-unreserved` will work under this policy; a
    /// [`crate::Fleet`] precomputes its sums with them.
    #[must_use]
    pub fn ratio_policy(&self) -> RatioPolicy {
        let forces = |a: &Algorithm| std::ptr::eq(a, &raw const OVERRIDE_OVERPROVISIONING);
        if self.expr.any(&forces) && !self.settings.disable_override_overprovisioning {
            RatioPolicy::Forced(self.settings.forced)
        } else {
            RatioPolicy::Own
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(changes: &Value, want: &str) {
        let error = Config::new(&create_expression(), changes, HostOs::Any)
            .expect_err("the defaults are bad");
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn bad_defaults_are_named() {
        check(&json!([]), "Defaults object is an invalid type");
        check(&json!({"filter_headnode": "yes"}), "Defaults filter_headnode is not boolean");
        check(&json!({"filter_capness": 0}), "Defaults filter_capness is not boolean");
        check(&json!({"filter_vm_limit": "many"}), "Defaults filter_vm_limit is not a number");
        check(
            &json!({"filter_docker_min_platform": "2017"}),
            "Defaults filter_docker_min_platform is not an ISO UTC timestamp",
        );
        check(
            &json!({"server_spread": "wide"}),
            "Defaults server_spread is none of min-ram, max-ram, random, min-owner",
        );
        check(
            &json!({"filter_owner_server": [1]}),
            "Defaults filter_owner_server is an invalid type",
        );
        check(
            &json!({"filter_owner_server": {"me": "true"}}),
            "Defaults filter_owner_server keys are not all UUIDs",
        );
    }

    #[test]
    fn text_and_real_values_override() {
        let changes = json!({
            "weight_unreserved_ram": "0", "weight_next_reboot": 0, "filter_headnode": "false",
            "filter_capness": false, "weight_unreserved_disk": "", "filter_vm_limit": "9",
        });
        let config = Config::new(&default_expression(false), &changes, HostOs::Any)
            .expect("the defaults are good");
        let config = config.settings;
        assert_eq!(config.weights.unreserved_ram, 0.0);
        assert_eq!(config.weights.next_reboot, 0.0);
        assert_eq!(config.weights.unreserved_disk, 1.0);
        assert_eq!(config.vm_limit, 9.0);
        assert!(!config.filter_headnode && !config.filter_capness && config.filter_large_servers);
    }

    #[test]
    fn built_in_policy_is_valid() {
        assert!(!Config::reference_default(HostOs::Any).first_wins);
    }
}
