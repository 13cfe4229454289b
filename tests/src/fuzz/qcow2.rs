//! Headers of image files that somebody else made: `drivers::storage::qcow2`.

use muster_agent::drivers::storage::qcow2;

/// Inspects the start of a file.
pub fn run(data: &[u8]) {
    let header = qcow2::parse(data);
    let base = qcow2::base_name(data);
    if qcow2::check(data, 1 << 20).is_ok() {
        assert!(data.len() >= 72, "more was read than there is");
    }
    match (header, base) {
        (Ok(Some(header)), Ok(base)) => {
            assert!(header.size_bytes > 0);
            assert!(base.is_none() || header.refers_to_files, "a base that is not seen");
        }
        (Ok(Some(header)), Err(_)) => assert!(header.refers_to_files, "only its base is unusable"),
        (Ok(None), found) => assert_eq!(found, Err(qcow2::BadHeader::NoHeader)),
        (Err(refused), found) => assert_eq!(found, Err(refused)),
    }
}
