//! Runs inside the guest of the power-cut test.
//!
//! Usage: `power-cut-writer ENGINE commit|fill DIR DEVICE`
//!
//! - `commit`: commits values to a map and marks each acknowledged one on the bare device, past
//!   the file system.
//! - `fill`: commits until the file system is full, makes room, and goes on.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use muster_shared::kv::{Change, KvError, SharedKv};
use muster_tests::cuts::Engine;
use muster_tests::power_cut::{COMMITS, MARK_AT, Mark, SECTOR, key, value};
use nix::fcntl::OFlag;

/// What is given back when the file system is full.
const BALLAST_BYTES: usize = 32 * 1024 * 1024;
/// Commits after there is room again.
const MORE: u64 = 20;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [engine, work, dir, device] = args.as_slice() else {
        bail!("ENGINE commit|fill DIR DEVICE expected")
    };
    let engine = Engine::ALL.into_iter().find(|e| e.name() == engine).context("no such engine")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let dir = Path::new(dir);
    match work.as_str() {
        "commit" => runtime.block_on(commit(engine, dir, Path::new(device)))?,
        "fill" => runtime.block_on(fill(engine, dir))?,
        other => bail!("no work {other}"),
    }
    println!("power-cut-writer: done");
    Ok(())
}

async fn commit(engine: Engine, dir: &Path, device: &Path) -> anyhow::Result<()> {
    // Past the page cache but not synced: a mark must not make anything durable.
    let device = OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_DIRECT.bits())
        .open(device)
        .context("open the device")?;
    let mut buffer = vec![0u8; 2 * SECTOR];
    let aligned = buffer.as_ptr().align_offset(SECTOR);
    let kv = engine.open(dir)?;
    for number in 0..COMMITS {
        kv.commit(vec![Change::Put(key(number), value(number))]).await?;
        let sector = &mut buffer[aligned..aligned + SECTOR];
        Mark(number).encode(sector);
        device.write_all_at(sector, MARK_AT).context("write the mark")?;
    }
    Ok(())
}

async fn fill(engine: Engine, dir: &Path) -> anyhow::Result<()> {
    let ballast = dir.with_extension("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES])?;
    File::open(&ballast)?.sync_all()?;
    let kv = engine.open(dir)?;
    let mut written = 0;
    let error = loop {
        match put(&kv, written).await {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    ensure!(matches!(error, KvError::Full { .. }), "a full file system is {error}");
    check(&kv, written).await?;
    std::fs::remove_file(&ballast)?;
    for _ in 0..MORE {
        put(&kv, written).await.context("there is room again")?;
        written += 1;
    }
    kv.close().await;
    let kv = engine.open(dir)?;
    check(&kv, written).await?;
    kv.close().await;
    println!("{written} commits, the file system was full in between");
    Ok(())
}

fn name(number: u64) -> Bytes {
    Bytes::from(format!("fill/{number:06}"))
}

async fn put(kv: &SharedKv, number: u64) -> Result<(), KvError> {
    kv.commit(vec![Change::Put(name(number), value(number))]).await
}

async fn check(kv: &SharedKv, written: u64) -> anyhow::Result<()> {
    for number in 0..written {
        ensure!(kv.get(&name(number)).await? == Some(value(number)), "commit {number} is lost");
    }
    Ok(())
}
