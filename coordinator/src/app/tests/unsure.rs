//! A store that makes a commit and can't tell that it did.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::*;
use crate::app::images::FileClaim;
use crate::store::{LeaseId, Page, Record, Revision, Store, StoreError, Watch, Write};

#[derive(Debug)]
struct Unsure {
    store: SharedStore,
    is_unsure: AtomicBool,
}

#[async_trait]
impl Store for Unsure {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.store.list(prefix, after, limit).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, StoreError> {
        let revision = self.store.commit(writes).await?;
        if self.is_unsure.load(Ordering::Relaxed) {
            let source = Arc::new(std::io::Error::other("the answer did not come"));
            return Err(StoreError::Unavailable { action: "commit", source });
        }
        Ok(revision)
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, from).await
    }

    async fn grant(&self, ttl_ms: u64) -> Result<LeaseId, StoreError> {
        self.store.grant(ttl_ms).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease).await
    }

    async fn failed(&self) {
        self.store.failed().await;
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_moves_a_vm_once_when_the_store_cannot_tell_that_it_did() {
    let disk = Disk::new();
    let store = Arc::new(Unsure { store: disk.store().await, is_unsure: AtomicBool::new(false) });
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let app = disk.join(&shared, "a").await;
    let mut agents = BTreeMap::new();
    for n in 1..=3 {
        agents.insert(server(n), Agent::connect(&app, server(n)).await);
    }
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    let first = agents.get_mut(&placed.server_uuid).unwrap();
    first.dispatched().await;
    store.is_unsure.store(true, Ordering::Relaxed);
    first.refuse(&placed.id, "Draining").await;
    let home = || app.tasks.table.get(&placed.id).map(|open| open.record.server_uuid);
    eventually(|| home() != Some(placed.server_uuid)).await;
    let second = home().unwrap();
    store.is_unsure.store(false, Ordering::Relaxed);

    // What could not be stored is tried again, but that was the first server's end of the task.
    agents.get_mut(&second).unwrap().dispatched().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(home(), Some(second));
    let record = app.tasks.record_of(&placed.id).await.unwrap();
    assert_eq!(record.refusals.unwrap().len(), 1);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_keeps_its_file_when_the_store_cannot_tell_that_it_has_one() {
    let disk = Disk::new();
    let store = Arc::new(Unsure { store: disk.store().await, is_unsure: AtomicBool::new(false) });
    let shared: SharedStore = Arc::clone(&store) as SharedStore;
    let app = disk.join(&shared, "a").await;
    let manifest = json!({ "name": "n", "version": "1", "type": "zvol", "os": "linux" });
    let image = app.images.create(Object::of(&manifest)).await.unwrap().uuid;
    let content = || futures_util::stream::iter([Ok("content".into())]).boxed();
    let upload = || app.images.upload(image, FileClaim::default(), &Expected::ANY, content());
    store.is_unsure.store(true, Ordering::Relaxed);
    upload().await.unwrap_err();
    store.is_unsure.store(false, Ordering::Relaxed);
    app.images.activate(image, &Expected::ANY).await.unwrap();
    let file = app.images.file(image).await.unwrap();
    let mut bytes = app.images.read(&file, 0..file.size_bytes).await.unwrap();
    assert_eq!(bytes.next().await.unwrap().unwrap(), "content");
    app.shutdown().await;
}
