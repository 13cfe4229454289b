//! `muster-coordinator store`: work on the store of a coordinator that does not run.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use muster_coordinator::config::Config;
use muster_coordinator::store::raise_epoch;
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::config::EXIT_CONFIG;
use muster_shared::kv::{Contents, Engine, Report, SharedKv, open_as, restore};
use muster_shared::threads::OsThreads;
use muster_shared::units::MIB;
use tokio::runtime::Runtime;

use crate::lock;

/// The store is damaged.
const EXIT_DAMAGED: u8 = 3;
/// Damages that are printed one by one before a restore; `verify` prints more.
const SHOWN: usize = 20;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Reads every record and checks it, and prints how many there are, their bytes, a digest over
    /// all of them, and what is damaged. Changes nothing.
    Verify,
    /// Makes a sound store of what can be read of a damaged one. Prints what there is to save and
    /// changes nothing, unless --accept-data-loss names the store. The damaged one is kept beside
    /// it. A backup, if there is one, holds more.
    Restore {
        /// Go on, although what can't be read is lost. To be typed out: the store's folder
        #[arg(long, value_name = "FOLDER")]
        accept_data_loss: Option<PathBuf>,
    },
    /// Numbers everything from now on anew. Run it once after a backup was put back: what was given
    /// out after the backup was taken (tickets, versions, event ids) is older then than whatever
    /// comes, and agents don't refuse new tickets as old ones.
    NewEpoch,
}

/// Runs a command to its end.
///
/// # Errors
/// The store can't be read, or is in use.
pub(crate) fn run(command: &StoreCommand, config: &Config) -> anyhow::Result<ExitCode> {
    let folder = config.store_dir();
    let engine = Engine::of(&folder)
        .with_context(|| format!("there is no store in {} (see --data-dir)", folder.display()))?;
    let _lock = lock(&config.data_dir)?;
    let report = engine.verify(&folder, cache_bytes(config)).context("read the store")?;
    match command {
        StoreCommand::Verify => {
            print(&page(&folder, engine, &report, usize::MAX))?;
            Ok(if report.damages.is_empty() { ExitCode::SUCCESS } else { EXIT_DAMAGED.into() })
        }
        StoreCommand::Restore { .. } if report.damages.is_empty() => {
            print(&page(&folder, engine, &report, SHOWN))?;
            print("The store is sound; there is nothing to restore.\n")?;
            Ok(ExitCode::SUCCESS)
        }
        StoreCommand::NewEpoch if report.damages.is_empty() => new_epoch(&folder, config),
        StoreCommand::NewEpoch => {
            print(&page(&folder, engine, &report, SHOWN))?;
            Ok(EXIT_DAMAGED.into())
        }
        StoreCommand::Restore { accept_data_loss } => {
            print(&page(&folder, engine, &report, SHOWN))?;
            restore_if(accept_data_loss.as_deref(), &folder, config)
        }
    }
}

fn new_epoch(folder: &Path, config: &Config) -> anyhow::Result<ExitCode> {
    let now = SystemClock::new().wall();
    let raised = runtime()?.block_on(async {
        let kv = open_as(config.store.engine, folder, cache_bytes(config), &OsThreads, now);
        let kv = kv.await.context("open the store")?;
        let raised = raise_epoch(kv.as_ref()).await.context("number commits anew");
        kv.close().await;
        raised
    })?;
    print(&format!("The store is in epoch {} now.\n", raised.epoch))?;
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().context("start the runtime")
}

fn cache_bytes(config: &Config) -> u64 {
    config.store.cache_mib * MIB
}

fn restore_if(accepted: Option<&Path>, folder: &Path, config: &Config) -> anyhow::Result<ExitCode> {
    let shown = folder.display();
    match accepted {
        None => {
            print(&format!(
                "Nothing was changed. To keep the records above and lose what can't be read:\n  \
                 muster-coordinator store restore --accept-data-loss {shown}\n"
            ))?;
            return Ok(EXIT_DAMAGED.into());
        }
        Some(typed) if typed != folder => {
            let typed = typed.display();
            eprintln!(
                "muster-coordinator: --accept-data-loss: {typed} is not the store, {shown} is"
            );
            return Ok(EXIT_CONFIG.into());
        }
        Some(_) => {}
    }
    let runtime = runtime()?;
    let (to, cache, now) = (config.store.engine, cache_bytes(config), SystemClock::new().wall());
    // What the lost commits were numbered must not be given to others.
    let number_anew = |kv: &SharedKv| -> anyhow::Result<()> {
        runtime.block_on(raise_epoch(kv.as_ref())).map(drop).context("number commits anew")
    };
    let done = restore(to, folder, cache, &OsThreads, now, runtime.handle(), number_anew);
    let done = done.context("restore the store")?;
    print(&format!(
        "Restored {} records. The damaged store is kept in {}; remove it once nobody misses \
         anything.\n",
        done.report.contents.records,
        done.aside.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn page(folder: &Path, engine: Engine, report: &Report, shown: usize) -> String {
    let Contents { records, bytes, digest } = &report.contents;
    let mut page = format!(
        "store    {}\nengine   {engine}\nrecords  {records}\nbytes    {bytes}\nsha256   {digest}\n\
         damages  {}\n",
        folder.display(),
        report.damages.len()
    );
    for damage in report.damages.iter().take(shown) {
        page.push_str(damage);
        page.push('\n');
    }
    if report.damages.len() > shown {
        page.push_str("(`muster-coordinator store verify` lists the others)\n");
    }
    page
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("print")
}
