//! `muster-agent early`: carries out a factory reset that was asked for, before pools are mounted and the
//! agent starts.
//!
//! What was asked for is in the data folder, and the pool that goes with it bears the task's id; a pool that
//! lost this mark, or VMs that were made meanwhile, call the reset off. Cut off anywhere, it goes on at the
//! next boot.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use crate::drivers::files;
use crate::drivers::host::reset::Reset;
use crate::drivers::host::{Host, HostAction};
use crate::drivers::node::{Document, FileDocuments, NodeDocuments as _};
use crate::drivers::storage::{DISKS, IMAGES, RECORD_COPIES};
use crate::report::identity;
use crate::startup::{Folders, LOCK_FILE, VMS};
use crate::tasks::folder;

/// What stays in the data folder: which server it is, and the tasks whose ends coordinators wait for.
const KEPT: [&str; 5] = [
    identity::FILE_NAME,
    folder::NAME,
    LOCK_FILE,
    "lost+found",
    Document::FactoryReset.file_name(),
];

/// Runs the command; `say` gets a line for what was done.
///
/// # Errors
/// The reset could not be carried out; what is left of it is for the next boot.
pub async fn run(
    folders: &Folders,
    host: &dyn Host,
    mut say: impl FnMut(String),
) -> anyhow::Result<()> {
    let documents = FileDocuments::new(folders.data.clone(), None);
    let Some(reset) = pending(&documents).await? else { return Ok(()) };
    let vms = records(&folders.data.join(VMS)).context("look for VMs")?;
    let begun = if vms > 0 { None } else { begin(reset, &documents, host).await? };
    let Some(begun) = begun else {
        say(format!("the factory reset was called off; the node has {vms} VMs"));
        return documents.remove(Document::FactoryReset).await.context("forget the reset");
    };
    host.act(&HostAction::Wipe(Box::new(begun.clone()))).await.context("wipe the pool")?;
    forget(folders).await.context("remove what the agent kept")?;
    let done = Reset { done: true, ..begun };
    documents.write(Document::FactoryReset, &json!(done)).await.context("note the reset")?;
    say(format!("the factory reset of task {} is done", done.task));
    Ok(())
}

/// The reset that is to be carried out.
async fn pending(documents: &FileDocuments) -> anyhow::Result<Option<Reset>> {
    let stored = documents.read(Document::FactoryReset).await.context("read what was asked for")?;
    let reset = stored.map(serde_json::from_value::<Reset>).transpose();
    Ok(reset.context("read what was asked for")?.filter(|reset| !reset.done))
}

/// The reset with the devices that go with it; durable when it returns. `None`: it was called off.
async fn begin(
    reset: Reset,
    documents: &FileDocuments,
    host: &dyn Host,
) -> anyhow::Result<Option<Reset>> {
    if reset.devices.is_some() {
        return Ok(Some(reset));
    }
    let devices = host.act(&HostAction::BeginWipe(Box::new(reset.clone()))).await?;
    let devices: Option<Vec<String>> =
        serde_json::from_value(devices).context("read the devices of the pool")?;
    let Some(devices) = devices else { return Ok(None) };
    let begun = Reset { devices: Some(devices), ..reset };
    documents.write(Document::FactoryReset, &json!(begun)).await.context("note the devices")?;
    Ok(Some(begun))
}

/// The number of VM records in a folder, damaged ones among them.
fn records(folder: &Path) -> io::Result<usize> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut count = 0;
    for entry in entries {
        count += usize::from(entry?.file_type()?.is_file());
    }
    Ok(count)
}

/// Removes what the agent knows, and disks and images that are files.
async fn forget(folders: &Folders) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(&folders.data)? {
        let entry = entry?;
        if !KEPT.iter().any(|kept| entry.file_name() == *kept) {
            remove(&entry.path())?;
        }
    }
    if let Some(copies) = folders.copies() {
        remove(&copies.join(Document::Cluster.file_name()))?;
        for name in [DISKS, IMAGES, RECORD_COPIES] {
            files::remove_folder_durably(&folders.storage.join(name)).await?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::Config;
    use crate::drivers::faults::{Fault, Faults};
    use crate::drivers::host::reset::Wipe;
    use crate::drivers::host::sim::{HostLog, SimHost};

    struct Bench {
        folder: tempfile::TempDir,
        folders: Folders,
        log: HostLog,
        faults: Faults,
    }

    impl Bench {
        /// A node on which a reset was asked for.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let config =
                Config { data_dir: at("data"), run_dir: Some(at("run")), ..Config::default() };
            let folders = Folders::open(&config).unwrap();
            for name in ["journal", "images", "vms/archive"] {
                std::fs::create_dir_all(folders.data.join(name)).unwrap();
            }
            for name in ["journal/db", "images/x.qcow2", "setup.json", "server_uuid"] {
                std::fs::write(folders.data.join(name), "x").unwrap();
            }
            let task = "t1".parse().unwrap();
            let reset = Reset { task, wipe: Wipe::Labels, pool: None, devices: None, done: false };
            let path = folders.data.join(Document::FactoryReset.file_name());
            std::fs::write(path, json!(reset).to_string()).unwrap();
            Self { folder, folders, log: HostLog::default(), faults: Faults::default() }
        }

        async fn run(&self) -> anyhow::Result<Vec<String>> {
            let host = SimHost::new(self.log.clone(), self.faults.clone());
            let mut said = Vec::new();
            run(&self.folders, &host, |line| said.push(line)).await.map(|()| said)
        }

        fn left(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.folder.path().join("data")).unwrap();
            let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
            let mut names: Vec<_> =
                entries.map(|entry| name(entry).into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }

        fn noted(&self) -> Value {
            let path = self.folders.data.join(Document::FactoryReset.file_name());
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_reset_leaves_the_servers_name_and_its_tasks_and_happens_once() {
        let bench = Bench::new();
        bench.run().await.unwrap();
        let left = ["agent.lock", "factory-reset.json", "journal", "server_uuid"];
        assert_eq!(bench.left(), left);
        assert_eq!(bench.noted()["done"], true);
        std::fs::write(bench.folders.data.join("setup.json"), "new").unwrap();
        assert_eq!(bench.run().await.unwrap(), Vec::<String>::new());
        assert!(bench.left().contains(&"setup.json".to_owned()));
        assert_eq!(bench.log.actions().len(), 2, "it began once, and wiped once");
    }

    #[tokio::test]
    async fn vms_that_were_made_meanwhile_call_it_off() {
        let bench = Bench::new();
        std::fs::write(bench.folders.data.join("vms/a.json.damaged"), "x").unwrap();
        let said = bench.run().await.unwrap();
        assert!(said[0].contains("called off") && said[0].contains("1 VMs"), "{said:?}");
        let left = ["agent.lock", "images", "journal", "server_uuid", "setup.json", "vms"];
        assert_eq!(bench.left(), left);
        assert!(bench.log.actions().is_empty());
    }

    #[tokio::test]
    async fn what_failed_goes_on_at_the_next_boot() {
        let bench = Bench::new();
        bench.faults.fail_nth("host.act", 2, Fault::before());
        bench.run().await.unwrap_err();
        assert_eq!(bench.noted()["devices"], json!([]), "what goes with it is known");
        assert!(bench.left().contains(&"setup.json".to_owned()));
        bench.run().await.unwrap();
        assert_eq!(bench.noted()["done"], true);
    }
}
