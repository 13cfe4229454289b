//! Who is at the other ends of the host's cables: what switches send of themselves is listened to, and
//! nothing is sent.

pub mod frame;

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use parking_lot::Mutex;

pub use self::frame::Neighbour;
use crate::host::EthernetListener;

/// Interfaces that are listened to; further ones are not.
const MAX_INTERFACES: usize = 64;
/// What is amiss without the right to listen.
const DEAF: &str = "neighbours on the server's cables are not known (LLDP): run the agent as root, or give \
                    it CAP_NET_RAW (in its unit: AmbientCapabilities=CAP_NET_RAW)";
/// Frames of an interface that are read at a time; a neighbour sends one in half a minute.
const MAX_FRAMES: usize = 32;

/// What is heard.
#[derive(Debug)]
pub struct Neighbours {
    clock: SharedClock,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    interfaces: BTreeMap<String, Interface>,
    /// It is so until the agent is started with other rights.
    refused: bool,
}

#[derive(Debug)]
struct Interface {
    index: u32,
    listener: EthernetListener,
    /// With the monotonic time until which it holds.
    neighbour: Option<(Neighbour, Duration)>,
}

impl Neighbours {
    /// Hears nothing yet.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, heard: Mutex::default() }
    }

    /// Listens to these interfaces, by name and number, and no longer to others.
    pub fn listen(&self, interfaces: &[(String, u32)]) {
        let mut heard = self.heard.lock();
        let wanted = |name: &String, index: u32| {
            interfaces.iter().any(|(other, number)| other == name && *number == index)
        };
        heard.interfaces.retain(|name, interface| wanted(name, interface.index));
        for (name, index) in interfaces.iter().take(MAX_INTERFACES) {
            if heard.refused || heard.interfaces.contains_key(name) {
                continue;
            }
            match EthernetListener::open(*index, frame::ETHERTYPE, frame::GROUP) {
                Ok(listener) => {
                    let interface = Interface { index: *index, listener, neighbour: None };
                    heard.interfaces.insert(name.clone(), interface);
                }
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    tracing::info!("{DEAF}");
                    heard.refused = true;
                }
                Err(error) => {
                    tracing::warn!(interface = name, %error, "a neighbour can't be listened to");
                }
            }
        }
    }

    /// Why nobody can be heard, for people; `None`: there is no reason.
    #[must_use]
    pub fn lacking(&self) -> Option<&'static str> {
        self.heard.lock().refused.then_some(DEAF)
    }

    /// The neighbours whose word still holds, by interface.
    #[must_use]
    pub fn latest(&self) -> BTreeMap<String, Neighbour> {
        let now = self.clock.monotonic();
        let mut heard = self.heard.lock();
        heard.interfaces.retain(|name, interface| match interface.hear(now) {
            Ok(()) => true,
            Err(error) => {
                // It is listened to anew with the next look at the interfaces.
                tracing::warn!(interface = name, %error, "a neighbour can't be heard any more");
                false
            }
        });
        let known = |(name, interface): (&String, &Interface)| {
            let (neighbour, _) = interface.neighbour.as_ref()?;
            Some((name.clone(), neighbour.clone()))
        };
        heard.interfaces.iter().filter_map(known).collect()
    }
}

impl Interface {
    fn hear(&mut self, now: Duration) -> std::io::Result<()> {
        for _ in 0..MAX_FRAMES {
            let Some(content) = self.listener.receive()? else { break };
            match frame::parse(content) {
                Ok(said) => self.neighbour = Some((said.neighbour, now + said.holds)),
                Err(error) => tracing::debug!(%error, "a neighbour's frame is not understood"),
            }
        }
        self.neighbour.take_if(|(_, until)| *until <= now);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
