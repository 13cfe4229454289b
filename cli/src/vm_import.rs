//! `muster vm import`: a machine from a file that `muster vm export` wrote.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueHint;
use indicatif::ProgressBar;
use muster_shared::api::task::TaskStarted;
use muster_shared::api::transfer::VmImport;
use muster_shared::api::vm::{FleetVm, VmPlaced};
use muster_shared::export::{Event, Header, ReadError, Reader, Volume};
use muster_shared::ids::VmUuid;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::Client;
use crate::output::Output;
use crate::patience::patiently;
use crate::vm::Target;
use crate::vm_export::{bar, passed};
use crate::{CliError, pick, wait};

/// Pieces after which the server makes them durable. So many are kept here until then: a server that is
/// booted anew may have lost them.
const DURABLE_EVERY: usize = 32;
/// Longest time until the VM is there, and until its disks are converted.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file is read twice: all of it is checked before anything is made. What comes on stdin (`-`) is checked as
it arrives; if it is damaged, the VM is destroyed again. The VM has no snapshots, and stays stopped.
An import that was interrupted goes on with the same command, or after 24 hours is destroyed.
Examples:
  muster vm import web1.muster
  muster vm import web1.muster --new-uuid --name web2 --start
  ssh backup cat web1.muster | muster vm import -")]
pub(crate) struct Args {
    /// File that `vm export` wrote; `-` is stdin.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Gives the VM another uuid and other MAC addresses: a copy beside the original.
    #[arg(long)]
    new_uuid: bool,

    /// Gives the VM another name.
    #[arg(long, value_name = "ALIAS")]
    name: Option<String>,

    /// Server, by uuid, its beginning, or hostname [default: the best one].
    #[arg(long)]
    server: Option<String>,

    /// Starts the VM at the end.
    #[arg(long)]
    start: bool,

    /// Goes on with the import of this VM, which was interrupted: uuid or alias.
    #[arg(long, value_name = "VM", conflicts_with_all = ["new_uuid", "name", "server"])]
    resume: Option<String>,
}

type Input = BufReader<Box<dyn Read + Send>>;

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let from_stdin = args.file.as_os_str() == "-";
    if !from_stdin {
        check(&args)?;
    }
    let mut reader = Reader::new(open(&args)?);
    let header = match reader.next_event().map_err(|error| unusable(&args, &error))? {
        Some(Event::Header(header)) => *header,
        _ => return Err(CliError::Usage(format!("{} has no header", args.file.display()))),
    };
    let (target, state) = begin(client, &args, &header).await?;
    let name = target.shown();
    let interrupted = || CliError::Interrupted {
        goes_on: format!("the import of {name} is not complete"),
        hint: format!(
            "go on with --resume {0}, give it up with `muster vm delete {0}`",
            target.uuid
        ),
    };
    let mut copy = Copy::new(client, &target, &header.volumes, state);
    let copied = wait::unless_interrupted(interrupted, copy.all(&args, &mut reader)).await;
    if let Err(error) = copied {
        // Nothing more can come of it.
        if from_stdin && !matches!(error, CliError::Interrupted { .. }) {
            discard(client, &target).await?;
        }
        return Err(error);
    }
    let body = json!({ "start": args.start });
    let started: TaskStarted = client.post(&target.path("/import"), &body).await?;
    let title = format!("import {name}");
    wait::finished(client, &title, started.id.as_str(), LIMIT).await?;
    let sentence = format!("{title}: VM {} is there", target.uuid);
    output.done(&sentence, &target.object(&started))
}

fn unusable(args: &Args, error: &ReadError) -> CliError {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let text = format!("{}: {error}{}", args.file.display(), cause.unwrap_or_default());
    CliError::Usage(text)
}

fn open(args: &Args) -> Result<Input, CliError> {
    let failed = |source| CliError::File { action: "read", path: args.file.clone(), source };
    let input: Box<dyn Read + Send> = match args.file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(&args.file).map_err(failed)?),
    };
    Ok(BufReader::new(input))
}

