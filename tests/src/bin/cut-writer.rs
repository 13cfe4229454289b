//! Runs under the preloaded library of the power-cut tests: many writers commit to a map, and each
//! notes every commit that was acknowledged to it.
//!
//! Usage: `cut-writer ENGINE LOAD FOLDER`

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use muster_tests::cuts::{Engine, Load, MAP, NOTES, OPENED};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [engine, load, folder] = args.as_slice() else { bail!("ENGINE LOAD FOLDER expected") };
    let engine = Engine::ALL.into_iter().find(|e| e.name() == engine).context("no such engine")?;
    let load = Load::ALL.into_iter().find(|l| l.name() == load).context("no such load")?;
    let folder = Path::new(folder);
    let notes = Arc::new(File::create(folder.join(NOTES))?);
    let map = engine.open(&folder.join(MAP))?;
    note(&notes, OPENED, 0)?;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..load.writers() {
        let (map, notes) = (Arc::clone(&map), Arc::clone(&notes));
        writers.spawn(async move {
            for number in 0..load.commits() {
                map.commit(load.changes(writer, number)).await?;
                note(&notes, writer, number)?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    // Not closed: what is looked at is what a process that dies leaves.
    Ok(())
}

/// One write per note: the library logs it as one record.
fn note(notes: &File, writer: u32, number: u32) -> anyhow::Result<()> {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&writer.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    let mut notes = notes;
    Ok(notes.write_all(&bytes)?)
}
