//! Frames between agents and coordinators: `muster_shared::wire::decode`.

use std::fmt::Debug;

use muster_shared::error_chain::Chain;
use muster_shared::wire::{DecodeError, FromAgent, FromCoordinator, Message, decode, encode};

/// Longest answer about a frame that is no message, bytes: a peer that sends garbage must not get
/// as much of it back, nor into the log.
const MAX_REFUSAL_BYTES: usize = 1024;

/// Reads a frame as either side would.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    one::<FromAgent>(text);
    one::<FromCoordinator>(text);
}

fn one<M: Message + PartialEq + Debug>(text: &str) {
    match decode::<M>(text) {
        Ok(message) => match decode::<M>(&encode(&message)) {
            Ok(again) => assert_eq!(again, message, "a message is not what it is sent as"),
            // Written out it may be longer than it came.
            Err(DecodeError::TooLarge(_) | DecodeError::TooManyValues { .. }) => {}
            Err(error) => panic!("what was sent is not understood: {}", Chain(&error)),
        },
        Err(error) => {
            let refusal = Chain(&error).to_string();
            assert!(refusal.len() <= MAX_REFUSAL_BYTES, "{} bytes: {refusal}", refusal.len());
            assert!(error.about().is_none_or(|about| about.len() <= MAX_REFUSAL_BYTES));
        }
    }
}
