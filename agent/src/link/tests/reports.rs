//! What coordinators are told without asking.

use super::*;

#[tokio::test(start_paused = true)]
async fn heartbeats_come_every_second_and_reports_beside_them() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    let mut coordinator = cluster.accept(welcome()).await;
    assert!(coordinator.hello.capabilities.contains(&"task:machine_create".to_owned()));
    let (mut beats, mut full, mut sysinfo) = (Vec::new(), 0, 0);
    while beats.len() < 100 {
        match receive(&mut coordinator.connection).await {
            FromAgent::Heartbeat(beat) => beats.push((beat.seq, clock.monotonic())),
            FromAgent::Status(status) => full += u32::from(status.report.unwrap().full),
            FromAgent::Sysinfo(_) => sysinfo += 1,
            other => panic!("not asked for: {other:?}"),
        }
    }
    assert_eq!((full, sysinfo), (1, 1), "one full report, one sysinfo");
    for pair in beats.windows(2) {
        assert_eq!(pair[1].0, pair[0].0 + 1);
        let gap = pair[1].1 - pair[0].1;
        assert!(gap.abs_diff(super::super::HEARTBEAT) < Duration::from_millis(10), "{gap:?}");
    }
}

/// Records of before tags had a limit.
#[tokio::test(start_paused = true)]
async fn large_tags_cost_no_connection() {
    let mut cluster = cluster().await;
    let vms = cluster.agent.drivers.vms.clone();
    for number in 1..=3 {
        let mut large = record(number);
        large.properties.insert("tags".to_owned(), json!({ "a": "x".repeat(880_000) }));
        vms.create(large).await.unwrap();
    }
    let mut coordinator = cluster.accept(welcome()).await;
    let mut known = Reported::default();
    coordinator.report(&mut known, |known| known.vms().len() == 3).await;
    let whole = known.vms().values().filter(|vm| vm.index.tags.contains_key("a"));
    assert_eq!(whole.count(), 2);
    let rename = |record: &mut crate::vms::VmRecord| {
        record.properties.insert("alias".to_owned(), json!("two"));
    };
    vms.update(record(1).uuid, rename).await.unwrap();
    let alias = |known: &Reported| known.vms()[&record(1).uuid].index.alias.clone();
    let note = coordinator.report(&mut known, |known| alias(known).is_some()).await;
    assert_eq!(note, json!(["the tags of 1 VMs are too large to be reported"]));
}

#[tokio::test(start_paused = true)]
async fn what_a_change_made_of_the_pools_is_told_soon_after_it() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    let mut coordinator = cluster.accept(welcome()).await;
    let disks_bytes = |message| {
        let FromAgent::Status(status) = message else { return None };
        status.report.and_then(|report| report.diskinfo).map(|disks| disks.kvm_zvol_volsize_bytes)
    };
    assert_eq!(coordinator.until(disks_bytes).await, 0);
    let create = create_params(json!({ "disks": [{ "size": 64, "model": "virtio" }] }));
    coordinator.dispatch("c", "machine_create", create.into()).await;
    let result = coordinator.result("c").await;
    assert!(result.error.is_none(), "{result:?}");
    let created_at = clock.monotonic();
    coordinator.until(|message| disks_bytes(message).filter(|bytes| *bytes == 64 << 20)).await;
    let later = clock.monotonic() - created_at;
    assert!(later < Duration::from_secs(5), "told {later:?} after the create");
}

#[tokio::test(start_paused = true)]
async fn a_new_vm_shows_as_a_delta_and_its_console_is_carried() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    coordinator.dispatch("c", "machine_create", create_params(json!({})).into()).await;
    let result = coordinator.result("c").await;
    assert!(result.error.is_none(), "{result:?}");
    let running = |message| match message {
        FromAgent::Status(status) => status.report.filter(|report| {
            let vm = report.vms.get(&uuid()).and_then(Option::as_ref);
            vm.is_some_and(|vm| vm.vm.state == "running")
        }),
        _ => None,
    };
    assert!(!coordinator.until(running).await.full);

    let stream_id = Uuid::from_u128(9);
    let open = StreamOpen { stream_id, stream: StreamKind::Console, vm_uuid: uuid() };
    coordinator.send(open).await;
    let dialed = cluster.dialed().await;
    assert_eq!(dialed.url.path(), format!("/agent/streams/{stream_id}"));
    let mut stream = dialed.connection;
    let sent = b"hello".as_slice();
    stream.sink.send(Frame::Binary(sent.into())).await.unwrap();
    // The simulated guest greets and echoes; credit comes back for what it took.
    let (mut echoed, mut credit) = (Vec::new(), 0);
    while !echoed.ends_with(sent) || credit < sent.len() as u64 {
        match stream.stream.next().await.unwrap().unwrap() {
            Frame::Binary(bytes) => echoed.extend_from_slice(&bytes),
            Frame::Text(text) => match serde_json::from_str(&text).unwrap() {
                Control::Window { bytes } => credit += bytes,
                Control::Notice { message } => panic!("{message}"),
                Control::Close { code, .. } => panic!("closed: {code}"),
            },
        }
    }
    assert_eq!(credit, sent.len() as u64);
    let open = StreamOpen { vm_uuid: Uuid::nil().into(), stream_id, stream: StreamKind::Vnc };
    coordinator.send(open).await;
    assert_eq!(coordinator.error().await.0, Some(stream_id.to_string()));
}