/// Reads all of the file.
fn check(args: &Args) -> Result<(), CliError> {
    let mut reader = Reader::new(open(args)?);
    // Drawn as soon as it is known how much there is.
    let mut shown = ProgressBar::hidden();
    let mut volumes: Vec<Volume> = Vec::new();
    loop {
        match reader.next_event().map_err(|error| unusable(args, &error))? {
            Some(Event::Header(header)) => {
                volumes = header.volumes;
                shown = bar("check", &volumes);
            }
            Some(Event::Data { volume, offset, .. }) => {
                shown.set_position(passed(&volumes, volume, offset));
            }
            Some(Event::End { .. }) => {}
            None => break,
        }
    }
    shown.finish_and_clear();
    Ok(())
}

/// What the export is called.
fn export_name(header: &Header) -> String {
    format!("{}/{}", header.vm_uuid, header.snapshot)
}

/// Has the VM made, or finds the one whose import was interrupted.
async fn begin(
    client: &Client,
    args: &Args,
    header: &Header,
) -> Result<(Target, VmImport), CliError> {
    if let Some(name) = &args.resume {
        let target = Target::find(client, name).await?;
        let state = state(client, &target).await?;
        if state.export != export_name(header) {
            let text = format!(
                "{} is being imported from another export: {}",
                target.shown(),
                state.export
            );
            return Err(CliError::Usage(text));
        }
        return Ok((target, state));
    }
    let body = request(client, args, header).await?;
    let placed: Result<VmPlaced, CliError> = client.post("/vms/import", &body).await;
    if let (Err(CliError::Refused { .. }), false) = (&placed, args.new_uuid)
        && let Some(found) = interrupted(client, header).await
    {
        return Ok(found);
    }
    let placed = placed?;
    let title = format!("make {}", placed.vm_uuid);
    wait::finished(client, &title, placed.id.as_str(), LIMIT).await?;
    let target = find(client, placed.vm_uuid).await?;
    let state = state(client, &target).await?;
    Ok((target, state))
}

/// The VM, if an earlier import of this export made it and did not come to its end.
async fn interrupted(client: &Client, header: &Header) -> Option<(Target, VmImport)> {
    let target = find(client, header.vm_uuid).await.ok()?;
    let state = state(client, &target).await.ok()?;
    (state.export == export_name(header)).then_some((target, state))
}

async fn find(client: &Client, vm: VmUuid) -> Result<Target, CliError> {
    let found: FleetVm = patiently(async || client.get(&format!("/vms/{vm}"), &[]).await).await?;
    Ok(Target::of(&found))
}

async fn state(client: &Client, target: &Target) -> Result<VmImport, CliError> {
    let path = target.path("/import");
    patiently(async || client.get(&path, &[]).await).await
}

async fn request(client: &Client, args: &Args, header: &Header) -> Result<Value, CliError> {
    let mut body = json!({
        "vm": payload(args, header), "export": export_name(header), "volumes": header.volumes,
    });
    if let Some(server) = &args.server {
        body["server_uuid"] = json!(pick::server(client, server).await?.record.uuid);
    }
    Ok(body)
}

/// The VM as it is asked for.
fn payload(args: &Args, header: &Header) -> Map<String, Value> {
    let mut vm = header.vm.clone();
    if args.new_uuid {
        vm.shift_remove("uuid");
        let nics = vm.get_mut("nics").and_then(Value::as_array_mut);
        for nic in nics.into_iter().flatten().filter_map(Value::as_object_mut) {
            nic.shift_remove("mac");
        }
    } else {
        vm.insert("uuid".to_owned(), json!(header.vm_uuid));
    }
    if let Some(name) = &args.name {
        vm.insert("alias".to_owned(), json!(name));
    }
    vm
}

async fn discard(client: &Client, target: &Target) -> Result<(), CliError> {
    let body = json!({ "discard": true });
    let path = target.path("/import");
    let discarded: TaskStarted = patiently(async || client.post(&path, &body).await).await?;
    wait::finished(client, "give up", discarded.id.as_str(), LIMIT).await.map(drop)
}

/// A piece on its way.
#[derive(Clone, Debug)]
struct Piece {
    volume: usize,
    offset: u64,
    data: Bytes,
}

/// Carries pieces to the server.
#[derive(Debug)]
struct Copy<'a> {
    client: &'a Client,
    volumes: &'a [Volume],
    path: String,
    state: VmImport,
    /// Sent, and not durable yet.
    pending: Vec<Piece>,
}

