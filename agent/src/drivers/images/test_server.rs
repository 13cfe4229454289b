//! An HTTP server for tests that serves files, honours ranges, and misbehaves on request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
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
    moved: BTreeMap<String, Url>,
    authorizations: Vec<Option<String>>,
}

/// A running server; ends with the runtime of the test.
#[derive(Clone, Debug)]
pub(super) struct TestServer {
    pub(super) url: Url,
    content: Arc<Mutex<Content>>,
}

impl TestServer {
    pub(super) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Over TLS, as `localhost`.
    pub(super) async fn start_with(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let base = if tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        let url = Url::parse(&format!("{base}:{port}/")).unwrap();
        let content: Arc<Mutex<Content>> = Arc::default();
        let server = Self { url, content: Arc::clone(&content) };
        let tls = tls.map(TlsAcceptor::from);
        drop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, content) = (tls.clone(), Arc::clone(&content));
                drop(tokio::spawn(async move {
                    match tls {
                        None => serve(stream, content).await,
                        Some(tls) => serve(tls.accept(stream).await?, content).await,
                    }
                }));
            }
        }));
        server
    }

    /// Sends clients that ask for `path` on.
    pub(super) fn redirect(&self, path: &str, to: Url) {
        self.content.lock().moved.insert(path.to_owned(), to);
    }

    /// What its clients showed with each request.
    pub(super) fn authorizations(&self) -> Vec<Option<String>> {
        self.content.lock().authorizations.clone()
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
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    content: Arc<Mutex<Content>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut path = String::new();
    let (mut range, mut authorization) = (None, None);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.trim().strip_prefix("authorization: ") {
            authorization = Some(value.to_owned());
        }
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
    let (body, planned, moved) = {
        let mut content = content.lock();
        content.authorizations.push(authorization);
        let mut planned = None;
        if path.ends_with("/file") {
            content.ranges.push(range);
            planned = content.planned.pop_front();
        }
        (content.files.get(&path).cloned(), planned, content.moved.get(&path).cloned())
    };
    let mut stream = stream.into_inner();
    let status = |code: u16| format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n");
    if let Some(to) = moved {
        let head = format!("HTTP/1.1 302 X\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        return stream.write_all(head.as_bytes()).await;
    }
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
