//! Configuration of both daemons: a file, and the same lines as `--set key=value`.

use std::cell::RefCell;
use std::io::{Seek as _, SeekFrom, Write as _};

use muster_shared::config::{Config, ConfigError, Loader, Sources};
use tempfile::NamedTempFile;

/// Lines of an input that are read as `--set`.
const MAX_SETS: usize = 16;

thread_local! {
    static FILE: RefCell<NamedTempFile> =
        RefCell::new(NamedTempFile::new().expect("there is a folder for temporary files"));
    static COORDINATOR: Loader<muster_coordinator::config::Config> = Loader::new();
    static AGENT: Loader<muster_agent::config::Config> = Loader::new();
}

/// Reads the input as both daemons would.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    COORDINATOR.with(|loader| one(loader, text));
    AGENT.with(|loader| one(loader, text));
}

fn one<T: Config>(loader: &Loader<T>, text: &str) {
    let sets = text.lines().take(MAX_SETS);
    // Every problem is told together, so what they say is bounded by what there is to say.
    drop(loader.load(Sources::new("MUSTER_FUZZ__").set(sets)));
    let Ok(config) = load(loader, text) else { return };
    let written = toml::to_string(&config).expect("a configuration can be written");
    let again = load(loader, &written).unwrap_or_else(|error| panic!("{error}\nof {written}"));
    let rewritten = toml::to_string(&again).expect("a configuration can be written");
    assert_eq!(rewritten, written, "a configuration is not what it is written as");
}

fn load<T: Config>(loader: &Loader<T>, text: &str) -> Result<T, ConfigError> {
    FILE.with_borrow_mut(|file| {
        let write = |file: &mut NamedTempFile| {
            file.as_file().set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(text.as_bytes())
        };
        write(file).expect("the temporary file can be written");
        loader.load(Sources::new("MUSTER_FUZZ__").file(Some(file.path())))
    })
}
