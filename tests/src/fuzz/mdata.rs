//! What guests send on their metadata ports: `metadata::line`, `metadata::protocol` and what is made of
//! requests, `metadata::keys`.

use futures_util::FutureExt as _;
use muster_agent::metadata::keys::{View, change};
use muster_agent::metadata::line::{Lines, Read};
use muster_agent::metadata::protocol::{
    self, Answer, Command, Line, MAX_KEY_BYTES, MAX_LINE_BYTES,
};
use muster_agent::vm_record::VmRecord;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::vm::{MAX_VM_BYTES, json_bytes};
use serde_json::{Map, Value, json};

/// What is read at a time may follow a line that is as long as one can be.
const MAX_READ_BYTES: usize = MAX_LINE_BYTES + 64 * 1024;

/// Reads a stream of lines: each as it is, and as the body of a request whose length and checksum are
/// right, which no generated one would be.
pub fn run(data: &[u8]) {
    let mut vm = vm();
    let mut lines = Lines::new(data);
    loop {
        let read = lines.next().now_or_never().expect("all of it is there");
        match read.expect("a slice can be read") {
            Read::End => break,
            Read::TooLong => assert!(data.len() > MAX_LINE_BYTES, "nothing is that long"),
            Read::Line(line) => {
                assert!(!line.contains(&b'\n') && line.len() <= MAX_READ_BYTES);
                carry_out(&mut vm, &line);
                if let Ok(body) = std::str::from_utf8(&line) {
                    carry_out(&mut vm, protocol::framed_as_line(body).trim_end().as_bytes());
                }
            }
        }
    }
}

/// A VM with something of each kind of key.
fn vm() -> VmRecord {
    let properties = json!({
        "alias": "web", "resolvers": ["192.0.2.53"], "routes": { "10.1.0.0/16": "10.0.0.1" },
        "nics": [{ "mac": "02:00:00:00:00:01" }],
        "customer_metadata": { "color": "blue", "count": 3 },
        "internal_metadata": { "root_pw": "secret", "op:x": "y", "muster:hostfwd": "z" },
        "internal_metadata_namespaces": ["op"],
    });
    let Value::Object(properties) = properties else { unreachable!("it is an object") };
    VmRecord::new(
        VmUuid(uuid::Uuid::from_u128(1)),
        TaskId::from(uuid::Uuid::from_u128(2)),
        properties,
    )
}

fn carry_out(vm: &mut VmRecord, line: &[u8]) {
    let Ok(Line::Request(id, command)) = protocol::read(line) else { return };
    let before = vm.properties.clone();
    let looked_up = View { vm: &*vm, datacenter: None, server: None }.answer(&command);
    let answer = looked_up.unwrap_or_else(|| change(vm, &command));
    let sent = protocol::written(&id, &answer);
    assert_eq!(sent.matches('\n').count(), 1, "an answer is one line");
    assert_eq!(protocol::read(sent.trim_end_matches('\n').as_bytes()), Ok(Line::Echo), "{sent}");
    check_change(&before, vm, &command, &answer);
}

/// A guest changes its own metadata alone, as it was told, and fills no record.
fn check_change(before: &Map<String, Value>, vm: &VmRecord, command: &Command, answer: &Answer) {
    let others = |properties: &Map<String, Value>| {
        let mut others = properties.clone();
        others.shift_remove("customer_metadata");
        others
    };
    assert_eq!(others(before), others(&vm.properties), "{command:?}");
    let grown = json_bytes(&vm.properties) > json_bytes(before);
    assert!(!grown || json_bytes(&vm.properties) <= MAX_VM_BYTES);
    let done = matches!(answer, Answer::Success(_));
    let got = |key: &str| {
        let get = Command::Get(key.to_owned());
        View { vm, datacenter: None, server: None }.answer(&get).expect("it changes nothing")
    };
    match command {
        Command::Put(key, value) if done => {
            assert!(!key.is_empty() && key.len() <= MAX_KEY_BYTES);
            assert_eq!(got(key), Answer::Success(Some(value.clone())));
        }
        Command::Delete(key) if done => assert_eq!(got(key), Answer::NotFound),
        Command::Put(..) | Command::Delete(_) => assert_eq!(*before, vm.properties),
        Command::Get(_) | Command::Keys => assert_eq!(*before, vm.properties),
    }
}
