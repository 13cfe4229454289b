//! An export of a VM, as a client reads it and brings it to a server.

use std::path::Path;

use muster_shared::export::{Event, Header, Reader};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::http::Client;

/// All of one.
#[derive(Debug)]
pub struct Exported {
    /// What it begins with.
    pub header: Header,
    /// The content of its volumes, without what is only zeros.
    pub pieces: Vec<Piece>,
}

/// What stands at one place of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The volume's number.
    pub volume: usize,
    /// Bytes before it.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Piece {
    /// Writes it into the VM whose import is at `path`.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn write(&self, client: &Client, path: &str, durable: bool) {
        let Self { volume, offset, data } = self;
        let sum = hex::encode(Sha256::digest(data));
        let path = format!("{path}?volume={volume}&offset={offset}&sha256={sum}&durable={durable}");
        let octets = "application/octet-stream";
        client.send_bytes(Method::PUT, &path, octets, data.clone()).await.expect(200);
    }
}

impl Exported {
    /// Reads a file.
    ///
    /// # Panics
    /// If it is no whole export.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let file = std::fs::File::open(path).expect("the export");
        let mut reader = Reader::new(std::io::BufReader::new(file));
        let Some(Event::Header(header)) = reader.next_event().expect("a header") else {
            panic!("the header comes first");
        };
        let mut pieces = Vec::new();
        while let Some(event) = reader.next_event().expect("it is whole") {
            if let Event::Data { volume, offset, data } = event {
                pieces.push(Piece { volume, offset, data });
            }
        }
        Self { header: *header, pieces }
    }

    /// The request for a VM of this uuid that is to be filled with it.
    #[must_use]
    pub fn request(&self, vm: &str) -> Value {
        let Header { vm: payload, snapshot, volumes, .. } = &self.header;
        let mut payload = payload.clone();
        let from = payload.insert("uuid".to_owned(), json!(vm));
        let from = from.as_ref().and_then(Value::as_str).unwrap_or(vm);
        let export = format!("{from}/{snapshot}");
        json!({ "vm": payload, "export": export, "volumes": volumes })
    }

    /// The content of all volumes, one after the other.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|piece| &piece.data).copied().collect()
    }
}
