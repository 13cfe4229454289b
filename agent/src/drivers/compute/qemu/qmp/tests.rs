use nix::sys::socket::{ControlMessageOwned, recvmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;

use super::*;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7},
    "package": ""}, "capabilities": ["oob"]}}"#;

/// Answers each command with its name, but `stop` not at all.
async fn answer(stream: UnixStream) {
    let (reader, mut writer) = stream.into_split();
    writer.write_all(GREETING.replace('\n', " ").as_bytes()).await.unwrap();
    writer.write_all(b"\n").await.unwrap();
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Value = serde_json::from_str(&line).unwrap();
        let answer = match command["execute"].as_str().unwrap() {
            "stop" => continue,
            "qmp_capabilities" => serde_json::json!({ "return": {} }),
            name => serde_json::json!({ "return": { "asked": name } }),
        };
        writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }
}

async fn hypervisor(listener: UnixListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        drop(tokio::spawn(answer(stream)));
    }
}

async fn connected(socket: &Path) -> Arc<Qmp> {
    let (qmp, mut events) = Qmp::connect(socket).await.unwrap();
    drop(tokio::spawn(async move { while events.next().await.is_some() {} }));
    Arc::new(qmp)
}

#[tokio::test]
async fn no_question_gets_the_answer_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    let server = tokio::spawn(hypervisor(UnixListener::bind(&socket).unwrap()));
    let qmp = connected(&socket).await;
    // Whoever asked this does not wait for the answer.
    let mut gone = Box::pin(qmp.execute::<QueryKvm>());
    assert!(futures_util::poll!(gone.as_mut()).is_pending());
    drop(gone);
    assert_eq!(qmp.execute::<QueryStatus>().await.unwrap()["asked"], "query-status");

    // Nobody knows which of the next answers belongs to this one.
    let soon = Duration::from_millis(200);
    let (silent, next) = tokio::join!(qmp.send(Stop {}, soon), qmp.execute::<QueryStatus>());
    assert!(matches!(silent, Err(QmpError::Timeout { command: "stop", .. })), "{silent:?}");
    assert!(matches!(next, Err(QmpError::Io(_))), "{next:?}");
    assert!(qmp.given_up().is_cancelled());
    drop(qmp);
    let qmp = connected(&socket).await;
    assert_eq!(qmp.execute::<QueryStatus>().await.unwrap()["asked"], "query-status");
    server.abort();
}

#[tokio::test]
async fn a_connection_that_broke_is_asked_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all(GREETING.replace('\n', " ").as_bytes()).await.unwrap();
        stream.write_all(b"\n").await.unwrap();
        let mut lines = BufReader::new(&mut stream).lines();
        lines.next_line().await.unwrap();
        stream.write_all(b"{\"return\": {}}\n").await.unwrap();
    });
    // Nobody reads the events, as when the process was killed a moment ago.
    let (qmp, events) = Qmp::connect(&socket).await.unwrap();
    let qmp = Arc::new(qmp);
    server.await.unwrap();
    for _ in 0..2 {
        let error = qmp.execute::<QueryStatus>().await.unwrap_err();
        let QmpError::Io(error) = error else { panic!("{error:?}") };
        assert_ne!(error.kind(), io::ErrorKind::Other, "{error}");
        assert!(qmp.given_up().is_cancelled());
    }
    drop(events);
}

/// Answers the greeting's question, and takes a descriptor with the next bytes.
async fn take(stream: UnixStream) -> OwnedFd {
    let greeting = format!("{}\n", GREETING.replace('\n', " "));
    let mut stream = stream;
    stream.write_all(greeting.as_bytes()).await.unwrap();
    let mut asked = [0; 1024];
    let read = stream.read(&mut asked).await.unwrap();
    assert!(asked[..read].ends_with(b"\n"));
    stream.write_all(b"{\"return\": {}}\n").await.unwrap();
    loop {
        stream.readable().await.unwrap();
        let mut space = nix::cmsg_space!(std::os::fd::RawFd);
        let received = stream.try_io(Interest::READABLE, || {
            let mut buffers = [io::IoSliceMut::new(&mut asked)];
            let flags = MsgFlags::empty();
            let got = recvmsg::<()>(stream.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
            let rights = got.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                _ => None,
            });
            Ok(rights)
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => {
                let fd = received.unwrap().expect("a descriptor");
                let path = format!("/proc/self/fd/{fd}");
                let file = std::fs::File::options().write(true).open(path).unwrap();
                nix::unistd::close(fd).unwrap();
                return file.into();
            }
        }
    }
}

/// The hypervisor opens no files any more once its guest runs.
#[tokio::test]
async fn a_descriptor_is_handed_over_with_the_command_that_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move { take(listener.accept().await.unwrap().0).await });
    let qmp = connected(&socket).await;
    let (mut reader, writer) = io::pipe().unwrap();
    let soon = Duration::from_secs(5);
    qmp.hand_over(writer.into(), Stop {}, soon).await.unwrap_err();
    let taken = server.await.unwrap();
    io::Write::write_all(&mut std::fs::File::from(taken), b"from there").unwrap();
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "from there", "and nobody else has it open");
}

/// A hypervisor that was taken over must not fill the agent's memory.
#[tokio::test]
async fn a_message_without_end_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        let greeting = format!("{}\n{{\"return\": {{}}}}\n", GREETING.replace('\n', " "));
        stream.write_all(greeting.as_bytes()).await.unwrap();
        let mut line = vec![b'x'; MAX_MESSAGE_BYTES / 2];
        line.push(b'\n');
        for _ in 0..4 {
            stream.write_all(&line).await.unwrap();
        }
        while stream.write_all(&line[..line.len() - 1]).await.is_ok() {}
    });
    let (qmp, mut events) = Qmp::connect(&socket).await.unwrap();
    for turn in 0..5 {
        let error = events.next().await.expect("not the end yet").unwrap_err().to_string();
        assert_eq!(error.contains("max line length"), turn == 4, "{turn}: {error}");
    }
    assert!(events.next().await.is_none());
    drop((qmp, events));
    server.await.unwrap();
}

/// A node has a connection for each guest.
#[tokio::test]
async fn a_connection_keeps_little_memory_after_a_long_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let long = "x".repeat(100_000);
    let event = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "STOP"}"#;
    let greeting = GREETING.replace('\n', " ");
    let text =
        format!("{greeting}\n{{\"return\": {{}}}}\n{{\"return\": \"{long}\"}}\n{event}\n{{\"ret");
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all(text.as_bytes()).await.unwrap();
        // Closed with something unread, a socket tells an error in place of its end.
        assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
    });
    let (_qmp, mut events) = Qmp::connect(&socket).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(Event::STOP { .. }))));
    server.await.unwrap();
    assert!(events.next().await.unwrap().is_err(), "cut in the middle");
    assert!(events.messages.0.read_buffer().capacity() <= READ_BYTES);
}
