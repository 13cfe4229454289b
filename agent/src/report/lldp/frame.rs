//! What a neighbour says of itself: frames of IEEE 802.1AB, read strictly. Who sends them is not known,
//! and need not mean well.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde::Serialize;

/// Their kind of Ethernet frame.
pub const ETHERTYPE: u16 = 0x88cc;
/// Where they are sent to: no bridge passes them on.
pub const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
/// The longest that is read, bytes.
pub const MAX_FRAME_BYTES: usize = 1500;

const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TIME: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;
const SYSTEM_DESCRIPTION: u8 = 6;
const MANAGEMENT: u8 = 8;
const ORGANIZATION: u8 = 127;
/// IEEE 802.1's own, and of that the VLAN of frames without tags.
const PORT_VLAN: [u8; 4] = [0x00, 0x80, 0xc2, 1];

/// Whoever is at the other end of a cable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// Which device it is, e.g. its address.
    #[serde(rename = "Chassis ID")]
    pub chassis_id: String,
    /// Which of its ports.
    #[serde(rename = "Port ID")]
    pub port_id: String,
    /// What the port is called.
    #[serde(rename = "Port Description", skip_serializing_if = "Option::is_none")]
    pub port_description: Option<String>,
    /// What the device is called.
    #[serde(rename = "System Name", skip_serializing_if = "Option::is_none")]
    pub system_name: Option<String>,
    /// What it is.
    #[serde(rename = "System Description", skip_serializing_if = "Option::is_none")]
    pub system_description: Option<String>,
    /// Where it is managed.
    #[serde(rename = "Management Address", skip_serializing_if = "Option::is_none")]
    pub management_address: Option<IpAddr>,
    /// The VLAN of frames without tags.
    #[serde(rename = "VLAN", skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Who sent it.
    pub neighbour: Neighbour,
    /// For how long it holds; zero: it leaves.
    pub holds: Duration,
}

/// Why a frame is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// It ends within an element.
    #[error("it ends within an element")]
    Short,
    /// It does not begin with device, port and time.
    #[error("it does not begin with device, port and time")]
    Order,
    /// One of these is there twice.
    #[error("an element that may be there once is there twice")]
    Twice,
    /// An element has a length that it can't have.
    #[error("an element has a length that it can't have")]
    Length,
}

/// Reads what follows the Ethernet header.
///
/// # Errors
/// It is no such frame. Elements of unknown kinds are passed over.
pub fn parse(frame: &[u8]) -> Result<Announcement, BadFrame> {
    let mut rest = frame.get(..frame.len().min(MAX_FRAME_BYTES)).unwrap_or_default();
    let chassis = expect(&mut rest, CHASSIS)?;
    let port = expect(&mut rest, PORT)?;
    let time = expect(&mut rest, TIME)?;
    let &[high, low, ..] = time else { return Err(BadFrame::Length) };
    let mut neighbour = Neighbour {
        chassis_id: identity(chassis, 4, 5)?,
        port_id: identity(port, 3, 4)?,
        ..Neighbour::default()
    };
    // What was cut off, or padded by nothing, has no end: the standard wants one.
    loop {
        match element(&mut rest)? {
            (END, []) => break,
            (END, _) => return Err(BadFrame::Length),
            (CHASSIS | PORT | TIME, _) => return Err(BadFrame::Twice),
            (kind, value) => add(&mut neighbour, kind, value)?,
        }
    }
    let holds = Duration::from_secs(u16::from_be_bytes([high, low]).into());
    Ok(Announcement { neighbour, holds })
}

fn element<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), BadFrame> {
    let (head, content) = rest.split_at_checked(2).ok_or(BadFrame::Short)?;
    let length = usize::from(u16::from_be_bytes([head[0] & 1, head[1]]));
    let (value, after) = content.split_at_checked(length).ok_or(BadFrame::Short)?;
    *rest = after;
    Ok((head[0] >> 1, value))
}

fn expect<'a>(rest: &mut &'a [u8], wanted: u8) -> Result<&'a [u8], BadFrame> {
    match element(rest)? {
        (kind, value) if kind == wanted => Ok(value),
        _ => Err(BadFrame::Order),
    }
}

