//! The durable history of tasks, on a [`Kv`](muster_shared::kv::Kv).
//!
//! Keys: `task/<id>` the record without its large members; `params/<id>/<n>`, `result/<id>/<n>` and
//! `notes/<id>/<n>` those, in pieces; `acked/<id>` marks an acknowledged result;
//! `ticket/<resource>` the newest fencing token; `returned/<id>` a task that was given back;
//! `intake` pause and drain.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_shared::ids::TaskId;
use muster_shared::kv::{Change, KvError, SharedKv};
use muster_shared::wire::{self, Token};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::Record;

/// Size of a piece; a batch of a whole record stays well below what a commit may hold.
const PIECE_BYTES: usize = 128 * 1024;
/// Entries read at a time.
const PAGE: usize = 200;

const TASK: &str = "task/";
const ACKED: &str = "acked/";
const TICKET: &str = "ticket/";
const RETURNED: &str = "returned/";
const INTAKE: &[u8] = b"intake";

/// The journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The map below failed.
    #[error("{action} the task journal")]
    Kv {
        /// What was attempted.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: KvError,
    },
    /// What it holds can't be understood.
    #[error("journal entry {key} is damaged")]
    Damaged {
        /// The entry.
        key: String,
        /// The parser's complaint.
        #[source]
        source: serde_json::Error,
    },
}

/// Whether new tasks are taken, as it survives a restart within one boot of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "AnyIntake")]
pub struct StoredIntake {
    /// The boot it holds for.
    pub boot_id: String,
    /// Why paused, by owner.
    pub pauses: BTreeMap<String, String>,
    /// The drains under way, by owner.
    pub drains: BTreeMap<String, StoredDrain>,
}

/// As [`StoredIntake`], of any version: earlier ones knew no owners.
#[derive(Deserialize)]
struct AnyIntake {
    boot_id: String,
    #[serde(default)]
    pauses: BTreeMap<String, String>,
    #[serde(default)]
    drains: BTreeMap<String, StoredDrain>,
    #[serde(default)]
    paused: Option<String>,
    #[serde(default)]
    drain: Option<StoredDrain>,
}

impl From<AnyIntake> for StoredIntake {
    fn from(any: AnyIntake) -> Self {
        let AnyIntake { boot_id, mut pauses, mut drains, paused, drain } = any;
        pauses.extend(paused.map(|reason| (wire::OPERATOR.to_owned(), reason)));
        drains.extend(drain.map(|drain| (wire::job_owner(&drain.token), drain)));
        Self { boot_id, pauses, drains }
    }
}

/// A drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDrain {
    /// For people.
    pub reason: String,
    /// Names the request.
    pub token: TaskId,
    /// When it ends by itself.
    pub until: jiff::Timestamp,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Every readable record (without large members), and whether its result is acknowledged.
    pub records: Vec<(Record, bool)>,
    /// Tasks whose record can't be understood.
    pub damaged: Vec<TaskId>,
    /// Newest token of each resource.
    pub tickets: Vec<(String, Token)>,
    /// Tasks that were given back, which no coordinator has taken note of.
    pub returned: Vec<TaskId>,
    /// Pause and drain.
    pub intake: Option<StoredIntake>,
}

/// Reads and writes task records.
#[derive(Debug)]
pub struct Journal {
    kv: SharedKv,
}

impl Journal {
    /// A journal in the given map.
    #[must_use]
    pub fn new(kv: SharedKv) -> Self {
        Self { kv }
    }

    /// Reads everything but the large members.
    ///
    /// # Errors
    /// The map can't be read.
    pub async fn load(&self) -> Result<Loaded, JournalError> {
        let mut loaded = Loaded::default();
        let mut acked = std::collections::BTreeSet::new();
        for (key, _) in self.all(ACKED).await? {
            acked.insert(key);
        }
        for (key, value) in self.all(TASK).await? {
            match serde_json::from_slice::<Record>(&value) {
                Ok(record) => {
                    let is_acked = acked.contains(&key);
                    loaded.records.push((record, is_acked));
                }
                Err(error) => {
                    tracing::error!(%error, task_id = key, "a task record is damaged");
                    loaded.damaged.extend(key.parse::<TaskId>().ok());
                }
            }
        }
        for (resource, value) in self.all(TICKET).await? {
            let token = parse(&resource, &value)?;
            loaded.tickets.push((resource, token));
        }
        for (id, _) in self.all(RETURNED).await? {
            loaded.returned.extend(id.parse::<TaskId>().ok());
        }
        let intake = self.kv.get(INTAKE).await.map_err(reading)?;
        loaded.intake = intake.map(|value| parse("intake", &value)).transpose()?;
        Ok(loaded)
    }

