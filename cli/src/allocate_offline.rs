//! `muster allocate --offline`: decides without a coordinator, from documents.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use muster_alloc::HostOs;
use muster_alloc::offline::{Case, Offline, OfflineError};
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::error_chain::Chain;

use crate::CliError;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Offline")]
pub(crate) struct OfflineArgs {
    /// Decides locally, from FILE, without a coordinator.
    #[arg(long)]
    pub(crate) offline: bool,

    /// FILE has lines of type `config`, `dc` and `case`; prints one line per case.
    #[arg(long, requires = "offline")]
    jsonl: bool,

    /// Adds `elapsed_us` to each answer: the decision's time without parsing and printing.
    #[arg(long, requires = "offline")]
    time: bool,

    /// Which host operating systems may take a VM.
    #[arg(long, requires = "offline", value_enum, default_value_t = Os::Reference)]
    host_os: Os,

    /// File to read [default: stdin].
    #[arg(value_name = "FILE", requires = "offline")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Os {
    /// The reference's rule: SunOS, except for lx machines of lxd images.
    Reference,
    /// Any.
    Any,
}

struct Session {
    offline: Offline,
    clock: Option<SystemClock>,
    /// Lines that could not be used.
    bad: usize,
}

pub(crate) fn run(args: &OfflineArgs) -> Result<(), CliError> {
    let host_os = match args.host_os {
        Os::Reference => HostOs::Reference,
        Os::Any => HostOs::Any,
    };
    let clock = args.time.then(SystemClock::new);
    let mut session = Session { offline: Offline::new(host_os), clock, bad: 0 };
    let path = args.file.as_deref().filter(|path| *path != Path::new("-"));
    let shown = path.unwrap_or(Path::new("standard input"));
    let mut input: Box<dyn BufRead> = match path {
        Some(path) => Box::new(BufReader::new(File::open(path).map_err(failed("read", path))?)),
        None => Box::new(io::stdin().lock()),
    };
    let out = &mut BufWriter::new(io::stdout().lock());
    if args.jsonl {
        session.lines(input, shown, out)?;
    } else {
        let mut text = String::new();
        input.read_to_string(&mut text).map_err(failed("read", shown))?;
        let case = session.offline.document(&text).map_err(|error| bad(shown, &error))?;
        session.answer(case, out)?;
    }
    out.flush().map_err(printing)?;
    match session.bad {
        0 => Ok(()),
        n => Err(CliError::Usage(format!("{}: {n} lines can't be used", shown.display()))),
    }
}

impl Session {
    fn lines(
        &mut self,
        input: impl BufRead,
        shown: &Path,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        for (number, line) in input.lines().enumerate() {
            let line = line.map_err(failed("read", shown))?;
            match self.offline.line(&line) {
                Ok(None) => {}
                Ok(Some(case)) => self.answer(case, out)?,
                Err(error) => {
                    self.bad += 1;
                    eprintln!("muster: {}:{}: {}", shown.display(), number + 1, Chain(&error));
                }
            }
        }
        Ok(())
    }

    fn answer(&self, case: Case, out: &mut impl Write) -> Result<(), CliError> {
        let now = || self.clock.as_ref().map(|clock| clock.monotonic());
        let before = now();
        let decision = case.decide();
        let elapsed = now().zip(before).map(|(now, before)| (now - before).as_secs_f64() * 1e6);
        serde_json::to_writer(&mut *out, &decision.line(elapsed))
            .map_err(|e| printing(e.into()))?;
        out.write_all(b"\n").map_err(printing)
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CliError {
    let path = path.to_owned();
    move |source| CliError::File { action, path, source }
}

fn printing(source: io::Error) -> CliError {
    CliError::Terminal { action: "print the result", source }
}

fn bad(path: &Path, error: &OfflineError) -> CliError {
    CliError::Usage(format!("{}: {}", path.display(), Chain(error)))
}
