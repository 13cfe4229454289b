//! Exports of VMs, as `muster vm import` reads them (`export::Reader`).

use muster_shared::export::{Event, MAX_DATA_BYTES, Reader, Writer};
use sha2::{Digest as _, Sha256};

/// Magic and form; head of a frame; its checksum.
const START_BYTES: usize = 12;
const HEAD_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;

/// Reads an export as it is, and as if whoever wrote it had computed its checksums: else next to
/// nothing would come past them.
pub fn run(data: &[u8]) {
    check(data);
    check(&sealed(data.to_vec()));
}

/// With the checksums that its frames would have.
fn sealed(mut data: Vec<u8>) -> Vec<u8> {
    let Some(start) = data.get(..START_BYTES) else { return data };
    let mut digest = Sha256::digest(start);
    let mut at = START_BYTES;
    while let Some(length) = data.get(at + 4..at + 8) {
        let length = u32::from_be_bytes(length.try_into().expect("there are four"));
        let content = at + HEAD_BYTES + DIGEST_BYTES;
        let end = content.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        let Some(bytes) = data.get(content..end) else { break };
        let mut hash = Sha256::new();
        hash.update(digest);
        hash.update(&data[at..at + HEAD_BYTES]);
        hash.update(bytes);
        digest = hash.finalize();
        data[at + HEAD_BYTES..content].copy_from_slice(&digest);
        at = end;
    }
    data
}

/// Whatever comes out is in order and within its volumes, and writing it again
/// gives as much.
fn check(data: &[u8]) {
    let mut reader = Reader::new(data);
    let mut volumes = Vec::new();
    let mut writer = None;
    let mut last = (0, 0);
    let mut total = 0_u64;
    loop {
        let before = reader.place();
        match reader.next_event() {
            Ok(Some(Event::Header(header))) => {
                assert!(volumes.is_empty(), "there is one header");
                assert!(!header.volumes.is_empty());
                writer = Some(Writer::begin(Vec::new(), &header).expect("it is in memory"));
                volumes = header.volumes;
            }
            Ok(Some(Event::Data { volume, offset, data })) => {
                assert!(!data.is_empty() && data.len() <= MAX_DATA_BYTES);
                let end = offset + u64::try_from(data.len()).expect("it is small");
                assert!(end <= volumes[volume].size_bytes, "it is within its volume");
                assert!((volume, offset) >= last, "it is in order");
                last = (volume, end);
                total += u64::try_from(data.len()).expect("it is small");
                let writer = writer.as_mut().expect("the header comes first");
                writer.data(volume, offset, &data).expect("it is in memory");
            }
            Ok(Some(Event::End { data_bytes })) => assert_eq!(data_bytes, total),
            Ok(None) => break,
            Err(_) => {
                let start = u64::try_from(START_BYTES).expect("it is small");
                let at = before.at.max(start.min(reader.place().at));
                assert_eq!(reader.place().at, at, "what is refused is not counted");
                return;
            }
        }
        assert!(reader.place().at > before.at, "it goes on");
    }
    // Members of a header that this version does not know are not written again.
    let again = writer.expect("there was a header").end().expect("it is in memory");
    assert!(again.len() <= data.len() * 2 + 4096);
}
