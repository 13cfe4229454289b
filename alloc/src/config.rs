//! The policy: which algorithms run and with what numbers.
//!
//! Keys and texts are the reference's (`dapi.allocationDescription`, `dapi.changeDefaults`), so
//! that a SAPI metadata object can be taken over as it is.

use serde_json::{Map, Value, json};

use crate::expr::{Expr, ExprError};
use crate::num::{nonzero, num, truthy};
use crate::predicate::{BadPredicate, Predicate};
use crate::validate::{is_stamp, is_uuid};

/// Which host operating systems may take a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostOs {
    /// Any: `hard-filter-os` keeps every server. What a fleet of Linux hosts needs.
    #[default]
    Any,
    /// The reference's rule: SunOS, unless an `lx` VM has an `lxd` image.
    Reference,
}

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

/// The weights of the scorers; 0 switches one off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) current_platform: f64,
    pub(crate) next_reboot: f64,
    pub(crate) num_owner_zones: f64,
    pub(crate) uniform_random: f64,
    pub(crate) unreserved_disk: f64,
    pub(crate) unreserved_ram: f64,
}

/// Earliest platforms for features of a request.
#[derive(Clone, Debug)]
pub(crate) struct FeaturePlatforms {
    pub(crate) docker: Option<String>,
    pub(crate) docker_volumes: Option<String>,
    pub(crate) other_volumes: Option<String>,
    pub(crate) volapi_nfs_v2: Option<String>,
    pub(crate) flexible_disk: Option<String>,
}

/// One entry of `filter_owner_server`.
#[derive(Clone, Debug)]
pub(crate) struct OwnerFilter {
    pub(crate) owner: String,
    pub(crate) text: String,
    pub(crate) predicate: Predicate,
}

/// A checked policy.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) disable_override_overprovisioning: bool,
    pub(crate) filter_capness: bool,
    pub(crate) filter_headnode: bool,
    pub(crate) filter_min_resources: bool,
    pub(crate) filter_large_servers: bool,
    pub(crate) vm_limit: f64,
    pub(crate) forced: Ratios,
    /// As configured (for the reason's text) and as a number, MiB.
    pub(crate) minimum_free_disk: Option<(String, f64)>,
    pub(crate) server_spread: Option<String>,
    pub(crate) weights: Weights,
    pub(crate) platforms: FeaturePlatforms,
    pub(crate) owner_filters: Option<Vec<OwnerFilter>>,
    pub(crate) host_os: HostOs,
    pub(crate) expr: Expr,
    pub(crate) first_wins: bool,
    source: Value,
}