fn add(neighbour: &mut Neighbour, kind: u8, value: &[u8]) -> Result<(), BadFrame> {
    let slot = match kind {
        PORT_DESCRIPTION => &mut neighbour.port_description,
        SYSTEM_NAME => &mut neighbour.system_name,
        SYSTEM_DESCRIPTION => &mut neighbour.system_description,
        MANAGEMENT => {
            let known = neighbour.management_address;
            neighbour.management_address = known.or(management(value)?);
            return Ok(());
        }
        ORGANIZATION => {
            if let Some((&PORT_VLAN, &[high, low])) = value.split_first_chunk() {
                neighbour.vlan = Some(u16::from_be_bytes([high, low])).filter(|vlan| *vlan != 0);
            }
            return Ok(());
        }
        _ => return Ok(()),
    };
    if slot.is_some() {
        return Err(BadFrame::Twice);
    }
    *slot = Some(text(value)?);
    Ok(())
}

/// Of a device or a port: a kind and a value.
fn identity(value: &[u8], mac_kind: u8, ip_kind: u8) -> Result<String, BadFrame> {
    let (kind, id) = value.split_first().ok_or(BadFrame::Length)?;
    if !(1..=255).contains(&id.len()) {
        return Err(BadFrame::Length);
    }
    match *kind {
        kind if kind == mac_kind => match id.len() {
            6 => Ok(hex(id)),
            _ => Err(BadFrame::Length),
        },
        kind if kind == ip_kind => Ok(match ip(id) {
            Some(ip) => ip.to_string(),
            None => hex(id),
        }),
        1..=7 => text(id),
        _ => Ok(hex(id)),
    }
}

/// An address after its family.
fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.split_first()? {
        (1, address) => Some(Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).into()),
        (2, address) => Some(Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).into()),
        _ => None,
    }
}

fn management(value: &[u8]) -> Result<Option<IpAddr>, BadFrame> {
    let (length, rest) = value.split_first().ok_or(BadFrame::Length)?;
    let address = rest.get(..usize::from(*length)).ok_or(BadFrame::Length)?;
    Ok(ip(address))
}

/// For people: nothing in it moves a cursor.
fn text(value: &[u8]) -> Result<String, BadFrame> {
    if value.len() > 255 {
        return Err(BadFrame::Length);
    }
    let text = String::from_utf8_lossy(value);
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    Ok(text.trim_end_matches('\0').chars().map(visible).collect::<String>().trim().to_owned())
}

