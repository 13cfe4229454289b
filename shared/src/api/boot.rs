//! Boot parameters: what a node boots with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Object;

/// How a module's content is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum ModuleEncoding {
    /// Base64.
    #[default]
    #[serde(rename = "base64")]
    Base64,
}

/// A file that is loaded with the platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootModule {
    /// Its path.
    #[schema(min_length = 1)]
    pub path: String,
    /// Base64 of at most 4096 bytes.
    pub content: String,
    /// How the content is written.
    #[serde(rename = "type", default)]
    pub encoding: ModuleEncoding,
    /// What else the client keeps with it.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What a node boots with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BootParams {
    /// Platform of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Arguments of the kernel.
    pub kernel_args: Object,
    /// Switches of the kernel.
    pub kernel_flags: Object,
    /// Files for the boot loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_modules: Option<Vec<BootModule>>,
    /// Console of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_console: Option<String>,
    /// Serial device of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// Modules, in a record or in a blob beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BootModules {
    /// In the record.
    Inline(Vec<BootModule>),
    /// In a blob, because they are large.
    Blob {
        /// Its path.
        blob: String,
        /// Its size.
        bytes: usize,
    },
}

/// What a server's record keeps of its boot parameters, and the default record as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BootRecord {
    /// Kernel arguments of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_params: Option<Object>,
    /// Platform of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_platform: Option<String>,
    /// Files for the boot loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<BootModule>>)]
    pub boot_modules: Option<BootModules>,
    /// Kernel flags of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_flags: Option<Object>,
    /// Console of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_console: Option<String>,
    /// Serial device of the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// What a platform boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlatformOs {
    /// Linux.
    Linux,
    /// illumos.
    SmartOs,
}

/// A platform that servers can boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownPlatform {
    /// True: the newest of its kind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub latest: bool,
    /// With `os=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<PlatformOs>,
}
