//! Displays: their pictures and passwords. The hypervisor can open no file of the agent's, so it is
//! handed one: over its second control socket, where a picture that takes long holds up nobody.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Seek as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Interest};
use tokio::net::UnixStream;

use super::{Qemu, not_running, talk_failed, vnc};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestDisplay, MAX_PICTURE_BYTES, Picture};
use crate::vm_record::VmRecord;

/// Longest conversation about one picture.
const LIMIT: Duration = Duration::from_secs(20);
/// Longest message of the hypervisor, bytes.
const MAX_LINE_BYTES: u64 = 256 * 1024;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
enum ShotError {
    #[error("talk to the hypervisor")]
    Io(#[from] io::Error),
    #[error("{command}: {reason}")]
    Refused { command: &'static str, reason: String },
    #[error("no whole picture of at most {} KiB", MAX_PICTURE_BYTES / 1024)]
    NoPicture,
    #[error("the hypervisor took longer than {} s", LIMIT.as_secs())]
    Late,
}

#[async_trait]
impl GuestDisplay for Qemu {
    async fn screenshot(&self, vm: VmUuid) -> Result<Picture, DriverError> {
        if self.guests.live(vm).is_none() {
            return Err(not_running(vm));
        }
        let socket = self.guests.folder(vm).qmp_aux();
        // On a task of its own: what was handed over is taken back also when nobody waits.
        let taking = tokio::spawn(tokio::time::timeout(LIMIT, take(socket)));
        let taken = match taking.await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) => Err(ShotError::Late),
            Err(panicked) => Err(io::Error::other(panicked).into()),
        };
        taken.map_err(|error| match error {
            ShotError::Refused { .. } | ShotError::NoPicture => DriverError::refused_because(
                Code::InternalError,
                format!("take a picture of VM {vm}: {error}"),
                error,
            ),
            other => DriverError::failed(format!("take a picture of VM {vm}"), other),
        })
    }

    async fn set_password(&self, vm: &VmRecord) -> Result<(), DriverError> {
        if self.guests.live(vm.uuid).is_none() {
            return Ok(());
        }
        let qmp = self.guests.qmp(vm.uuid).await?;
        match vnc::set_password(&qmp, vm).await {
            Err(error) if self.guests.live(vm.uuid).is_some() => Err(talk_failed(vm.uuid, error)),
            // It ended meanwhile.
            _ => Ok(()),
        }
    }
}

async fn take(socket: PathBuf) -> Result<Picture, ShotError> {
    let mut memory = Memory::new()?;
    let mut monitor = Monitor::connect(&socket).await?;
    let set = monitor.execute("add-fd", &json!({}), Some(memory.for_writing()?.as_raw_fd())).await;
    let set = set?["fdset-id"].clone();
    let file = format!("/dev/fdset/{set}");
    let shot = json!({ "filename": file, "format": "png" });
    let taken = monitor.execute("screendump", &shot, None).await;
    // The hypervisor would keep it for as long as it runs.
    let removed = monitor.execute("remove-fd", &json!({ "fdset-id": set }), None).await;
    taken?;
    removed?;
    memory.content()?.and_then(Picture::read).ok_or(ShotError::NoPicture)
}

/// A file in memory, which counts as the hypervisor's own as it writes; more than a picture may have
/// is not read. It can't be sealed, since the hypervisor empties it first.
struct Memory(File);

impl Memory {
    fn new() -> io::Result<Self> {
        Ok(Self(File::from(memfd_create(c"screenshot", MFdFlags::MFD_CLOEXEC)?)))
    }

    /// The hypervisor looks for a descriptor that is for writing only.
    fn for_writing(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        File::options().write(true).open(path)
    }

    /// `None`: it is longer than a picture may be.
    fn content(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.0.rewind()?;
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_PICTURE_BYTES).unwrap_or(u64::MAX);
        (&self.0).take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok((bytes.len() <= MAX_PICTURE_BYTES).then_some(bytes))
    }
}

/// A conversation with a hypervisor that can pass descriptors.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    async fn connect(socket: &Path) -> Result<Self, ShotError> {
        let mut monitor = Self(BufReader::new(UnixStream::connect(socket).await?));
        monitor.message().await?;
        monitor.execute("qmp_capabilities", &json!({}), None).await?;
        Ok(monitor)
    }

    /// Sends a command, with a descriptor if need be, and returns its answer.
    async fn execute(
        &mut self,
        command: &'static str,
        arguments: &Value,
        descriptor: Option<RawFd>,
    ) -> Result<Value, ShotError> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.send(text.as_bytes(), descriptor).await?;
        loop {
            let mut answer = self.message().await?;
            if let Some(error) = answer.get("error") {
                let reason = error["desc"].as_str().unwrap_or("no reason given").to_owned();
                return Err(ShotError::Refused { command, reason });
            }
            // Events come in between.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    async fn send(&self, mut text: &[u8], descriptor: Option<RawFd>) -> io::Result<()> {
        let mut descriptor = descriptor;
        let stream = self.0.get_ref();
        while !text.is_empty() {
            stream.writable().await?;
            let sent = stream.try_io(Interest::WRITABLE, || {
                let passed: Vec<RawFd> = descriptor.into_iter().collect();
                let rights = [ControlMessage::ScmRights(&passed)];
                let rights = if passed.is_empty() { &[][..] } else { &rights[..] };
                let bytes = [IoSlice::new(text)];
                let flags = MsgFlags::MSG_NOSIGNAL;
                let socket = stream.as_raw_fd();
                sendmsg::<UnixAddr>(socket, &bytes, rights, flags, None).map_err(io::Error::from)
            });
            match sent {
                Ok(sent) => {
                    // It went with the first byte.
                    descriptor = None;
                    text = &text[sent..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn message(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        (&mut self.0).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        if line.last() != Some(&b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_is_longer_than_a_picture_may_be_is_not_read() {
        let mut memory = Memory::new().unwrap();
        let mut writer = memory.for_writing().unwrap();
        writer.write_all(&vec![1; MAX_PICTURE_BYTES]).unwrap();
        assert_eq!(memory.content().unwrap().map(|bytes| bytes.len()), Some(MAX_PICTURE_BYTES));
        writer.write_all(b"x").unwrap();
        assert_eq!(memory.content().unwrap(), None);
        // As the hypervisor does before it writes.
        writer.set_len(0).unwrap();
        assert_eq!(memory.content().unwrap(), Some(Vec::new()));
    }

    #[tokio::test]
    async fn events_and_refusals_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let hypervisor = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            for answer in [
                "{\"QMP\":{}}\n",
                "{\"event\":\"STOP\"}\n{\"return\":{}}\n",
                "{\"error\":{\"class\":\"GenericError\",\"desc\":\"no display\"}}\n",
            ] {
                tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
                line.clear();
                stream.read_line(&mut line).await.unwrap();
            }
        });
        let mut monitor = Monitor::connect(&socket).await.unwrap();
        let refused = monitor.execute("screendump", &json!({}), None).await.unwrap_err();
        assert_eq!(refused.to_string(), "screendump: no display");
        drop(monitor);
        hypervisor.await.unwrap();
    }
}