fn hex(value: &[u8]) -> String {
    let mut text = String::new();
    for (number, byte) in value.iter().enumerate() {
        let separator = if number == 0 { "" } else { ":" };
        write!(text, "{separator}{byte:02x}").expect("a text takes all there is");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An element.
    pub(crate) fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[kind << 1 | length[0], length[1]], value].concat()
    }

    /// What each frame begins with.
    pub(crate) fn begin(port: &str, seconds: u16) -> Vec<u8> {
        let chassis = tlv(CHASSIS, &[4, 2, 0, 0, 0, 0, 9]);
        let port = tlv(PORT, &[&[5], port.as_bytes()].concat());
        [chassis, port, tlv(TIME, &seconds.to_be_bytes())].concat()
    }

    #[test]
    fn a_switch_tells_who_it_is() {
        let management = [&[5, 1, 192, 0, 2, 1][..], &[2, 0, 0, 0, 1, 0]].concat();
        let frame = [
            begin("Ethernet1/7", 120),
            tlv(PORT_DESCRIPTION, b"to cn1\x1b[2J\0"),
            tlv(SYSTEM_NAME, b"leaf-1"),
            tlv(SYSTEM_DESCRIPTION, b"A switch\nof the lab"),
            tlv(7, &[0, 4, 0, 4]),
            tlv(MANAGEMENT, &management),
            tlv(ORGANIZATION, &[0x00, 0x80, 0xc2, 1, 0, 7]),
            tlv(ORGANIZATION, &[0x00, 0x12, 0x0f, 1, 0, 0, 0, 0, 0]),
            tlv(END, &[]),
            // Ethernet frames have a least length.
            vec![0; 20],
        ];
        let read = parse(&frame.concat()).unwrap();
        assert_eq!(read.holds, Duration::from_secs(120));
        let expected = Neighbour {
            chassis_id: "02:00:00:00:00:09".to_owned(),
            port_id: "Ethernet1/7".to_owned(),
            port_description: Some("to cn1 [2J".to_owned()),
            system_name: Some("leaf-1".to_owned()),
            system_description: Some("A switch of the lab".to_owned()),
            management_address: Some("192.0.2.1".parse().unwrap()),
            vlan: Some(7),
        };
        assert_eq!(read.neighbour, expected);
    }

    #[test]
    fn identities_have_kinds() {
        let port = |value: &[u8]| {
            let head = tlv(CHASSIS, &[7, b'x']);
            let rest = [tlv(PORT, value), tlv(TIME, &[0, 0]), tlv(END, &[])].concat();
            parse(&[head, rest].concat()).map(|read| read.neighbour.port_id)
        };
        assert_eq!(port(&[3, 2, 0, 0, 0, 0, 1]).unwrap(), "02:00:00:00:00:01");
        assert_eq!(port(&[4, 1, 192, 0, 2, 7]).unwrap(), "192.0.2.7");
        assert_eq!(port(&[4, 9, 1]).unwrap(), "09:01");
        assert_eq!(port(&[99, 1, 2]).unwrap(), "01:02");
        assert_eq!(port(&[7, 0xff, b'a']).unwrap(), "\u{fffd}a");
        assert_eq!(port(&[3, 2, 0]), Err(BadFrame::Length));
        assert_eq!(port(&[7]), Err(BadFrame::Length));
        assert_eq!(port(&[]), Err(BadFrame::Length));
        assert_eq!(port(&[&[7][..], &[b'x'; 256]].concat()), Err(BadFrame::Length));
    }

    #[test]
    fn what_is_no_such_frame_is_refused() {
        let end = tlv(END, &[]);
        let whole = |more: &[u8]| parse(&[&begin("1", 9)[..], more, &end].concat());
        whole(&[]).unwrap();
        assert_eq!(whole(&tlv(SYSTEM_NAME, b"a").repeat(2)), Err(BadFrame::Twice));
        assert_eq!(whole(&tlv(TIME, &[0, 9])), Err(BadFrame::Twice));
        assert_eq!(whole(&tlv(MANAGEMENT, &[9, 1])), Err(BadFrame::Length));
        assert_eq!(whole(&tlv(SYSTEM_NAME, &[b'x'; 256])), Err(BadFrame::Length));
        assert_eq!(parse(&begin("1", 9)), Err(BadFrame::Short));
        assert_eq!(parse(&begin("1", 9)[9..]), Err(BadFrame::Order));
        assert_eq!(parse(&[]), Err(BadFrame::Short));
        let long = tlv(126, &[0; 511]).repeat(3);
        assert_eq!(whole(&long), Err(BadFrame::Short), "longer than any frame");
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            drop(parse(&bytes));
        }

        /// With a beginning that is right, what follows is really read.
        #[test]
        fn no_elements_do_harm(
            elements in proptest::collection::vec(
                (0_u8..128, proptest::collection::vec(any::<u8>(), 0..300)), 0..8),
            cut in 0_usize..1600,
        ) {
            let elements: Vec<u8> =
                elements.iter().flat_map(|(kind, value)| tlv(*kind, value)).collect();
            let mut frame = [begin("p", 1), elements, tlv(END, &[])].concat();
            frame.truncate(cut);
            if let Ok(read) = parse(&frame) {
                let neighbour = read.neighbour;
                let texts = [neighbour.system_name, neighbour.port_description];
                for text in texts.into_iter().flatten() {
                    prop_assert!(!text.chars().any(char::is_control) && text.len() <= 3 * 255);
                }
            }
        }

        /// Each frame that is cut off is refused.
        #[test]
        fn a_frame_that_was_cut_off_is_none(name in "[a-z]{1,40}", cut in 0_usize..40) {
            let whole = [begin("p", 1), tlv(SYSTEM_NAME, name.as_bytes()), tlv(END, &[])].concat();
            prop_assert!(parse(&whole).is_ok());
            let end = whole.len().saturating_sub(cut + 1);
            prop_assert!(parse(&whole[..end]).is_err());
        }
    }
}
