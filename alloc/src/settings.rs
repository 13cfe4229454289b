//! The figures and switches of a policy, "defaults" in the reference (`dapi.changeDefaults`).

use serde_json::{Map, Value, json};

use crate::num::{display, nonzero, num, truthy};
use crate::predicate::{BadPredicate, Predicate};
use crate::ratios::Ratios;
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

/// The checked defaults of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
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
}

/// A default that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDefault {
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
    /// `server_spread` is no way to spread.
    #[error("Defaults server_spread is none of {}", SPREADS.join(", "))]
    Spread,
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

impl BadDefault {
    /// The default that is at fault; `None` if all of them are no object.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Type => None,
            Self::Spread => Some("server_spread"),
            Self::NotBoolean(key) | Self::NotNumber(key) | Self::NotStamp(key) => Some(key),
            Self::OwnersType | Self::OwnersKeys | Self::OwnersPredicate { .. } => {
                Some("filter_owner_server")
            }
        }
    }
}

/// Most VMs on a server, unless configured.
const VM_LIMIT: f64 = 224.0;

/// Ways to spread VMs over servers, as packages and policies name them.
pub(crate) const SPREADS: [&str; 4] = ["min-ram", "max-ram", "random", "min-owner"];

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

/// The reference's defaults, before `changeDefaults`.
fn default_table() -> Map<String, Value> {
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

/// The defaults with changes laid over them.
///
/// # Errors
/// The first that is of the wrong type.
pub(crate) fn changed_table(changes: &Value) -> Result<Map<String, Value>, BadDefault> {
    let Value::Object(changes) = changes else { return Err(BadDefault::Type) };
    let mut table = default_table();
    for (key, value) in changes {
        match value {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::String(text) if text == "true" => drop(table.insert(key.clone(), true.into())),
            Value::String(text) if text == "false" => {
                drop(table.insert(key.clone(), false.into()));
            }
            other => drop(table.insert(key.clone(), other.clone())),
        }
    }
    check(&table)?;
    Ok(table)
}

/// Checks the types of all defaults.
fn check(table: &Map<String, Value>) -> Result<(), BadDefault> {
    for key in SWITCHES {
        if table.get(key).is_some_and(|value| !value.is_boolean()) {
            return Err(BadDefault::NotBoolean(key));
        }
    }
    for key in NUMBERS {
        if table.get(key).is_some_and(|value| num(value).is_nan()) {
            return Err(BadDefault::NotNumber(key));
        }
    }
    for key in STAMPS {
        if table.get(key).is_some_and(|value| !value.as_str().is_some_and(is_stamp)) {
            return Err(BadDefault::NotStamp(key));
        }
    }
    let spread = table.get("server_spread").filter(|value| truthy(Some(value)));
    if spread.is_some_and(|value| !value.as_str().is_some_and(|name| SPREADS.contains(&name))) {
        return Err(BadDefault::Spread);
    }
    match table.get("filter_owner_server") {
        value if !truthy(value) => Ok(()),
        Some(Value::Object(owners)) if owners.keys().all(|key| is_uuid(key)) => Ok(()),
        Some(Value::Object(_)) => Err(BadDefault::OwnersKeys),
        _ => Err(BadDefault::OwnersType),
    }
}

impl Settings {
    /// Reads a table of defaults whose types are checked.
    ///
    /// # Errors
    /// A predicate that is outside the supported language.
    pub(crate) fn read(table: &Map<String, Value>, host_os: HostOs) -> Result<Self, BadDefault> {
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
                .map(|value| (display(Some(value)), num(value))),
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
        })
    }

    /// The members of a server's record that predicates look at.
    pub(crate) fn predicate_members(&self) -> impl Iterator<Item = &str> {
        let filters = self.owner_filters.iter().flatten();
        filters.flat_map(|filter| filter.predicate.members())
    }
}

fn owner_filter((owner, text): (&String, &Value)) -> Result<OwnerFilter, BadDefault> {
    let bad = |cause| BadDefault::OwnersPredicate { owner: owner.clone(), cause };
    let text = text.as_str().ok_or_else(|| bad(BadPredicate::NotText))?;
    let predicate = Predicate::parse(text).map_err(bad)?;
    Ok(OwnerFilter { owner: owner.clone(), text: text.to_owned(), predicate })
}