    async fn all(&self, prefix: &str) -> Result<Vec<(String, Bytes)>, JournalError> {
        let mut found: Vec<(String, Bytes)> = Vec::new();
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.kv.scan(prefix.as_bytes(), after.as_deref(), PAGE).await;
            let page = page.map_err(reading)?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = Some(last.clone());
            found.extend(page.into_iter().map(|(key, value)| {
                let name = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
                (name, value)
            }));
        }
    }

    /// Reads a record's parameters, result and notes.
    ///
    /// # Errors
    /// The map can't be read, or holds something else.
    pub async fn fill(&self, record: &mut Record) -> Result<(), JournalError> {
        let params = self.large("params", &record.id, record.params_bytes).await?;
        if !params.is_empty() {
            record.params = parse(&format!("params/{}", record.id), &params)?;
        }
        let result = self.large("result", &record.id, record.result_bytes).await?;
        if !result.is_empty() {
            record.result = parse(&format!("result/{}", record.id), &result)?;
        }
        let notes = self.large("notes", &record.id, record.notes_bytes).await?;
        if !notes.is_empty() {
            record.notes = parse(&format!("notes/{}", record.id), &notes)?;
        } else if !record.state.is_terminal() {
            // Earlier versions noted in the result.
            record.notes = record.result.clone();
        }
        Ok(())
    }

    /// One whole record.
    ///
    /// # Errors
    /// The map can't be read, or holds something else.
    pub async fn get(&self, id: &TaskId) -> Result<Option<Record>, JournalError> {
        let key = format!("{TASK}{id}");
        let Some(value) = self.kv.get(key.as_bytes()).await.map_err(reading)? else {
            return Ok(None);
        };
        let mut record: Record = parse(&key, &value)?;
        self.fill(&mut record).await?;
        Ok(Some(record))
    }

    async fn large(&self, kind: &str, id: &TaskId, bytes: usize) -> Result<Vec<u8>, JournalError> {
        let mut all = Vec::with_capacity(bytes);
        for n in 0..bytes.div_ceil(PIECE_BYTES) {
            let key = piece_key(kind, id, n);
            all.extend(self.kv.get(&key).await.map_err(reading)?.unwrap_or_default());
        }
        all.truncate(bytes);
        Ok(all)
    }

    /// Writes changes; durable when it returns.
    ///
    /// # Errors
    /// Nothing was written, or ([`KvError::Io`]) the device failed.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<(), JournalError> {
        self.kv.commit(changes).await.map_err(|source| JournalError::Kv { action: "write", source })
    }
}

fn reading(source: KvError) -> JournalError {
    JournalError::Kv { action: "read", source }
}

fn parse<T: for<'de> Deserialize<'de>>(key: &str, value: &[u8]) -> Result<T, JournalError> {
    serde_json::from_slice(value)
        .map_err(|source| JournalError::Damaged { key: key.to_owned(), source })
}

fn piece_key(kind: &str, id: &TaskId, n: usize) -> Bytes {
    format!("{kind}/{id}/{n:04}").into()
}

fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("records have only string keys")
}

/// The change that stores a record without its large members.
#[must_use]
pub fn put_record(record: &Record) -> Change {
    Change::Put(format!("{TASK}{}", record.id).into(), to_json(record).into())
}

/// The changes that store the parameters; sets their size in the record, which is stored after.
pub fn put_params(record: &mut Record) -> Vec<Change> {
    let json = to_json(&record.params);
    let old = std::mem::replace(&mut record.params_bytes, json.len());
    pieces("params", &record.id, &json, old)
}

/// The changes that store result and notes; sets their sizes in the record, which is stored after.
pub fn put_result(record: &mut Record) -> Vec<Change> {
    let json = |value: &Value| if value.is_null() { Vec::new() } else { to_json(value) };
    let (result, notes) = (json(&record.result), json(&record.notes));
    let old = std::mem::replace(&mut record.result_bytes, result.len());
    let mut changes = pieces("result", &record.id, &result, old);
    let old = std::mem::replace(&mut record.notes_bytes, notes.len());
    changes.extend(pieces("notes", &record.id, &notes, old));
    changes
}

fn pieces(kind: &str, id: &TaskId, json: &[u8], old_bytes: usize) -> Vec<Change> {
    let put = |(n, piece): (usize, &[u8])| {
        Change::Put(piece_key(kind, id, n), Bytes::copy_from_slice(piece))
    };
    let mut changes: Vec<Change> = json.chunks(PIECE_BYTES).enumerate().map(put).collect();
    let surplus = changes.len()..old_bytes.div_ceil(PIECE_BYTES);
    changes.extend(surplus.map(|n| Change::Delete(piece_key(kind, id, n))));
    changes
}

/// The changes that remove every trace of a task.
#[must_use]
pub fn forget(id: &TaskId, params_bytes: usize, result_bytes: usize) -> Vec<Change> {
    let mut changes = vec![
        Change::Delete(format!("{TASK}{id}").into()),
        Change::Delete(format!("{ACKED}{id}").into()),
    ];
    for (kind, bytes) in [("params", params_bytes), ("result", result_bytes)] {
        let keys = (0..bytes.div_ceil(PIECE_BYTES)).map(|n| piece_key(kind, id, n));
        changes.extend(keys.map(Change::Delete));
    }
    changes
}

/// The change that marks a result acknowledged.
#[must_use]
pub fn put_acked(id: &TaskId) -> Change {
    Change::Put(format!("{ACKED}{id}").into(), Bytes::new())
}

/// The change that stores that a task was given back.
#[must_use]
pub fn put_returned(id: &TaskId) -> Change {
    Change::Put(format!("{RETURNED}{id}").into(), Bytes::new())
}

/// The change that forgets it.
#[must_use]
pub fn forget_returned(id: &TaskId) -> Change {
    Change::Delete(format!("{RETURNED}{id}").into())
}

/// The change that stores the newest token of a resource.
#[must_use]
pub fn put_ticket(resource: &str, token: &Token) -> Change {
    Change::Put(format!("{TICKET}{resource}").into(), to_json(token).into())
}

/// The change that forgets a resource's token.
#[must_use]
pub fn forget_ticket(resource: &str) -> Change {
    Change::Delete(format!("{TICKET}{resource}").into())
}

/// The change that stores pause and drain.
#[must_use]
pub fn put_intake(intake: &StoredIntake) -> Change {
    Change::Put(Bytes::from_static(INTAKE), to_json(intake).into())
}
