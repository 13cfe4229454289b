//! Tells a server that answers nothing at all from one that takes its time over a request.

use std::time::Duration;

use reqwest::RequestBuilder;

/// How long nothing has to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// A request may take so long before somebody asks whether anything is answered there.
    pub(crate) request: Duration,
    /// Limit of that question.
    pub(crate) ping: Duration,
}

/// A person at a terminal waits no longer than their sum; a busy coordinator answers a ping in time.
pub(crate) const PATIENCE: Patience =
    Patience { request: Duration::from_secs(3), ping: Duration::from_secs(7) };

/// Connections are accepted there, and that is all.
#[derive(Debug, thiserror::Error)]
#[error("it accepts connections, and answered nothing within {} s, not even a ping", .0.as_secs())]
pub(crate) struct Silent(Duration);

/// The answer to a request, unless nothing is answered where it was sent.
pub(crate) async fn unless_silent<T>(
    answer: impl Future<Output = T>,
    ping: RequestBuilder,
    patience: Patience,
) -> Result<T, Silent> {
    let silence = async {
        tokio::time::sleep(patience.request).await;
        match ping.timeout(patience.ping).send().await {
            Err(error) if error.is_timeout() => Silent(patience.request + patience.ping),
            // It answers, or can't be reached: then the request itself says so best.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        silent = silence => Err(silent),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const SHORT: Patience =
        Patience { request: Duration::from_millis(20), ping: Duration::from_millis(200) };

    /// A request for which nothing but a ping is answered, and not even that where `silent`.
    async fn asked(silent: bool) -> Result<(), Silent> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ping", listener.local_addr().unwrap());
        let (pinged, answer) = tokio::sync::oneshot::channel();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            if !silent {
                assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                // The request is answered some time after the ping.
                tokio::time::sleep(2 * SHORT.ping).await;
                pinged.send(()).unwrap();
            }
            std::future::pending::<()>().await;
        });
        muster_shared::tls::install_provider();
        let ping = reqwest::Client::builder().no_proxy().build().unwrap().get(url);
        let answer = async { answer.await.expect("the server answers") };
        let asked = unless_silent(answer, ping, SHORT).await;
        server.abort();
        asked
    }

    #[tokio::test]
    async fn what_answers_nothing_is_told_from_what_is_slow() {
        assert!(asked(false).await.is_ok());
        let silent = asked(true).await.unwrap_err();
        assert!(silent.to_string().contains("not even a ping"), "{silent}");
    }
}
