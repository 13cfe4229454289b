//! Damage of a map's files while nobody has it open: flipped bytes, lost pages, cut off ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use muster_shared::entropy::Entropy;

use super::disk::draw;
use super::judge::Expected;
use super::{Engine, Load, MAP, Tally, scratch};

const LOAD: Load = Load::Agent;
/// Commits of each writer before the damage.
const COMMITS: u32 = 9;
const PAGE: usize = 4_096;

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Damages the files of a map `count` times, each time those of a closed or of a killed one.
///
/// # Errors
/// A map that can't be written. A damaged map is no error but a finding; one whose files changed
/// although it was refused is an error.
pub async fn damage(engine: Engine, count: usize, entropy: &dyn Entropy) -> anyhow::Result<Tally> {
    let dir = scratch()?;
    let written = dir.path().join("written").join(MAP);
    let map = engine.open(&written)?;
    for number in 0..COMMITS {
        let writers = (0..LOAD.writers()).map(|writer| map.commit(LOAD.changes(writer, number)));
        futures_util::future::try_join_all(writers).await?;
    }
    let killed = read(&written)?;
    map.close().await;
    let closed = read(&written)?;
    let acknowledged = (0..LOAD.writers()).map(|writer| (writer, COMMITS - 1)).collect();
    let expected = Expected::after(LOAD, &acknowledged);
    let mut tally = Tally::default();
    for number in 0..count {
        let (mut files, state) =
            if number % 2 == 0 { (closed.clone(), "closed") } else { (killed.clone(), "killed") };
        let what = harm(&mut files, entropy);
        let image = dir.path().join("damaged");
        write(&image.join(MAP), &files)?;
        let verdict = expected.judge(engine, &image).await;
        tally.count(&verdict, &format!("{state}, {what}"));
        if matches!(verdict, super::judge::Verdict::Refused(_)) {
            let left = read(&image.join(MAP))?;
            // A record that changes while the map is open is noticed when it is read.
            ensure!(left == files, "{what}: the files of a refused map have changed");
        }
        std::fs::remove_dir_all(&image)?;
    }
    Ok(tally)
}

/// Harms one file; a larger one is more often chosen.
fn harm(files: &mut Files, entropy: &dyn Entropy) -> String {
    let total: usize = files.values().map(Vec::len).sum();
    // One in eight: any file, else a small one would never be met.
    let mut at = draw(total, entropy);
    let any = draw(files.len(), entropy);
    let small = draw(8, entropy) == 0;
    let chosen = files.iter_mut().enumerate().find_map(|(number, (name, content))| {
        if small {
            return (number == any).then_some((name, content));
        }
        let here = at < content.len();
        at = at.saturating_sub(content.len());
        here.then_some((name, content))
    });
    let Some((name, content)) = chosen.filter(|(_, content)| !content.is_empty()) else {
        return "an empty file".to_owned();
    };
    let (name, offset) = (name.display(), draw(content.len(), entropy));
    match draw(8, entropy) {
        0 => {
            content.truncate(offset);
            format!("{name} cut off at {offset}")
        }
        1 => {
            let page = offset / PAGE * PAGE;
            let end = (page + PAGE).min(content.len());
            content[page..end].fill(0);
            format!("a page of {name} zeroed at {page}")
        }
        _ => {
            content[offset] ^= 1 << draw(8, entropy);
            format!("a bit of {name} flipped at {offset}")
        }
    }
}

fn read(folder: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.insert(entry.file_name().into(), std::fs::read(entry.path())?);
        }
    }
    Ok(files)
}

fn write(folder: &Path, files: &Files) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (name, content) in files {
        std::fs::write(folder.join(name), content)?;
    }
    Ok(())
}
