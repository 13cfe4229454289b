//! Servers that do nothing but report, each second, with as little work as possible: what a figure
//! shows is to be the coordinator's work, with which this process shares the machine.
//!
//! Each begins as a [`SimAgent`]. Then its frames are made once and written as they are, without a task, a
//! timer or a websocket of its own; what the coordinator says is not read.

use std::io::Write as _;
use std::net::TcpStream;

use muster_shared::wire::{FromAgent, Heartbeat, encode};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::sim_agent::{SimAgent, Vms};

/// The mask of all frames; a client may choose any.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x96, 0x3c];

/// One server that reports.
#[derive(Debug)]
pub struct SimServer {
    vms: Vms,
    socket: TcpStream,
    unchanged: Vec<u8>,
    heartbeat: Vec<u8>,
}

impl SimServer {
    /// An agent that has shown so many VMs of one GiB, from now on without a task of its own: it is lost
    /// when [`SimServer::beat`] is not called each second.
    ///
    /// # Panics
    /// If its connection is gone.
    pub async fn of(agent: SimAgent, count: u32) -> Self {
        let server = agent.server_uuid.parse().expect("a uuid");
        let vms = Vms { server, count, first_mib: 1_024 };
        let socket = agent.into_socket().await;
        let heartbeat = Heartbeat { seq: 1, ts: String::new() };
        Self {
            socket,
            unchanged: frame(vms.unchanged()),
            heartbeat: frame(encode(&FromAgent::from(heartbeat))),
            vms,
        }
    }

    /// A sign of life.
    ///
    /// # Panics
    /// If the coordinator does not read.
    pub fn beat(&mut self) {
        self.socket.write_all(&self.heartbeat).expect("the coordinator reads");
    }

    /// Reports that nothing has changed.
    ///
    /// # Panics
    /// If the coordinator does not read.
    pub fn report(&mut self) {
        self.socket.write_all(&self.unchanged).expect("the coordinator reads");
    }

    /// Reports all its VMs, the first of this size.
    ///
    /// # Panics
    /// If the coordinator does not read.
    pub fn resize(&mut self, first_mib: u64) {
        self.vms.first_mib = first_mib;
        self.unchanged = frame(self.vms.unchanged());
        self.socket.write_all(&frame(self.vms.whole())).expect("the coordinator reads");
    }
}

/// The bytes of a client's frame with this text.
fn frame(text: String) -> Vec<u8> {
    let mut frame = Frame::message(text, OpCode::Data(Data::Text), true);
    frame.header_mut().mask = Some(MASK);
    let mut bytes = Vec::new();
    frame.format(&mut bytes).expect("memory takes everything");
    bytes
}