impl<'a> Copy<'a> {
    fn new(client: &'a Client, target: &Target, volumes: &'a [Volume], state: VmImport) -> Self {
        Self { client, volumes, path: target.path("/import"), state, pending: Vec::new() }
    }

    async fn all<R: Read>(&mut self, args: &Args, from: &mut Reader<R>) -> Result<(), CliError> {
        let shown = bar("import", self.volumes);
        loop {
            match from.next_event().map_err(|error| unusable(args, &error))? {
                Some(Event::Data { volume, offset, data }) => {
                    shown.set_position(passed(self.volumes, volume, offset));
                    if self.is_there(volume, offset, &data) {
                        continue;
                    }
                    self.pending.push(Piece { volume, offset, data: data.into() });
                    let durable = self.pending.len() >= DURABLE_EVERY;
                    self.send_last(durable).await?;
                }
                Some(Event::Header(_) | Event::End { .. }) => {}
                None => break,
            }
        }
        self.send_last(true).await?;
        shown.finish_and_clear();
        Ok(())
    }

    /// Whether an earlier import brought the piece.
    fn is_there(&self, volume: usize, offset: u64, data: &[u8]) -> bool {
        let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        (volume, end) <= (self.state.volume, self.state.offset)
    }

    /// Sends the last of the pieces that are pending; all of them, once the server was booted anew.
    async fn send_last(&mut self, durable: bool) -> Result<(), CliError> {
        let Some(last) = self.pending.last() else { return Ok(()) };
        match self.send(last, durable).await {
            Err(CliError::Refused { code, .. }) if code == "ImportInterrupted" => {
                let (client, path) = (self.client, &self.path);
                self.state = patiently(async || client.get(path, &[]).await).await?;
                let count = self.pending.len();
                for (number, piece) in self.pending.iter().enumerate() {
                    let sent = self.send(piece, number + 1 == count).await?;
                    self.state.boot = sent.boot;
                }
            }
            other => {
                other?;
                if !durable {
                    return Ok(());
                }
            }
        }
        self.pending.clear();
        Ok(())
    }

    async fn send(&self, piece: &Piece, durable: bool) -> Result<VmImport, CliError> {
        let query = [
            ("volume", piece.volume.to_string()),
            ("offset", piece.offset.to_string()),
            ("sha256", hex::encode(Sha256::digest(&piece.data))),
            ("durable", durable.to_string()),
            ("boot", self.state.boot.clone()),
        ];
        let send = async || self.client.put_bytes(&self.path, &query, piece.data.clone()).await;
        patiently(send).await
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use muster_shared::export::{FORMAT, Role, VERSION};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn asked(line: &[&str]) -> Map<String, Value> {
        let args = Line::try_parse_from([&["import", "file"], line].concat()).unwrap().args;
        let vm =
            json!({ "alias": "web", "nics": [{ "nic_tag": "admin", "mac": "02:00:00:00:00:01" }] });
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            exported_at: String::new(),
            muster_version: String::new(),
            server_uuid: uuid::Uuid::nil().into(),
            vm_uuid: uuid::Uuid::from_u128(7).into(),
            snapshot: "s".to_owned(),
            live: false,
            vm: vm.as_object().unwrap().clone(),
            volumes: vec![Volume { role: Role::Disk(0), size_bytes: 1, number: 0 }],
        };
        payload(&args, &header)
    }

    #[test]
    fn a_copy_beside_the_original_has_no_names_of_it() {
        let same = asked(&[]);
        assert_eq!(same["uuid"], json!(uuid::Uuid::from_u128(7)));
        assert_eq!(same["nics"][0]["mac"], "02:00:00:00:00:01");
        let other = asked(&["--new-uuid", "--name", "web2"]);
        assert_eq!((other.get("uuid"), &other["alias"]), (None, &json!("web2")));
        assert_eq!(other["nics"], json!([{ "nic_tag": "admin" }]));
    }

    #[test]
    fn what_is_resumed_is_not_made() {
        for line in [["--resume", "x", "--new-uuid"], ["--resume", "x", "--start"]] {
            let parsed = Line::try_parse_from([&["import", "file"], &line[..]].concat());
            assert_eq!(parsed.is_ok(), line[2] == "--start", "{line:?}");
        }
    }
}
