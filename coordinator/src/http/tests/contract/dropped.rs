//! Clients that go away: every route that changes something, dropped at each of its awaits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::super::super::dispatch::{Incoming, Peer};
use super::super::super::matcher::{first_segment, segments};
use super::super::super::stream::SyncStream;
use super::super::super::{ApiConfig, MAX_CHANGES, Shell};
use super::cluster::Cluster;
use super::row::{Good, Sent};
use super::rows;
use crate::app::App;
use crate::app::tests::sound::unsound;

/// Awaits of one request; a request that has more is a finding.
const MAX_AWAITS: usize = 100;

/// Polls a future at most so many times, whenever it asks for it; `None` when it is not done.
async fn polled<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn incoming(cluster: &Cluster, sent: &Sent) -> Incoming {
    let whole = cluster.filled(&sent.path);
    let (path, query) = whole.split_once('?').unwrap_or((&whole, ""));
    let mut headers = HeaderMap::new();
    for header in &sent.headers {
        let header = cluster.filled(header);
        let (name, value) = header.split_once(": ").unwrap();
        let name: HeaderName = name.parse().unwrap();
        headers.insert(name, HeaderValue::try_from(value).unwrap());
    }
    let body = match std::str::from_utf8(&sent.body) {
        Ok(text) => Bytes::from(cluster.filled(text)),
        Err(_) => Bytes::from(sent.body.clone()),
    };
    let body = futures_util::stream::iter([Ok(body)]).boxed();
    Incoming {
        path: path.to_owned(),
        segments: segments(path),
        method: Method::try_from(sent.method).unwrap(),
        query: query.to_owned(),
        headers,
        peer: Peer::default(),
        upgrade: None,
        body: SyncStream::new(body),
    }
}

/// Waits until what was begun has ended; tasks of servers without an agent stay open.
async fn quiet(shell: &Shell, app: &App) {
    for _ in 0..2_000 {
        let busy = app
            .tasks
            .table
            .ids()
            .iter()
            .filter_map(|id| app.tasks.table.get(id))
            .any(|open| app.agents().is_connected(open.record.server_uuid));
        if !busy && shell.changes.available_permits() == MAX_CHANGES {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it never came to rest");
}

#[tokio::test]
async fn a_client_that_goes_away_at_any_await_leaves_nothing_half_done() {
    let mut cluster = Cluster::start().await;
    let app = Arc::clone(cluster.app());
    let shell = Shell::new(Arc::clone(&app), ApiConfig::default());
    let (mut routes, mut awaits, mut findings) = (0, 0, Vec::new());
    for row in rows() {
        let changes = shell.route_named(row.route).is_some_and(|route| route.changes());
        if !changes || !matches!(row.good, Good::Answers(_)) {
            continue;
        }
        for sent in &row.before {
            let answer = cluster.send(sent).await;
            cluster.remember(sent, &answer);
        }
        routes += 1;
        let segment = first_segment(row.route.split_once(' ').unwrap().1);
        let group = shell.groups.iter().position(|group| group.segment == segment);
        for times in 0..=MAX_AWAITS {
            assert!(times < MAX_AWAITS, "{}: more than {MAX_AWAITS} awaits", row.route);
            let request = Arc::clone(&shell).answer(group, incoming(&cluster, &row.sent));
            let answered = polled(request, times).await.is_some();
            quiet(&shell, &app).await;
            let found = unsound(&app).await;
            findings.extend(found.iter().map(|f| format!("{} dropped at {times}: {f}", row.route)));
            if answered {
                break;
            }
            awaits += 1;
        }
    }
    println!("{routes} routes, {awaits} awaits, {} failures", findings.len());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    let listed = app.tasks.table.ids();
    cluster.stop().await;
    let parts = app.parts().clone();
    let again = crate::start(app.config().clone(), parts).await.unwrap();
    assert_eq!(again.tasks.table.ids(), listed, "after a restart nothing runs that was not listed");
    again.shutdown().await;
}
