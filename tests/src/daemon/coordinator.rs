//! A coordinator as a process.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Daemon, tail, temp_dir};
use crate::binary;
use crate::http::Client;

const PROGRAM: &str = "muster-coordinator";

/// A coordinator with its data folder, which survives restarts.
#[derive(Debug)]
pub struct Coordinator {
    dir: TempDir,
    args: Vec<String>,
    listen: String,
    env: Vec<(String, String)>,
    program: PathBuf,
    daemon: Option<Daemon>,
}

impl Coordinator {
    /// Starts one on a free port.
    #[must_use]
    pub fn start() -> Self {
        Self::with_settings(&[])
    }

    /// Starts that of another build, which lies in this folder.
    #[must_use]
    pub fn of_build(folder: &Path) -> Self {
        let mut coordinator = Self::stopped(folder.join(PROGRAM), Vec::new());
        coordinator.restart();
        coordinator
    }

    /// Starts one with `--set key=value` for each setting.
    #[must_use]
    pub fn with_settings(settings: &[&str]) -> Self {
        let mut coordinator = Self::stopped(binary(PROGRAM), Vec::new());
        coordinator.configure(settings);
        coordinator.restart();
        coordinator
    }

    fn stopped(program: PathBuf, args: Vec<String>) -> Self {
        let listen = "127.0.0.1:0".to_owned();
        Self { dir: temp_dir(), args, listen, env: Vec::new(), program, daemon: None }
    }

    /// Replaces the settings, for the next start.
    pub fn configure(&mut self, settings: &[&str]) {
        let set = |setting: &&str| ["--set".to_owned(), (*setting).to_owned()];
        self.args = settings.iter().flat_map(set).collect();
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        tail(&self.dir.path().join("coordinator.log"))
    }

    /// Starts another one on a copy of this one's store, which must not be in use: of the same
    /// cluster, but knowing nothing of what this one does from now on.
    ///
    /// # Panics
    /// If the data can't be copied.
    #[must_use]
    pub fn start_copy(&self) -> Self {
        let mut copy = Self::stopped(self.program.clone(), self.args.clone());
        copy_folder(&self.data_dir(), &copy.data_dir()).expect("the data can be copied");
        // Each coordinator has a name of its own.
        std::fs::remove_file(copy.data_dir().join("instance")).expect("it had a name");
        copy.restart();
        copy
    }

    /// Starts it again on the same data and the same port.
    pub fn restart(&mut self) {
        drop(self.daemon.take());
        let data = self.dir.path().join("data").display().to_string();
        let fixed = ["--listen", &self.listen, "--data-dir", &data].map(str::to_owned);
        let args: Vec<_> = fixed.into_iter().chain(self.args.iter().cloned()).collect();
        let log = self.dir.path().join("coordinator.log");
        let daemon = Daemon::start(&self.program, &args, &self.env, &log);
        daemon.address().clone_into(&mut self.listen);
        self.daemon = Some(daemon);
    }

    /// Starts it again with another environment.
    pub fn restart_with_env(&mut self, env: &[(String, String)]) {
        env.clone_into(&mut self.env);
        self.restart();
    }

    /// Ends it without warning.
    pub fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill9();
        }
    }

    /// The process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("the coordinator runs")
    }

    /// `ADDR:PORT`, the same after every restart.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.listen
    }

    /// A client for its API.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(format!("http://{}", self.listen))
    }

    /// What agents are told to dial.
    #[must_use]
    pub fn agent_url(&self) -> String {
        format!("ws://{}", self.listen)
    }

    /// Its data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
