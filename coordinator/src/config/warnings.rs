//! What a configuration allows and its author hardly meant.

use std::path::{Path, PathBuf};

use muster_shared::config::ListenAddress;

use super::{Config, DEFAULT_DATA_DIR};

/// The default of earlier versions, which no unit used.
const FORMER_DATA_DIR: &str = "/var/lib/muster/coordinator";

impl Config {
    /// What is allowed and hardly meant, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let exposed = matches!(&self.listen, ListenAddress::Tcp(at) if !at.ip().is_loopback());
        let anybody = !(self.tls.client_ca.is_some() && self.tls.client_required);
        let mut warnings = Vec::new();
        if exposed && anybody {
            let text = "whoever reaches the API may change everything: set tls.client_ca and \
                        tls.client_required";
            warnings.push(format!("listen = \"{}\": {text}", self.listen));
        }
        if self.security.allow_command_execute {
            let text = "every client of the API may run commands as root on the servers";
            warnings.push(format!("security.allow_command_execute = true: {text}"));
        }
        warnings
    }

    /// The default data folder of earlier versions, if only that one is there and nothing else was
    /// said: who relied on it must not find an empty store.
    #[must_use]
    pub fn former_data_dir(&self, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let by_default = self.data_dir == Path::new(DEFAULT_DATA_DIR);
        let former = Path::new(FORMER_DATA_DIR);
        let only_former = by_default && exists(former) && !exists(&self.data_dir);
        only_former.then(|| former.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::config::Sources;

    use super::*;
    use crate::config::ENVIRONMENT_PREFIX;

    #[test]
    fn what_is_hardly_meant_is_said() {
        let of = |settings: &[&str]| {
            let sources = Sources::new(ENVIRONMENT_PREFIX).set(settings.iter().copied());
            sources.load::<Config>().unwrap().warnings().join("\n")
        };
        assert_eq!(of(&[]), "");
        let open = ["listen=10.0.0.1:80", "security.allow_plaintext=10.0.0.0/8"];
        assert!(of(&open).contains("tls.client_required"), "{}", of(&open));
        let execute = of(&["security.allow_command_execute=true"]);
        assert!(execute.contains("as root"), "{execute}");
    }

    #[test]
    fn a_store_at_the_former_default_is_found() {
        let there = |paths: &'static [&str]| {
            move |path: &Path| paths.iter().any(|it| path == Path::new(it))
        };
        let config = Config::default();
        let former = Some(PathBuf::from(FORMER_DATA_DIR));
        assert_eq!(config.former_data_dir(there(&[FORMER_DATA_DIR])), former);
        assert_eq!(config.former_data_dir(there(&[])), None);
        assert_eq!(config.former_data_dir(there(&[FORMER_DATA_DIR, DEFAULT_DATA_DIR])), None);
        let named = Config { data_dir: "/srv/muster".into(), ..Config::default() };
        assert_eq!(named.former_data_dir(there(&[FORMER_DATA_DIR])), None);
    }
}
