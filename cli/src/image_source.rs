//! Where an imported image comes from: a file here, a URL, or another coordinator's repository.

use std::env;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use muster_shared::api::image::Manifest;
use muster_shared::error_chain::Chain;
use muster_shared::tls;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tempfile::{NamedTempFile, TempPath};
use url::Url;

use crate::client::Client;
use crate::image_import::bar;
use crate::{CliError, Connection, context, pick};

/// Time to reach the server of a URL.
const CONNECT: Duration = Duration::from_secs(10);
/// Time without a byte after which a download is given up.
const SILENCE: Duration = Duration::from_secs(60);

/// A disk image that can be read here.
#[derive(Debug)]
pub(crate) struct Source {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// In IMGAPI's words.
    pub(crate) compression: &'static str,
    /// What another repository says of it.
    pub(crate) manifest: Option<Map<String, Value>>,
    /// Removes what was downloaded.
    _downloaded: Option<TempPath>,
}

/// A file that arrived.
pub(crate) struct Arrived {
    /// Removed unless it is persisted.
    pub(crate) file: NamedTempFile<File>,
    /// Hexadecimal.
    pub(crate) sha256: String,
    /// Bytes.
    pub(crate) size: u64,
}

impl Source {
    /// A path or a URL, or with `from` the name of an image of that context or address; downloaded if
    /// it is elsewhere.
    pub(crate) async fn of(source: &str, from: Option<&str>) -> Result<Self, CliError> {
        if let Some(from) = from {
            return Self::copied(source, from).await;
        }
        if source.starts_with("http://") || source.starts_with("https://") {
            return Self::downloaded(source).await;
        }
        let path = PathBuf::from(source);
        let compression = compression(&path);
        Ok(Self { path, compression, manifest: None, _downloaded: None })
    }

    async fn downloaded(text: &str) -> Result<Self, CliError> {
        let url: Url = text.parse().map_err(|error| CliError::Usage(format!("{text}: {error}")))?;
        let failed = |error: reqwest::Error| {
            CliError::Ended(format!("{text}: {}", Chain(&error.without_url())))
        };
        tls::install_provider();
        // Unlike the control plane's, these addresses may be behind the machine's proxies.
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(rustls::ClientConfig::clone(&*tls::client(None, None)?))
            .build()
            .map_err(failed)?;
        let sent = http.get(url.clone()).send().await.map_err(failed)?;
        let answer = sent.error_for_status().map_err(failed)?;
        let size = answer.content_length();
        let arrived = save(Box::pin(answer.bytes_stream()), size, &folder(), failed).await?;
        Ok(Self::of_arrived(arrived, compression(Path::new(url.path())), None))
    }

    async fn copied(name: &str, from: &str) -> Result<Self, CliError> {
        let mut connection = Connection::default();
        if from.contains(':') {
            connection.url = Some(from.to_owned());
        } else {
            connection.context = Some(from.to_owned());
            context::apply(&mut connection)?;
        }
        let client = Client::new(&connection)?;
        let image = pick::image(&client, name).await?;
        let packed = known_compression(&image)?;
        let arrived = fetch(&client, &image, &folder()).await?;
        Ok(Self::of_arrived(arrived, packed, image.json().as_object().cloned()))
    }

    fn of_arrived(
        arrived: Arrived,
        compression: &'static str,
        manifest: Option<Map<String, Value>>,
    ) -> Self {
        let downloaded = arrived.file.into_temp_path();
        let path = downloaded.to_path_buf();
        Self { path, compression, manifest, _downloaded: Some(downloaded) }
    }
}

/// Fetches an image's file to `folder`; refused unless it is what the manifest says.
pub(crate) async fn fetch(
    client: &Client,
    image: &Manifest,
    folder: &Path,
) -> Result<Arrived, CliError> {
    let wanted = image.files.first();
    let path = format!("/images/{}/file", image.uuid);
    let stream = client.stream(&path, &[]).await?;
    let size = wanted.and_then(|file| file.size);
    let arrived = save(stream, size, folder, |error| client.lost(error)).await?;
    match wanted.and_then(|file| file.sha256.as_deref()) {
        Some(wanted) if wanted != arrived.sha256 => Err(CliError::Ended(format!(
            "what arrived is damaged: its sha256 is {}, expected {wanted}",
            arrived.sha256
        ))),
        _ => Ok(arrived),
    }
}

