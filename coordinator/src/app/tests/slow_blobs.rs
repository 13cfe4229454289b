//! Blobs that take their time: a write is there a second after it began, and said to be done a second
//! later. Whoever stops waiting in between does not know that it is there.

use std::fmt;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;

/// How long each half of a write takes.
const HALF: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct SlowBlobs(pub(super) Arc<InMemory>);

impl fmt::Display for SlowBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slow {}", self.0)
    }
}

#[async_trait]
impl ObjectStore for SlowBlobs {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, how: PutOptions) -> Result<PutResult> {
        tokio::time::sleep(HALF).await;
        let put = self.0.put_opts(at, bytes, how).await;
        tokio::time::sleep(HALF).await;
        put
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        how: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Path, how: GetOptions) -> Result<GetResult> {
        self.0.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        places: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(places)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, how: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, how).await
    }
}
