//! The API without listeners: requests come from the same process.
//!
//! Dropping the future of [`LocalApi::call`] does what a client does that closes its connection
//! before it is answered.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Body;
use tower_service::Service as _;
use warp::filters::BoxedFilter;

use super::filters::{filters, give_path};
use super::{ApiConfig, Shell};
use crate::app::App;

/// The API of an application; clones share it.
#[derive(Clone)]
pub struct LocalApi(BoxedFilter<(warp::reply::Response,)>);

impl fmt::Debug for LocalApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalApi").finish_non_exhaustive()
    }
}

impl LocalApi {
    /// All routes over `app`.
    #[must_use]
    pub fn new(app: Arc<App>, config: ApiConfig) -> Self {
        Self(filters(&Shell::new(app, config)))
    }

    /// Answers one request; its failures are answers too.
    pub async fn call<B>(&self, mut request: http::Request<B>) -> warp::reply::Response
    where
        B: Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        give_path(&mut request);
        match warp::service(self.0.clone()).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
