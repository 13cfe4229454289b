//! What guest agents answer: `guest_agent`. The first byte says what is asked; each line is an answer.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_agent::drivers::DriverError;
use muster_agent::drivers::compute::sim::{SimCompute, SimGuests};
use muster_agent::drivers::compute::{Compute, Resources};
use muster_agent::drivers::faults::Faults;
use muster_agent::guest_agent::{
    self, Exec, GuestAgents, Looks, MAX_CHUNK_BYTES, MAX_OUTPUT_BYTES,
};
use muster_agent::tasks::TaskFailure;
use muster_agent::vm_record::VmRecord;
use muster_agent::vms::sim::SimVmRecords;
use muster_agent::vms::{Node, VmTable};
use muster_shared::clock::TokioClock;
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;
use muster_shared::wire::status::GuestInfo;
use serde_json::Map;
use tokio::runtime::Runtime;

/// Longest text that is told of a guest, characters; longest message about it, bytes.
const MAX_CHARS: usize = 128;
const MAX_MESSAGE_BYTES: usize = 2048;
/// Most interfaces, addresses and users that are told of it.
const MAX_ITEMS: usize = 16;

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Talks to a guest agent that answers so.
pub fn run(data: &[u8]) {
    let Some((what, answers)) = data.split_first() else { return };
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime.get_or_insert_with(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(true);
            builder.build().expect("a runtime needs only a few descriptors")
        });
        runtime.block_on(talk(what % 8, answers));
    });
}

async fn talk(what: u8, answers: &[u8]) {
    let clock = Arc::new(TokioClock::new(jiff::Timestamp::UNIX_EPOCH));
    let guests = SimGuests::default();
    let compute = SimCompute::new(guests.clone(), clock.clone(), Faults::none());
    let compute: Arc<dyn Compute> = Arc::new(compute);
    let vm = VmUuid(uuid::Uuid::from_u128(1));
    let record = VmRecord::new(vm, TaskId::from(uuid::Uuid::from_u128(2)), Map::new());
    compute.start(&record, &Resources::default()).await.expect("simulated guests start");
    guests.install_talker(vm, answers.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
    let entropy = Arc::new(SeededEntropy::new(1));
    let agents = Arc::new(GuestAgents::new(compute.clone(), entropy));
    let failed = match what {
        0 => exec(&agents, vm).await,
        1 => guest_agent::read(&agents, vm, "/f", 7).await.map(|bytes| {
            assert!(bytes.len() <= MAX_CHUNK_BYTES, "{} bytes", bytes.len());
        }),
        2 => guest_agent::write(&agents, vm, "/f", 0, b"some bytes").await,
        3 => guest_agent::freeze(&agents, vm).await,
        4 => guest_agent::thaw(&agents, vm).await.map(drop),
        5 => guest_agent::set_password(&agents, vm, "root", "x").await,
        6 => guest_agent::add_keys(&agents, vm, "root", &["ssh-ed25519 A".to_owned()], true).await,
        _ => {
            let vms = VmTable::new(Arc::new(SimVmRecords::default()), clock, Node::default());
            let vms = Arc::new(vms);
            vms.create(record).await.expect("simulated records can be written");
            vms.observe_all(compute.as_ref()).await;
            let looks = Looks { agents, vms: vms.clone(), is_busy: Box::new(|_| false) };
            looks.look_at_all().await;
            check(vms.guest(vm).as_ref());
            Ok(())
        }
    };
    if let Err(error) = failed {
        check_failure(error);
    }
}

async fn exec(agents: &GuestAgents, vm: VmUuid) -> Result<(), DriverError> {
    let exec = Exec {
        program: "true".to_owned(),
        arguments: Vec::new(),
        stdin: Vec::new(),
        limit: Duration::from_secs(60),
    };
    let ran = guest_agent::run(agents, vm, &exec).await?;
    for output in [&ran.stdout, &ran.stderr] {
        let output = BASE64_STANDARD.decode(output).expect("clients decode it");
        assert!(output.len() <= MAX_OUTPUT_BYTES, "{} bytes", output.len());
    }
    Ok(())
}

/// What a guest says of itself is bounded, and nothing that terminals act on.
fn check(told: Option<&GuestInfo>) {
    let Some(told) = told else { return };
    let texts = [&told.agent_version, &told.hostname, &told.os, &told.kernel];
    let names = told.interfaces.iter().flat_map(|it| [Some(&it.name), it.mac.as_ref()]);
    let all = texts.into_iter().map(Option::as_ref).chain(names).flatten().chain(&told.users);
    for text in all {
        assert!(
            text.chars().count() <= MAX_CHARS && !text.chars().any(char::is_control),
            "{text:?}"
        );
    }
    assert!(told.interfaces.len() <= MAX_ITEMS && told.users.len() <= MAX_ITEMS);
    for interface in &told.interfaces {
        assert!(interface.ips.len() <= MAX_ITEMS);
        assert!(interface.ips.iter().all(|ip| ip.parse::<std::net::IpAddr>().is_ok()));
    }
}

/// The failure is the guest's, and says so in words that can be shown.
fn check_failure(error: DriverError) {
    let failure = TaskFailure::from(error);
    assert!([Code::GuestRefused, Code::GuestAgentMissing].contains(&failure.code), "{failure:?}");
    assert!(failure.message.len() <= MAX_MESSAGE_BYTES, "{} bytes", failure.message.len());
    assert!(!failure.message.chars().any(char::is_control), "{failure:?}");
}
