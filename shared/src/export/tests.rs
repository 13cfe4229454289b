use proptest::prelude::*;
use serde_json::json;

use super::*;

fn header() -> Header {
    Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        exported_at: "2026-01-01T00:00:00.000Z".to_owned(),
        muster_version: "1".to_owned(),
        server_uuid: uuid::Uuid::from_u128(1).into(),
        vm_uuid: uuid::Uuid::from_u128(2).into(),
        snapshot: "export-1".to_owned(),
        live: false,
        vm: json!({ "brand": "kvm" }).as_object().unwrap().clone(),
        volumes: vec![
            Volume { role: Role::Firmware, size_bytes: 100, number: 0 },
            Volume { role: Role::Disk(0), size_bytes: 1 << 20, number: 0 },
        ],
    }
}

fn pieces() -> Vec<(usize, u64, Vec<u8>)> {
    vec![(0, 0, vec![7; 100]), (1, 4096, vec![1; 10]), (1, 65536, (0..=255).collect())]
}

fn export() -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
    for (volume, offset, data) in pieces() {
        writer.data(volume, offset, &data).unwrap();
    }
    writer.end().unwrap()
}

fn read_all(bytes: &[u8]) -> Result<Vec<Event>, ReadError> {
    let mut reader = Reader::new(bytes);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok(events)
}

/// A stream of one header.
fn of_header(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut changed = header();
    change(&mut changed);
    Writer::begin(Vec::new(), &changed).unwrap().end().unwrap()
}

#[test]
fn what_is_written_is_read() {
    let events = read_all(&export()).unwrap();
    let mut wanted = vec![Event::Header(Box::new(header()))];
    wanted.extend(pieces().into_iter().map(|(volume, offset, data)| Event::Data {
        volume,
        offset,
        data,
    }));
    wanted.push(Event::End { data_bytes: 366 });
    assert_eq!(events, wanted);
    // After the end there is nothing more to ask for.
    let bytes = export();
    let mut reader = Reader::new(&bytes[..]);
    while reader.next_event().unwrap().is_some() {}
    assert_eq!(reader.next_event().unwrap(), None);
}

#[test]
fn a_stream_that_was_cut_goes_on_after_its_last_whole_frame() {
    let whole = export();
    for cut in 0..whole.len() {
        let mut reader = Reader::new(&whole[..cut]);
        let error = loop {
            match reader.next_event() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it was cut at {cut}"),
                Err(error) => break error,
            }
        };
        let place = reader.place();
        let is_short = place.at == 0;
        assert!(
            matches!(error, ReadError::Cut { at } if at == place.at)
                || (is_short && matches!(error, ReadError::NotAnExport)),
            "{cut}: {error}"
        );
        if place.data_bytes == 0 {
            continue;
        }
        let mut again = whole[..usize::try_from(place.at).unwrap()].to_vec();
        let mut writer = Writer::go_on(&mut again, place);
        for (volume, offset, data) in pieces() {
            if (volume, offset) >= (place.volume, place.offset) {
                writer.data(volume, offset, &data).unwrap();
            }
        }
        writer.end().unwrap();
        assert_eq!(again, whole, "cut at {cut}");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let whole = export();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        read_all(&damaged).expect_err(&format!("byte {at}"));
    }
}

#[test]
fn a_damaged_piece_is_named_with_its_place() {
    let mut damaged = export();
    let last = damaged.len() - 49;
    damaged[last] ^= 1;
    let error = read_all(&damaged).unwrap_err().to_string();
    assert!(error.contains("256 bytes of disk 0 from byte 65536 on"), "{error}");
}

#[track_caller]
fn check_refused(bytes: &[u8], problem: &str) {
    let error = read_all(bytes).unwrap_err().to_string();
    assert!(error.contains(problem), "{error}");
}

#[test]
fn what_nobody_would_write_is_refused() {
    check_refused(b"", "not an export");
    check_refused(b"\x1f\x8b something else altogether", "not an export");
    let mut later = export();
    later[11] = 2;
    check_refused(&later, "form 2");
    let mut more = export();
    more.push(0);
    check_refused(&more, "more follows");
    check_refused(&of_header(|header| header.volumes.clear()), "no volumes");
    check_refused(&of_header(|header| header.volumes.reverse()), "not in order");
    check_refused(&of_header(|header| header.volumes[0].size_bytes = 0), "no size");
    check_refused(&of_header(|header| header.version = 2), "later version");
    check_refused(&of_header(|header| header.format = "x".to_owned()), "format");
}

/// Pieces that a writer writes without a look at the header.
#[track_caller]
fn check_pieces(pieces: &[(usize, u64, usize)], problem: &str) {
    let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
    for (volume, offset, length) in pieces {
        writer.data(*volume, *offset, &vec![1; *length]).unwrap();
    }
    check_refused(&writer.end().unwrap(), problem);
}

#[test]
fn pieces_are_in_order_and_within_their_volumes() {
    check_pieces(&[(2, 0, 1)], "volume 2, which there is not");
    check_pieces(&[(0, 99, 2)], "not within its volume");
    check_pieces(&[(0, u64::MAX, 2)], "not within its volume");
    check_pieces(&[(1, 0, 2), (1, 1, 1)], "not in order");
    check_pieces(&[(1, 0, 2), (0, 0, 1)], "not in order");
}

#[test]
fn a_frame_that_is_too_long_takes_no_memory() {
    let mut bytes = export();
    // The length of the header's frame.
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    check_refused(&bytes, "too long");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, claims: bool) {
        if claims {
            bytes.splice(0..0, export()[..40].iter().copied());
        }
        prop_assert!(read_all(&bytes).is_err());
    }
}
