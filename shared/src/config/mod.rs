//! Configuration of the daemons: one typed struct, filled from several sources, checked whole.
//!
//! Later sources win: the struct's [`Default`], a TOML file, environment variables
//! (`MUSTER_AGENT__ROSTER__SUSPECT_MS` is the key `roster.suspect_ms`), `--set key=value`, flags.
//! Every problem of every source is reported at once ([`ConfigError`]); a daemon prints it and
//! exits with [`EXIT_CONFIG`]. The reference page is rendered from the same struct ([`reference`]).
//!
//! ```
//! use muster_shared::config::{Check, Problems, Sources};
//! use serde::{Deserialize, Serialize};
//! use utoipa::ToSchema;
//!
//! /// The example daemon.
//! #[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
//! #[serde(default)] // on every struct: a key left out keeps its default
//! struct Config {
//!     /// Address of the API.
//!     listen: String,
//!     /// When a server counts as gone.
//!     roster: Roster,
//! }
//!
//! /// When a server counts as gone.
//! #[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
//! #[serde(default)]
//! struct Roster {
//!     /// A connection without a byte for this long is lost, ms.
//!     lost_ms: u64,
//! }
//!
//! impl Default for Config {
//!     fn default() -> Self {
//!         Self { listen: "127.0.0.1:8480".into(), roster: Roster::default() }
//!     }
//! }
//!
//! impl Default for Roster {
//!     fn default() -> Self {
//!         Self { lost_ms: 2_000 }
//!     }
//! }
//!
//! impl Check for Config {
//!     fn check(&self, problems: &mut Problems) {
//!         problems.within("roster", |problems| self.roster.check(problems));
//!     }
//! }
//!
//! impl Check for Roster {
//!     fn check(&self, problems: &mut Problems) {
//!         problems.require(self.lost_ms >= 100, "lost_ms", "at least 100, or every pause kills");
//!     }
//! }
//!
//! let environment = [("MUSTER_EXAMPLE__ROSTER__LOST_MS".to_owned(), "50".to_owned())];
//! let error = Sources::new("MUSTER_EXAMPLE__")
//!     .environment(environment) // a daemon calls process_environment()
//!     .set(["roster.lots_ms=1"])
//!     .flag("listen", "--listen", Some("127.0.0.1:0"))
//!     .load::<Config>()
//!     .unwrap_err()
//!     .to_string();
//! assert!(error.contains("roster.lost_ms: at least 100, or every pause kills"));
//! assert!(error.contains("roster.lots_ms: unknown key, did you mean `roster.lost_ms`?"));
//! ```
//!
//! Only the types that serialize as TOML has them (tables, lists, texts, numbers, booleans,
//! enums without data) belong in such a struct; no `flatten`.

mod command;
mod effective;
mod file;
mod listen;
mod problems;
mod reference;
mod schema;
mod shape;
mod sources;
mod urls;
mod wording;

pub use command::ConfigCommand;
pub use effective::{Loaded, Setting, show};
pub use listen::{
    Exposed, ListenAddress, ListenError, MAX_SOCKET_PATH_BYTES, Ways, check_exposure,
};
pub use problems::{ConfigError, Problem, Problems};
pub use reference::{example_file, reference};
pub use schema::nearest;
pub use shape::keep_shape;
pub use sources::{Loader, Sources};
pub use urls::{check_url, check_urls};

use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

/// Exit status of a daemon that refuses its configuration (sysexits' `EX_USAGE`).
pub const EXIT_CONFIG: u8 = 64;
/// Exit status of a daemon that can't go on, of which a restart may be the cure: its disk failed, or
/// one of its own parts (sysexits' `EX_SOFTWARE`).
pub const EXIT_FAILED: u8 = 70;

/// What serde can't check: ranges, and keys that must fit each other.
pub trait Check {
    /// Adds what is wrong to `problems`; changes nothing.
    fn check(&self, problems: &mut Problems);

    /// Other names of keys that a source may use, and the keys they stand for. Names without dots.
    #[must_use]
    fn aliases() -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

/// A whole configuration. Implemented for everything that has the parts.
pub trait Config: Default + Serialize + DeserializeOwned + ToSchema + Check {}

impl<T: Default + Serialize + DeserializeOwned + ToSchema + Check> Config for T {}