/// A policy that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The expression is bad.
    #[error(transparent)]
    Expression(#[from] ExprError),
    /// `changeDefaults` is not an object.
    #[error("Defaults object is an invalid type")]
    Type,
    /// A switch is not a boolean.
    #[error("Defaults {0} is not boolean")]
    NotBoolean(&'static str),
    /// A limit, ratio or weight is not a number.
    #[error("Defaults {0} is not a number")]
    NotNumber(&'static str),
    /// A platform is not of the form `20130101T000000Z`.
    #[error("Defaults {0} is not an ISO UTC timestamp")]
    NotStamp(&'static str),
    /// `filter_owner_server` is not an object.
    #[error("Defaults filter_owner_server is an invalid type")]
    OwnersType,
    /// `filter_owner_server` has a key that is not an owner.
    #[error("Defaults filter_owner_server keys are not all UUIDs")]
    OwnersKeys,
    /// A predicate of `filter_owner_server` is outside the supported language.
    #[error("Defaults filter_owner_server of owner {owner} can't be used")]
    OwnersPredicate {
        /// Whose predicate.
        owner: String,
        /// What is wrong with it.
        #[source]
        cause: BadPredicate,
    },
}

impl ConfigError {
    /// The default that is at fault; `None` for the expression or all defaults.
    #[must_use]
    pub fn default_at_fault(&self) -> Option<&str> {
        match self {
            Self::Expression(_) | Self::Type => None,
            Self::NotBoolean(key) | Self::NotNumber(key) | Self::NotStamp(key) => Some(key),
            Self::OwnersType | Self::OwnersKeys | Self::OwnersPredicate { .. } => {
                Some("filter_owner_server")
            }
        }
    }
}

/// Most VMs on a server, unless configured.
const VM_LIMIT: f64 = 224.0;

const SWITCHES: [&str; 5] = [
    "disable_override_overprovisioning",
    "filter_headnode",
    "filter_min_resources",
    "filter_large_servers",
    "filter_capness",
];

const NUMBERS: [&str; 10] = [
    "filter_vm_limit",
    "overprovision_ratio_cpu",
    "overprovision_ratio_ram",
    "overprovision_ratio_disk",
    "weight_current_platform",
    "weight_next_reboot",
    "weight_num_owner_zones",
    "weight_uniform_random",
    "weight_unreserved_disk",
    "weight_unreserved_ram",
];

const STAMPS: [&str; 2] = ["filter_docker_min_platform", "filter_flexible_disk_min_platform"];

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

/// The reference's defaults, before `changeDefaults`.
#[must_use]
pub fn default_table() -> Map<String, Value> {
    let Value::Object(table) = json!({
        "disable_override_overprovisioning": false,
        "filter_capness": true,
        "filter_headnode": true,
        "filter_min_resources": true,
        "filter_large_servers": true,
        "weight_current_platform": 1,
        "weight_next_reboot": 0.5,
        "weight_num_owner_zones": 0,
        "weight_uniform_random": 0.5,
        "weight_unreserved_disk": 1,
        "weight_unreserved_ram": 2,
        "filter_docker_nfs_volumes_automount_min_platform": "20160613T123039Z",
        "filter_non_docker_nfs_volumes_automount_min_platform": "20170925T211846Z",
        "filter_volapi_nfs_v2_min_platform": "20200213T123742Z",
        "filter_flexible_disk_min_platform": "20181206T190647Z",
    }) else {
        return Map::new();
    };
    table
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
        let Value::Object(changes) = changes else { return Err(ConfigError::Type) };
        let mut table = default_table();
        for (key, value) in changes {
            match value {
                Value::Null => {}
                Value::String(text) if text.is_empty() => {}
                Value::String(text) if text == "true" => {
                    drop(table.insert(key.clone(), true.into()))
                }
                Value::String(text) if text == "false" => {
                    drop(table.insert(key.clone(), false.into()));
                }
                other => drop(table.insert(key.clone(), other.clone())),
            }
        }
        Self::check(&table)?;
        Self::build(expression, &table, expr, host_os)
    }

    fn check(table: &Map<String, Value>) -> Result<(), ConfigError> {
        for key in SWITCHES {
            if table.get(key).is_some_and(|value| !value.is_boolean()) {
                return Err(ConfigError::NotBoolean(key));
            }
        }
        for key in NUMBERS {
            if table.get(key).is_some_and(|value| num(value).is_nan()) {
                return Err(ConfigError::NotNumber(key));
            }
        }
        for key in STAMPS {
            if table.get(key).is_some_and(|value| !value.as_str().is_some_and(is_stamp)) {
                return Err(ConfigError::NotStamp(key));
            }
        }
        match table.get("filter_owner_server") {
            value if !truthy(value) => Ok(()),
            Some(Value::Object(owners)) if owners.keys().all(|key| is_uuid(key)) => Ok(()),
            Some(Value::Object(_)) => Err(ConfigError::OwnersKeys),
            _ => Err(ConfigError::OwnersType),
        }
    }

    fn build(
        expression: &Value,
        table: &Map<String, Value>,
        expr: Expr,
        host_os: HostOs,
    ) -> Result<Self, ConfigError> {
        let switch = |key: &str| truthy(table.get(key));
        let number = |key: &str| table.get(key).and_then(|value| nonzero(num(value)));
        let weight = |key: &str| number(key).unwrap_or(0.0);
        let text = |key: &str| table.get(key).and_then(Value::as_str).map(str::to_owned);
        let owner_filters = match table.get("filter_owner_server") {
            Some(Value::Object(owners)) => {
                Some(owners.iter().map(owner_filter).collect::<Result<_, _>>()?)
            }
            _ => None,
        };
        let named = |prefix: &'static str| {
            move |a: &crate::algorithms::Algorithm| a.name.starts_with(prefix)
        };
        let first_wins =
            (expr.any(&named("sort-")) || expr.any(&named("pick-"))) && !expr.any(&named("score-"));
        Ok(Self {
            disable_override_overprovisioning: switch("disable_override_overprovisioning"),
            filter_capness: switch("filter_capness"),
            filter_headnode: switch("filter_headnode"),
            filter_min_resources: switch("filter_min_resources"),
            filter_large_servers: switch("filter_large_servers"),
            vm_limit: number("filter_vm_limit").unwrap_or(VM_LIMIT),
            forced: Ratios {
                cpu: number("overprovision_ratio_cpu").or(Ratios::DEFAULT.cpu),
                ram: number("overprovision_ratio_ram").or(Ratios::DEFAULT.ram),
                disk: number("overprovision_ratio_disk").or(Ratios::DEFAULT.disk),
                io: None,
                net: None,
            },
            minimum_free_disk: table
                .get("minimum_free_disk")
                .filter(|value| value.is_number() || truthy(Some(value)))
                .map(|value| (crate::num::display(Some(value)), num(value))),
            server_spread: text("server_spread"),
            weights: Weights {
                current_platform: weight("weight_current_platform"),
                next_reboot: weight("weight_next_reboot"),
                num_owner_zones: weight("weight_num_owner_zones"),
                uniform_random: weight("weight_uniform_random"),
                unreserved_disk: weight("weight_unreserved_disk"),
                unreserved_ram: weight("weight_unreserved_ram"),
            },
            platforms: FeaturePlatforms {
                docker: text("filter_docker_min_platform"),
                docker_volumes: text("filter_docker_nfs_volumes_automount_min_platform"),
                other_volumes: text("filter_non_docker_nfs_volumes_automount_min_platform"),
                volapi_nfs_v2: text("filter_volapi_nfs_v2_min_platform"),
                flexible_disk: text("filter_flexible_disk_min_platform"),
            },
            owner_filters,
            host_os,
            expr,
            first_wins,
            source: json!({ "expression": expression, "defaults": table }),
        })
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
        Self::new(expression, &Value::Object(table), self.host_os)
    }

    /// Which host operating systems may take a VM.
    #[must_use]
    pub fn host_os(&self) -> HostOs {
        self.host_os
    }

    /// Whether some algorithm wants to know what earlier requests chose ([`crate::Recent`]).
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.expr.any(&|a| a.name.contains("-recent-"))
    }

    /// The members of a server's record that predicates look at.
    pub(crate) fn predicate_members(&self) -> impl Iterator<Item = &str> {
        let filters = self.owner_filters.iter().flatten();
        filters.flat_map(|filter| filter.predicate.members())
    }

    /// The whole policy as JSON, defaults filled in: what decides, for a decision's record.
    #[must_use]
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// The ratios with which `calculate-server-unreserved` will work under this policy; a
    /// [`crate::Fleet`] precomputes its sums with them.
    #[must_use]
    pub fn ratio_policy(&self) -> RatioPolicy {
        let forces = self.expr.any(&|a| a.name == "override-overprovisioning");
        if forces && !self.disable_override_overprovisioning {
            RatioPolicy::Forced(self.forced)
        } else {
            RatioPolicy::Own
        }
    }
}

fn owner_filter((owner, text): (&String, &Value)) -> Result<OwnerFilter, ConfigError> {
    let bad = |cause| ConfigError::OwnersPredicate { owner: owner.clone(), cause };
    let text = text.as_str().ok_or_else(|| bad(BadPredicate::NotText))?;
    let predicate = Predicate::parse(text).map_err(bad)?;
    Ok(OwnerFilter { owner: owner.clone(), text: text.to_owned(), predicate })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(changes: &Value, want: &str) {
        let error = Config::new(&default_expression(true), changes, HostOs::Any)
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
