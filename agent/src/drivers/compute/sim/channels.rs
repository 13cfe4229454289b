//! What simulated guests say on their channels: a guest agent that can freeze file systems, and a port
//! for metadata whose guest is the test.

use serde_json::Map;
use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream};

use super::*;

impl SimGuests {
    /// A guest agent runs in the guest from now on.
    pub fn install_agent(&self, vm: VmUuid) {
        self.content.lock().agents.insert(vm);
    }

    /// A guest agent runs in the guest that says these lines, one to each question whatever it is, and
    /// then closes its channel.
    pub fn install_talker(&self, vm: VmUuid, lines: impl IntoIterator<Item = Vec<u8>>) {
        self.install_agent(vm);
        self.content.lock().said.insert(vm, lines.into_iter().collect());
    }

    /// Whether the guest's file systems stand still.
    #[must_use]
    pub fn is_frozen(&self, vm: VmUuid) -> bool {
        self.content.lock().running.get(&vm).is_some_and(|guest| guest.frozen)
    }

    /// The guest's file systems stand still.
    pub fn freeze(&self, vm: VmUuid) {
        if let Some(guest) = self.content.lock().running.get_mut(&vm) {
            guest.frozen = true;
        }
    }

    /// The guest's end of its metadata port, once somebody has opened the other one.
    #[must_use]
    pub fn metadata_port(&self, vm: VmUuid) -> Option<DuplexStream> {
        self.content.lock().metadata_ports.remove(&vm)
    }

    pub(super) fn agent_channel(&self, vm: VmUuid) -> AgentChannel {
        match self.content.lock().agents.contains(&vm) {
            true => AgentChannel::Open,
            false => AgentChannel::Closed,
        }
    }

    pub(super) fn offer_metadata_port(&self, vm: VmUuid, port: DuplexStream) {
        self.content.lock().metadata_ports.insert(vm, port);
    }

    /// Answers as a guest agent does, until the other end is closed.
    pub(super) async fn answer_as_agent(self, vm: VmUuid, port: DuplexStream) {
        let mut port = BufReader::new(port);
        let mut line = Vec::new();
        while port.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
            let question = line.rsplit(|byte| *byte == 0xff).next().unwrap_or_default();
            let question: Value = serde_json::from_slice(question).unwrap_or_default();
            let begins = question["execute"] == "guest-sync-delimited";
            let said = if begins { None } else { self.said(vm) };
            let done = || match self.done(vm, &question) {
                Some(done) => json!({ "return": done }),
                None => json!({ "error": { "class": "CommandNotFound", "desc": "unknown" } }),
            };
            let mut answer = match said {
                Some(None) => return,
                Some(Some(said)) => said,
                None => done().to_string().into_bytes(),
            };
            answer.push(b'\n');
            if begins {
                answer.insert(0, 0xff);
            }
            if port.write_all(&answer).await.is_err() {
                return;
            }
            line.clear();
        }
    }

    /// What the guest agent says next, if it only says what it was told to; `None` within: nothing more.
    fn said(&self, vm: VmUuid) -> Option<Option<Vec<u8>>> {
        self.content.lock().said.get_mut(&vm).map(VecDeque::pop_front)
    }

    fn done(&self, vm: VmUuid, question: &Value) -> Option<Value> {
        let mut content = self.content.lock();
        let guest = content.running.get_mut(&vm)?;
        match question["execute"].as_str()? {
            "guest-sync-delimited" => Some(question["arguments"]["id"].clone()),
            "guest-fsfreeze-status" => Some(json!(if guest.frozen { "frozen" } else { "thawed" })),
            "guest-fsfreeze-freeze" => {
                Some(json!(u8::from(!std::mem::replace(&mut guest.frozen, true))))
            }
            "guest-fsfreeze-thaw" => {
                Some(json!(u8::from(std::mem::replace(&mut guest.frozen, false))))
            }
            "guest-get-host-name" => Some(json!({ "host-name": "simulated" })),
            "guest-exec" => Some(json!({ "pid": 7 })),
            "guest-exec-status" => {
                Some(json!({ "exited": true, "exitcode": 0, "out-data": "b2s=" }))
            }
            "guest-file-open" => Some(json!(1)),
            "guest-file-read" => Some(json!({ "count": 0, "buf-b64": "", "eof": true })),
            "guest-file-write" => Some(json!({ "count": 2, "eof": false })),
            "guest-file-seek" => Some(json!({ "position": 0, "eof": false })),
            "guest-file-flush"
            | "guest-file-close"
            | "guest-set-user-password"
            | "guest-ssh-add-authorized-keys" => Some(Value::Object(Map::new())),
            _ => None,
        }
    }
}
