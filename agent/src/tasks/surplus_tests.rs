//! An agent that makes room by itself.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::{Code, Outcome};
use serde_json::{Value, json};

use super::image_gc::Policy;
use super::machine_tests::{Host, IMAGE, create_params, engine, submission};
use super::record::Origin;
use super::{Engine, Params};
use crate::drivers::storage::sim::{SimImage, SimPool};

const MIB: u64 = 1 << 20;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(3600);

fn uuid(n: u8) -> ImageUuid {
    format!("{n:08x}-0000-4000-8000-000000000000").parse().unwrap()
}

/// A pool of 100 MiB with images of 30 MiB each.
fn host(images: u8) -> Host {
    let mut host = Host::new();
    host.pool = SimPool::new(100 * MIB);
    for n in 0..images {
        let image = SimImage { manifest: json!({ "state": "active" }), size_bytes: 30 * MIB };
        host.pool.install(uuid(n), image).unwrap();
    }
    host
}

fn policy(min_age: Duration) -> Policy {
    Policy { min_age, ..Policy::default() }
}

async fn settled(host: &Host, images: &[ImageUuid]) {
    let gone = async {
        while host.pool.images().into_keys().collect::<Vec<_>>() != images {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let left = || host.pool.images().into_keys().collect::<Vec<_>>();
    assert!(tokio::time::timeout(LONG, gone).await.is_ok(), "{:?} are left", left());
}

async fn run(engine: &Arc<Engine>, id: &str, kind: &str, params: Params) -> Result<(), Code> {
    let id: TaskId = id.parse().unwrap();
    engine.submit(submission(&id, kind, params)).await.unwrap();
    assert!(engine.wait(&id, LONG).await, "{kind} does not end");
    let result = engine.result(&id).await.unwrap();
    if result.status == Outcome::Complete { Ok(()) } else { Err(result.error.unwrap().code) }
}

fn ensure(image: &str) -> Params {
    Params::from_iter([("image_uuid".to_owned(), json!(image))])
}

#[tokio::test(start_paused = true)]
async fn the_image_that_was_used_longest_ago_goes_from_a_full_pool() {
    let host = host(3);
    for (n, second) in [(0, 50), (1, 20), (2, 30)] {
        host.pool.note_use(uuid(n), jiff::Timestamp::from_second(second).unwrap());
    }
    let drivers = host.agent("boot-1").await;
    let engine = engine(Arc::clone(&drivers), LONG).await;
    engine.recover().await;
    engine.keep_room_for_images(policy(Duration::from_secs(100)));
    // All of them are too young for a while.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(host.pool.images().len(), 3);
    let said = drivers.report.remarks();
    assert!(said.iter().any(|line| line.contains("90 % are used")), "{said:?}");
    settled(&host, &[uuid(0), uuid(2)]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let ended: Vec<TaskId> = engine.shared.lock().ended.keys().cloned().collect();
    let own = engine.record(&ended[0]).await.unwrap();
    assert_eq!((ended.len(), own.task.as_str()), (1, "image_delete"));
    assert_eq!((own.origin, own.vm), (Origin::Local, None));
    assert_eq!(drivers.report.remarks(), Vec::<String>::new());
    engine.shut_down(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_needs_stays_in_a_full_pool() {
    let host = host(2);
    let drivers = host.agent("boot-1").await;
    let engine = engine(Arc::clone(&drivers), LONG).await;
    engine.recover().await;
    run(&engine, "vm", "machine_create", create_params(json!({}))).await.unwrap();
    let in_use: ImageUuid = IMAGE.parse().unwrap();
    host.pool.occupy(35 * MIB);
    engine.keep_room_for_images(policy(Duration::ZERO));
    settled(&host, &[uuid(1), in_use]).await;
    host.pool.occupy(69 * MIB);
    // At the next look, and then there is nothing left to remove.
    settled(&host, &[in_use]).await;
    host.pool.occupy(98 * MIB);
    tokio::time::sleep(LONG).await;
    assert_eq!(host.pool.images().len(), 1);
    assert_eq!(drivers.report.remarks().len(), 1);
    engine.shut_down(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_found_no_room_has_some_made_for_the_next() {
    let host = host(2);
    let drivers = host.agent("boot-1").await;
    let engine = engine(Arc::clone(&drivers), LONG).await;
    engine.recover().await;
    host.pool.occupy(40 * MIB - MIB / 2);
    // No use is above the high mark.
    engine.keep_room_for_images(Policy { high_percent: 100, ..policy(Duration::ZERO) });
    tokio::time::sleep(LONG).await;
    assert_eq!(host.pool.images().len(), 2);
    let full = run(&engine, "first", "image_ensure_present", ensure(IMAGE)).await;
    assert_eq!(full, Err(Code::StoreFull));
    settled(&host, &[uuid(1)]).await;
    run(&engine, "second", "image_ensure_present", ensure(IMAGE)).await.unwrap();
    assert_eq!(host.pool.images().len(), 2);
    let result: Value = json!(engine.result(&"first".parse().unwrap()).await.unwrap().error);
    assert!(result.to_string().contains("needs 1048576 bytes, 524288 are free"), "{result}");
    engine.shut_down(Duration::from_secs(1)).await;
}
