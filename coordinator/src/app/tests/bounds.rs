//! What one agent or client can make the application hold, and for how long.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use muster_shared::ids::ImageUuid;

use super::*;
use crate::app::images::{FileClaim, ImageError};

async fn image(app: &App) -> ImageUuid {
    let uuid = Uuid::from_u128(9);
    let manifest =
        json!({ "uuid": uuid, "name": "a", "version": "1", "type": "zvol", "os": "linux" });
    app.images.create(Object::of(&manifest)).await.unwrap();
    ImageUuid(uuid)
}

/// Uploads chunks of so many bytes, one each second; returns for how long.
async fn upload_at(chunk: usize) -> Duration {
    let app = Disk::new().start().await;
    let image = image(&app).await;
    let chunk = Bytes::from(vec![0; chunk]);
    let body = stream::unfold(chunk, |chunk| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some((Ok(chunk.clone()), chunk))
    });
    let began = app.parts().clock.monotonic();
    let upload = app.images.upload(image, FileClaim::default(), &Expected::ANY, body.boxed());
    let limit = tokio::time::timeout(Duration::from_mins(10), upload).await;
    if let Ok(ended) = limit {
        assert!(matches!(ended, Err(ImageError::Upload(_))), "{ended:?}");
    }
    let took = app.parts().clock.monotonic() - began;
    app.shutdown().await;
    took
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_is_slow_loses_its_place() {
    let slow = upload_at(1024).await;
    assert!(slow < Duration::from_secs(70), "{slow:?}");
    assert_eq!(upload_at(64 * 1024).await, Duration::from_mins(10));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_server_without_a_record() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect_only(&app, server(1)).await;
    let reported = BTreeMap::from([(vm(1), report_of(vm(1)))]);
    let status = Status { report: Some(Report::whole(&reported)) };
    agent.send(Box::new(status)).await;
    // It is asked to register instead.
    loop {
        if let FromCoordinator::Sysinfo(_) = agent.next().await {
            break;
        }
    }
    assert!(app.fleet.reported_vms(server(1)).is_empty());
    assert_eq!(app.fleet.vm_count(), 0);
    app.shutdown().await;
}

fn report_of(vm: VmUuid) -> VmReport {
    let report = json!({
        "uuid": vm, "owner_uuid": "o", "brand": "kvm", "max_physical_memory": 1, "state": "running",
        "zone_state": "running", "last_modified": "",
    });
    serde_json::from_value(report).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect_only(&app, server(1)).await;
    let ended = async { while let Ok(Some(_)) = agent.connection.stream.next().await {} };
    tokio::time::timeout(Duration::from_secs(150), ended).await.expect("it is closed");
    assert_eq!(agent.connection.stream.close_code(), Some(1008));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_no_record_takes_ends_its_task() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let long = "x".repeat(400_000);
    let code = muster_shared::wire::Code::from(long.as_str());
    for (message, details, code) in [
        (long.clone(), None, "Boom".into()),
        ("m".to_owned(), Some(json!(long.clone())), "Boom".into()),
        ("m".to_owned(), None, code),
    ] {
        let id = nop(&app).await;
        assert_eq!(agent.dispatched().await.id, id);
        let error = muster_shared::wire::TaskError { message, code, details };
        let failed = TaskResult {
            id: id.clone(),
            status: Outcome::Failure,
            result: Value::Null,
            error: Some(error),
            finished_at: String::new(),
        };
        agent.send(failed).await;
        assert_eq!(ended(&app, &id).await["status"], "failure");
    }
    // More values than a message may have.
    let id = nop(&app).await;
    assert_eq!(agent.dispatched().await.id, id);
    let zeros = format!("[{}0]", "0,".repeat(300_000));
    let text = format!(r#"{{"kind":"result","id":"{id}","status":"complete","result":{zeros}}}"#);
    agent.connection.sink.send(Frame::Text(text)).await.unwrap();
    assert_eq!(ended(&app, &id).await["error"]["code"], "Malformed");
    app.shutdown().await;
}
