//! An HTTP server for tests that serves files, honours ranges, and misbehaves on request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

/// What the server does with the next request for a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Misbehaviour {
    /// Closes the connection after this many bytes of the body.
    Cut(usize),
    /// Sends the whole file although a range was asked for.
    IgnoreRange,
    /// Answers with this status.
    Status(u16),
    /// Sends this many bytes and then keeps silent.
    Hang(usize),
}

#[derive(Debug, Default)]
struct Content {
    files: BTreeMap<String, Vec<u8>>,
    planned: VecDeque<Misbehaviour>,
    ranges: Vec<Option<usize>>,
}

/// A running server; ends with the runtime of the test.
#[derive(Clone, Debug)]
pub(super) struct TestServer {
    pub(super) url: Url,
    content: Arc<Mutex<Content>>,
}

impl TestServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let content: Arc<Mutex<Content>> = Arc::default();
        let server = Self { url, content: Arc::clone(&content) };
        drop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(tokio::spawn(serve(stream, Arc::clone(&content))));
            }
        }));
        server
    }

    pub(super) fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        self.content.lock().files.insert(path.to_owned(), body.into());
    }

    /// For the next requests of paths that end in `/file`, in order.
    pub(super) fn misbehave(&self, planned: impl IntoIterator<Item = Misbehaviour>) {
        self.content.lock().planned.extend(planned);
    }

    /// Where the requests for files wanted to start.
    pub(super) fn ranges(&self) -> Vec<Option<usize>> {
        self.content.lock().ranges.clone()
    }
}

/// Serves one request and closes.
async fn serve(stream: TcpStream, content: Arc<Mutex<Content>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut path = String::new();
    let mut range = None;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("get ") {
            path = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        if let Some(rest) = line.strip_prefix("range: bytes=") {
            range = rest.strip_suffix('-').and_then(|start| start.parse::<usize>().ok());
        }
        if line.is_empty() {
            break;
        }
    }
    let (body, planned) = {
        let mut content = content.lock();
        let mut planned = None;
        if path.ends_with("/file") {
            content.ranges.push(range);
            planned = content.planned.pop_front();
        }
        (content.files.get(&path).cloned(), planned)
    };
    let mut stream = stream.into_inner();
    let status = |code: u16| format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n");
    let Some(body) = body else { return stream.write_all(status(404).as_bytes()).await };
    if let Some(Misbehaviour::Status(code)) = planned {
        return stream.write_all(status(code).as_bytes()).await;
    }
    let start = match planned {
        Some(Misbehaviour::IgnoreRange) => 0,
        _ => range.unwrap_or(0),
    };
    if start > 0 && start >= body.len() {
        return stream.write_all(status(416).as_bytes()).await;
    }
    let (rest, all) = (&body[start..], body.len());
    let head = if start > 0 {
        format!("HTTP/1.1 206 X\r\ncontent-range: bytes {start}-{}/{all}\r\n", all - 1)
    } else {
        "HTTP/1.1 200 X\r\n".to_owned()
    };
    let head = format!("{head}content-length: {}\r\nconnection: close\r\n\r\n", rest.len());
    stream.write_all(head.as_bytes()).await?;
    match planned {
        Some(Misbehaviour::Cut(bytes)) => stream.write_all(&rest[..bytes]).await,
        Some(Misbehaviour::Hang(bytes)) => {
            stream.write_all(&rest[..bytes]).await?;
            std::future::pending().await
        }
        _ => stream.write_all(rest).await,
    }
}