/// Writes what arrives to a new file in `folder`. `size` (bytes) is that of the progress bar.
async fn save(
    mut stream: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
    size: Option<u64>,
    folder: &Path,
    lost: impl Fn(reqwest::Error) -> CliError,
) -> Result<Arrived, CliError> {
    let unwritable =
        |source| CliError::File { action: "write to", path: folder.to_owned(), source };
    let mut file = NamedTempFile::new_in(folder).map_err(unwritable)?;
    let bar = bar("download", size.unwrap_or(0));
    let (mut hash, mut written) = (Sha256::new(), 0);
    while let Some(chunk) = stream.try_next().await.map_err(&lost)? {
        hash.update(&chunk);
        file.write_all(&chunk).map_err(unwritable)?;
        written += u64::try_from(chunk.len()).unwrap_or_default();
        bar.set_position(written);
    }
    bar.finish_and_clear();
    Ok(Arrived { file, sha256: hex::encode(hash.finalize()), size: written })
}

/// Where large files lie for a while; /tmp is in memory on many systems.
fn folder() -> PathBuf {
    env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Compression by the file's name, in IMGAPI's words.
fn compression(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("bz2") => "bzip2",
        Some("gz") => "gzip",
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => "none",
    }
}

/// What a manifest says of it, unless it is none that Muster unpacks.
fn known_compression(image: &Manifest) -> Result<&'static str, CliError> {
    let packed = image.files.first().and_then(|file| file.compression.as_deref());
    let packed = packed.unwrap_or("none");
    ["none", "gzip", "bzip2", "xz", "zstd"].into_iter().find(|known| *known == packed).ok_or_else(|| {
        CliError::Usage(format!("image {} is compressed with {packed}, which Muster can't unpack: import a copy that is not", image.name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// The address of a server that answers one request with this.
    async fn server(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            stream.write_all(answer).await.unwrap();
        });
        url
    }

    const ABC: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc";
    const SUM_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// Fetches a file of `abc` that should have this checksum; how many files are there then.
    async fn fetched(sha256: &str) -> (Result<u64, CliError>, usize) {
        let connection = Connection { url: Some(server(ABC).await), ..Connection::default() };
        let client = Client::new(&connection).unwrap();
        let image = serde_json::from_value(json!({
            "v": 2, "uuid": uuid::Uuid::nil(), "name": "x", "version": "1", "type": "zvol",
            "os": "linux", "state": "active", "files": [{ "size": 3, "sha256": sha256 }],
        }));
        let folder = tempfile::tempdir().unwrap();
        let fetched = fetch(&client, &image.unwrap(), folder.path()).await;
        let size = fetched.map(|arrived| {
            assert_eq!(std::fs::read(arrived.file.path()).unwrap(), b"abc");
            arrived.size
        });
        (size, std::fs::read_dir(folder.path()).unwrap().count())
    }

    #[tokio::test]
    async fn a_damaged_file_is_refused_and_leaves_nothing() {
        assert_eq!(fetched(SUM_OF_ABC).await.0.unwrap(), 3);
        let (damaged, left) = fetched(&"0".repeat(64)).await;
        let damaged = damaged.unwrap_err().to_string();
        assert!(damaged.contains("is damaged") && left == 0, "{left}: {damaged}");
    }

    #[tokio::test]
    async fn a_url_is_downloaded_for_as_long_as_it_is_needed() {
        let url = server(ABC).await + "/a/disk.qcow2.gz";
        let source = Source::of(&url, None).await.unwrap();
        assert_eq!(std::fs::read(&source.path).unwrap(), b"abc");
        assert_eq!(source.compression, "gzip");
        let path = source.path.clone();
        drop(source);
        assert!(!path.exists(), "{}", path.display());

        let gone = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let url = server(gone).await + "/disk.raw";
        let refused = Source::of(&url, None).await.unwrap_err().to_string();
        assert!(refused.contains("/disk.raw") && refused.contains("404"), "{refused}");
    }

    #[test]
    fn compression_by_name() {
        for (name, wanted) in [
            ("a.bz2", "bzip2"),
            ("a.gz", "gzip"),
            ("a.raw.xz", "xz"),
            ("a.zst", "zstd"),
            ("a", "none"),
        ] {
            assert_eq!(compression(Path::new(name)), wanted);
        }
    }
}
