//! The door to the coordinators for those who must know whether the node can still be reached by one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::link::Dialer;
use muster_shared::wire::PROTOCOL;
use tokio::net::TcpStream;
use url::Url;

use super::faults::Faults;
use super::{Cause, DriverError};

/// Longest time for one of them.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whoever gives this agent its work.
#[async_trait]
pub trait Coordinators: fmt::Debug + Send + Sync + 'static {
    /// Connects with one of them anew and hangs up. Without any to connect with nothing is to be
    /// reached, which is no error.
    ///
    /// # Errors
    /// None answered; the last one's reason.
    async fn reach(&self) -> Result<(), DriverError>;
}

/// Those of the configuration.
#[derive(Debug)]
pub struct DialedCoordinators {
    dialer: Arc<dyn Dialer>,
    urls: Vec<Url>,
    /// A CNAPI that takes reports by HTTP.
    cnapi: Option<Url>,
}

impl DialedCoordinators {
    /// Connected with as the agent's links are.
    #[must_use]
    pub fn new(dialer: Arc<dyn Dialer>, urls: Vec<Url>, cnapi: Option<Url>) -> Self {
        Self { dialer, urls, cnapi }
    }

    async fn dial(&self, url: &Url) -> Result<(), Cause> {
        let connection = self.dialer.dial(url, PROTOCOL).await?;
        connection.shutdown(1000, "only asked whether anybody is there").await;
        Ok(())
    }

    async fn within_time(
        url: &Url,
        attempt: impl Future<Output = Result<(), Cause>>,
    ) -> Result<(), DriverError> {
        let done = tokio::time::timeout(REACH_TIMEOUT, attempt).await;
        let cause = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(elapsed) => elapsed.into(),
        };
        Err(DriverError::failed(format!("reach {url}"), cause))
    }
}

async fn connect(url: &Url) -> Result<(), Cause> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    TcpStream::connect((host, url.port_or_known_default().unwrap_or(80))).await?;
    Ok(())
}

#[async_trait]
impl Coordinators for DialedCoordinators {
    async fn reach(&self) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        for url in &self.urls {
            outcome = Self::within_time(url, self.dial(url)).await;
            match &outcome {
                Ok(()) => return Ok(()),
                Err(error) => tracing::info!(%url, error = %Chain(error), "not reached"),
            }
        }
        match &self.cnapi {
            Some(url) => Self::within_time(url, connect(url)).await,
            None => outcome,
        }
    }
}

/// Reached unless a fault is planned, as operation `coordinators.reach`.
#[derive(Debug, Default)]
pub struct SimCoordinators(pub Faults);

#[async_trait]
impl Coordinators for SimCoordinators {
    async fn reach(&self) -> Result<(), DriverError> {
        self.0.call("coordinators.reach", || Ok(())).await
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::link::memory::listener;

    use super::*;

    #[tokio::test]
    async fn whoever_answers_is_reached() {
        let (dialer, mut listener) = listener();
        let urls = || vec!["ws://one:1/agent".parse().unwrap()];
        let coordinators = DialedCoordinators::new(Arc::new(dialer), urls(), None);
        let answer = async {
            let dialed = listener.accept().await.unwrap();
            dialed.connection.shutdown(1000, "bye").await;
        };
        let (reached, ()) = tokio::join!(coordinators.reach(), answer);
        reached.unwrap();
        drop(listener);
        let error = coordinators.reach().await.unwrap_err();
        assert!(error.to_string().contains("ws://one:1/agent"), "{error}");
        // A CNAPI that answers will do as well.
        let cnapi = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", cnapi.local_addr().unwrap()).parse().unwrap();
        let coordinators = DialedCoordinators { cnapi: Some(url), ..coordinators };
        coordinators.reach().await.unwrap();
        drop(cnapi);
        coordinators.reach().await.unwrap_err();
        let nobody = DialedCoordinators { urls: Vec::new(), cnapi: None, ..coordinators };
        nobody.reach().await.unwrap();
    }
}
