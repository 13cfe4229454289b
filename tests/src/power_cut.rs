//! Power cuts on a real kernel and file system: a guest writes to a disk whose writes and flushes
//! QEMU logs, and the disk is then rebuilt as it was at any moment.
//!
//! What a flush had covered is there; of the writes after it, any 4 KiB block may be.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use muster_shared::entropy::Entropy;
use muster_shared::kv::{SharedKv, SledKv};

use crate::cuts::Engine;

/// Commits the guest makes.
pub const COMMITS: u64 = 120;
/// Size of a device sector.
pub const SECTOR: usize = 512;
/// Bytes of the file system; the mark lies behind it.
pub const MARK_AT: u64 = 96 * 1024 * 1024;
/// Keys that are written over and over; not a multiple of the number of sizes, so each key takes
/// every size.
const KEYS: u64 = 21;
const SIZES: [usize; 4] = [1 << 10, 20 << 10, 100 << 10, 256 << 10];
/// What a device may lose of a write is a block of this size.
const TORN_BYTES: usize = 4096;

/// The key of a commit.
#[must_use]
pub fn key(number: u64) -> Bytes {
    Bytes::from(format!("key/{:03}", number % KEYS))
}

/// The value of a commit: its number, then bytes that differ from commit to commit.
#[must_use]
pub fn value(number: u64) -> Bytes {
    let size = SIZES[usize::from(number.to_le_bytes()[0]) % SIZES.len()];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = number.to_be_bytes().to_vec();
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_be_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

/// The sector that says which commit was acknowledged last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u64);

impl Mark {
    const MAGIC: &[u8; 8] = b"muster!!";

    /// Writes it to the start of `sector`.
    pub fn encode(self, sector: &mut [u8]) {
        sector[..8].copy_from_slice(Self::MAGIC);
        sector[8..16].copy_from_slice(&self.0.to_be_bytes());
    }

    fn decode(sector: &[u8]) -> Option<Self> {
        let number = sector.strip_prefix(Self::MAGIC)?.first_chunk::<8>()?;
        Some(Self(u64::from_be_bytes(*number)))
    }
}

/// One request to the disk, in the order in which QEMU saw them.
#[derive(Debug)]
struct Request {
    at: u64,
    /// The device's cache is written back before this write.
    flush: bool,
    /// This write goes past the cache.
    through: bool,
    data: Vec<u8>,
}

/// Reads a log in the format of the kernel's dm-log-writes.
fn read_log(path: &Path) -> anyhow::Result<Vec<Request>> {
    const FLUSH: u64 = 1;
    const FUA: u64 = 2;
    const DISCARD: u64 = 4;
    let file = File::open(path)?;
    let numbers = |at: u64| -> anyhow::Result<[u64; 4]> {
        let mut raw = [0; 32];
        file.read_exact_at(&mut raw, at)?;
        let number = |n: usize| u64::from_le_bytes(raw[8 * n..8 * n + 8].try_into().expect("8"));
        Ok([number(0), number(1), number(2), number(3)])
    };
    let [magic, version, entries, sector_bytes] = numbers(0)?;
    ensure!(magic == 0x006a_7366_7773_6872 && version == 1, "not a log of block writes");
    let sector_bytes = sector_bytes & 0xffff_ffff;
    let mut requests = Vec::new();
    let mut at = sector_bytes;
    for _ in 0..entries {
        let [sector, count, flags, extra] = numbers(at)?;
        ensure!(extra == 0, "an entry with a label");
        at += sector_bytes;
        let mut data = Vec::new();
        // A discarded range need not read as zeros, so nothing is lost by keeping it.
        if flags & DISCARD == 0 {
            data = vec![0; usize::try_from(count * sector_bytes)?];
            file.read_exact_at(&mut data, at)?;
            at += count * sector_bytes;
        }
        let (flush, through) = (flags & FLUSH != 0, flags & FUA != 0);
        requests.push(Request { at: sector * sector_bytes, flush, through, data });
    }
    Ok(requests)
}

/// A disk that the guest wrote, with every request it made.
#[derive(Debug)]
pub struct Recording {
    dir: PathBuf,
    engine: Engine,
    requests: Vec<Request>,
    /// The file system before the guest started.
    blank: Vec<u8>,
}

/// What was found on the disk after a cut.
#[derive(Debug)]
pub struct Found {
    /// Requests before the cut.
    pub cut: usize,
    /// The last acknowledged commit.
    pub acknowledged: u64,
    /// Files in `blobs/`.
    pub blob_files: usize,
    /// What is wrong; empty for a map that kept its word.
    pub problems: Vec<String>,
}

impl Recording {
    /// Boots the guest in the folder `guest` and lets it write to a map on `engine`; files of its
    /// run are kept in `dir`.
    ///
    /// # Errors
    /// A tool that is missing or failed, a guest that did not finish.
    pub fn make(dir: &Path, guest: &Path, engine: Engine) -> anyhow::Result<Self> {
        let blank = run_guest(dir, guest, engine, "commit")?;
        let log = dir.join("log.raw");
        let requests = read_log(&log)?;
        std::fs::remove_file(&log)?;
        Ok(Self { dir: dir.to_owned(), engine, requests, blank })
    }

    /// Cuts the power `cuts` times, at moments that `entropy` chooses after the first
    /// acknowledged commit, and looks at what is there.
    ///
    /// # Errors
    /// A tool that failed. A damaged map is no error but a finding.
    pub async fn cut(&self, cuts: usize, entropy: &dyn Entropy) -> anyhow::Result<Vec<Found>> {
        let mark = |request: &Request| {
            Some(request).filter(|r| r.at == MARK_AT).and_then(|r| Mark::decode(&r.data))
        };
        let first = self.requests.iter().position(|r| mark(r).is_some()).context("no mark")?;
        let span = u64::try_from(self.requests.len() - first)?;
        let mut moments: Vec<usize> = (0..cuts)
            .map(|_| first + 1 + usize::try_from(entropy.u64() % span).expect("below the span"))
            .collect();
        moments.sort_unstable();
        let mut found = Vec::new();
        let mut disk = Device { durable: self.blank.clone(), cached: Vec::new() };
        let mut acknowledged = Mark(0);
        let mut done = 0;
        for cut in moments {
            for request in &self.requests[done..cut] {
                acknowledged = mark(request).unwrap_or(acknowledged);
                disk.apply(request);
            }
            done = cut;
            let image = disk.after_cut(entropy);

            found.push(self.examine(cut, acknowledged.0, &image).await?);
        }
        Ok(found)
    }

    async fn examine(&self, cut: usize, acknowledged: u64, image: &[u8]) -> anyhow::Result<Found> {
        let dir = tempfile::tempdir_in(&self.dir)?;
        let path = dir.path().join("cut.raw");
        write_sparse(&path, image)?;
        let path = path.display().to_string();
        // Mounting would replay the journal; this does it without root.
        let replay = command("e2fsck").args(["-y", "-E", "journal_only", &path]).output()?;
        let mut found = Found { cut, acknowledged, blob_files: 0, problems: Vec::new() };
        if replay.status.code().is_none_or(|code| code > 1) {
            let text = String::from_utf8_lossy(&replay.stderr).into_owned();
            found.problems.push(format!("the file system can't be recovered: {text}"));
            return Ok(found);
        }
        let out = dir.path().display().to_string();
        let dump = command("debugfs").args(["-R", &format!("rdump /kv {out}"), &path]).output()?;
        // It says what it could not read, but not in its exit status.
        let stderr = String::from_utf8_lossy(&dump.stderr).into_owned();
        if let Some(line) = stderr.lines().find(|line| !line.starts_with("debugfs 1.")) {
            found.problems.push(format!("the file system is damaged: {line}"));
        }
        let kv = dir.path().join("kv");
        if !kv.is_dir() {
            found.problems.push("the map's directory is gone".to_owned());
            return Ok(found);
        }
        found.blob_files = SledKv::blob_files(&kv)?;
        match std::panic::catch_unwind(|| self.engine.open(&kv)) {
            Err(_) => found.problems.push("opening the map panicked".to_owned()),
            Ok(Err(error)) => found.problems.push(format!("the map does not open: {error}")),
            Ok(Ok(map)) => match tokio::spawn(check_map(map, acknowledged)).await {
                Ok(problems) => found.problems.extend(problems),
                Err(error) => found.problems.push(format!("reading the map: {error}")),
            },
        }
        Ok(found)
    }
}

/// Each key must hold its last acknowledged value, or the one under way at the cut.
async fn check_map(map: SharedKv, acknowledged: u64) -> Vec<String> {
    let mut problems = Vec::new();
    let mut last: BTreeMap<Bytes, u64> = BTreeMap::new();
    for number in 0..=acknowledged {
        last.insert(key(number), number);
    }
    for (key_bytes, number) in last {
        let under_way = (key(acknowledged + 1) == key_bytes).then_some(acknowledged + 1);
        match map.get(&key_bytes).await {
            Ok(Some(found)) if found == value(number) => {}
            Ok(Some(found)) if under_way.is_some_and(|n| found == value(n)) => {}
            Ok(Some(_)) => problems.push(format!("commit {number} is lost: another value")),
            Ok(None) => problems.push(format!("commit {number} is lost")),
            Err(error) => problems.push(format!("commit {number}: {error}")),
        }
    }
    map.close().await;
    problems
}

/// A disk with a volatile cache.
struct Device {
    durable: Vec<u8>,
    /// Writes since the last flush.
    cached: Vec<(usize, Vec<u8>)>,
}

impl Device {
    fn apply(&mut self, request: &Request) {
        if request.flush {
            for (at, data) in std::mem::take(&mut self.cached) {
                self.durable[at..at + data.len()].copy_from_slice(&data);
            }
        }
        let at = usize::try_from(request.at).unwrap_or(usize::MAX);
        // Marks lie behind the file system.
        if at >= self.durable.len() || request.data.is_empty() {
            return;
        }
        if request.through {
            self.durable[at..at + request.data.len()].copy_from_slice(&request.data);
        } else {
            self.cached.push((at, request.data.clone()));
        }
    }

    /// What is left: of the cache nothing, all, or some blocks.
    fn after_cut(&self, entropy: &dyn Entropy) -> Vec<u8> {
        let mut image = self.durable.clone();
        let chance = [0.0, 0.5, 0.9, 1.0][usize::try_from(entropy.u64() % 4).expect("below 4")];
        for (at, data) in &self.cached {
            for (n, block) in data.chunks(TORN_BYTES).enumerate() {
                if entropy.fraction() < chance {
                    let start = at + n * TORN_BYTES;
                    image[start..start + block.len()].copy_from_slice(block);
                }
            }
        }
        image
    }
}

fn write_sparse(path: &Path, image: &[u8]) -> anyhow::Result<()> {
    const BLOCK: usize = 64 * 1024;
    let file = File::create(path)?;
    file.set_len(u64::try_from(image.len())?)?;
    let zeros = vec![0; BLOCK];
    for (n, block) in image.chunks(BLOCK).enumerate() {
        if block != &zeros[..block.len()] {
            file.write_all_at(block, u64::try_from(n * BLOCK)?)?;
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the test's tools are processes")]
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    // The tools of e2fsprogs are not on a user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).stdin(Stdio::null());
    command
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = command(program).args(args).output().with_context(|| {
        format!("start {program}; scripts/setup.sh installs what the tests need")
    })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {args:?}: {stderr}");
    Ok(output.stdout)
}

/// The guest's files: the tiny guest's, with the writer, its libraries and a script that starts
/// it added. The disk is virtio because QEMU's NVMe does not pass on "force unit access".
fn initramfs(dir: &Path, guest: &Path) -> anyhow::Result<Vec<u8>> {
    const INIT: &str = "#!/bin/busybox sh\n\
        while read -r module; do /bin/busybox insmod /lib/modules/$module; done \
            </lib/modules/order\n\
        /bin/busybox mount -t devtmpfs dev /dev\n\
        /bin/busybox mount -t ext4 /dev/vda /data\n\
        /bin/writer \"$ENGINE\" \"$WORK\" /data/kv /dev/vda\n\
        /bin/busybox reboot -f\n";
    // Data for debuggers is most of it, and files in memory may take half of the guest's.
    let (built, writer) = (crate::binary("power-cut-writer"), dir.join("writer"));
    let writer = writer.display().to_string();
    run("strip", &["--strip-debug", "-o", &writer, &built.display().to_string()])?;
    // The kernel unpacks one archive after the other.
    let mut archive = Cpio(std::fs::read(guest.join("initrd.gz"))?);
    archive.pad();
    for dir in ["dev", "data", "lib", "lib64"] {
        archive.directory(dir);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/writer", &std::fs::read(&writer)?);
    for line in String::from_utf8(run("ldd", &[&writer])?)?.lines() {
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        let path = Path::new(path);
        let name = path.file_name().context("a library has a name")?.to_string_lossy();
        let dir = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
        archive.file(&format!("{dir}/{name}"), &std::fs::read(path)?);
    }
    Ok(archive.finish())
}

/// Boots the guest with an empty disk and lets its writer do `work`; the file system as it was
/// before.
///
/// # Errors
/// A tool that is missing or failed, a guest that did not finish.
pub fn run_guest(dir: &Path, guest: &Path, engine: Engine, work: &str) -> anyhow::Result<Vec<u8>> {
    let disk = dir.join("disk.raw");
    File::create(&disk)?.set_len(MARK_AT + (1 << 20))?;
    let blocks = (MARK_AT / 4096).to_string();
    let disk_text = disk.display().to_string();
    run("mkfs.ext4", &["-q", "-F", "-b", "4096", &disk_text, &blocks])?;
    let mut blank = std::fs::read(&disk)?;
    blank.truncate(usize::try_from(MARK_AT)?);
    let initrd = dir.join("initrd");
    std::fs::write(&initrd, initramfs(dir, guest)?)?;
    // QEMU does not grow it by itself.
    File::create(dir.join("log.raw"))?.set_len(2 << 30)?;
    boot(dir, &guest.join("vmlinuz"), &initrd, &format!("ENGINE={} WORK={work}", engine.name()))?;
    Ok(blank)
}

/// Longest life of the guest: a machine that is busy with other things emulates slowly. Seconds.
const GUEST_SECONDS: &str = "250";

fn boot(dir: &Path, vmlinuz: &Path, initrd: &Path, words: &str) -> anyhow::Result<()> {
    let file = |name: &str| dir.join(name).display().to_string();
    let console = file("console.log");
    let mut child = command("timeout")
        .args([
            "--kill-after=5",
            GUEST_SECONDS,
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-user-config",
        ])
        .args(["-display", "none", "-no-reboot", "-M", "pc", "-accel", "tcg", "-cpu", "max"])
        .args(["-m", "288", "-serial", &format!("file:{console}")])
        .args(["-kernel", &vmlinuz.display().to_string()])
        .args(["-initrd", &initrd.display().to_string()])
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")])
        .args(["-blockdev", &format!("file,node-name=disk,filename={}", file("disk.raw"))])
        .args(["-blockdev", &format!("file,node-name=log,filename={}", file("log.raw"))])
        .args(["-blockdev", "blklogwrites,node-name=logged,file=disk,log=log"])
        .args(["-device", "virtio-blk-pci,drive=logged,write-cache=on"])
        .stdout(Stdio::null())
        .stderr(File::create(dir.join("qemu.log"))?)
        .spawn()
        .context("start QEMU")?;
    let status = child.wait()?;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let printed = read(&console);
    ensure!(
        status.success() && printed.contains("power-cut-writer: done"),
        "the guest did not finish ({status}): {printed}{}",
        read(&file("qemu.log"))
    );
    Ok(())
}

/// An archive in the kernel's initramfs format ("newc").
struct Cpio(Vec<u8>);

impl Cpio {
    fn directory(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    fn file(&mut self, name: &str, data: &[u8]) {
        self.entry(name, 0o100_755, data);
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        let inode = self.0.len();
        let (size, name_size) = (data.len(), name.len() + 1);
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}\
             {0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}",
            0, 1
        );
        self.0.extend(header.bytes().chain(name.bytes()).chain([0]));
        self.pad();
        self.0.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.0
    }
}
