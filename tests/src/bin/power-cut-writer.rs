//! Runs inside the guest of the power-cut test: commits values to a map and marks each
//! acknowledged one on the bare device, past the file system.
//!
//! Usage: `power-cut-writer DIR DEVICE every-commit|unsafe`

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use muster_shared::kv::{Change, Kv as _, SledKv, SyncRule};
use muster_shared::threads::OsThreads;
use muster_tests::power_cut::{CACHE_BYTES, COMMITS, MARK_AT, Mark, SECTOR, key, value};
use nix::fcntl::OFlag;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, device, rule] = args.as_slice() else { bail!("DIR DEVICE RULE expected") };
    let rule = match rule.as_str() {
        "every-commit" => SyncRule::EveryCommit,
        "unsafe" => SyncRule::UnsafeForTests,
        other => bail!("no rule {other}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(Path::new(dir), Path::new(device), rule))
}

async fn run(dir: &Path, device: &Path, rule: SyncRule) -> anyhow::Result<()> {
    // Past the page cache but not synced: a mark must not make anything durable.
    let device = OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(device)
        .context("open the device")?;
    let mut buffer = vec![0u8; 2 * SECTOR];
    let aligned = buffer.as_ptr().align_offset(SECTOR);
    let kv = Arc::new(SledKv::open_with(dir, CACHE_BYTES, &OsThreads, rule)?);
    for number in 0..COMMITS {
        kv.commit(vec![Change::Put(key(number), value(number))]).await?;
        let sector = &mut buffer[aligned..aligned + SECTOR];
        Mark(number).encode(sector);
        device.write_all_at(sector, MARK_AT).context("write the mark")?;
    }
    println!("power-cut-writer: {COMMITS} commits done");
    Ok(())
}
